"""New random weights for any network: the start of a student, or of a pin that is not on the straight line."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from modebridge import seeds, trees
from modebridge.nets import frozen_copy, initialise
from modebridge.nets.blocks import DRAWN

__all__ = ["fresh_weights"]

RESETS = ("reset_parameters", "_reset_parameters")
"""Names of the methods with which torch's modules draw their weights; attention uses the latter."""

EMBEDDING = 0.02
"""Standard deviation for all-zero tokens and position embeddings, the usual value in transformers."""


def fresh_weights(net: nn.Module, seed: int) -> dict[str, Tensor]:
    """New values for every parameter: each module's own reset, then the paper's initialisation where it applies.

    Parameters that neither covers (class tokens, position embeddings, layer scales, the parts of weight norm) are drawn
    from a normal distribution with their mean and spread in `net`. Constants such as a norm's ones are neutral values
    and stay; but zero tensors with several axes, such as new tokens, are drawn with standard deviation 0.02.

    Args:
        net: any module; it is not changed.
        seed: seed of all draws.
    """
    copy = frozen_copy(net)
    versions = {name: parameter._version for name, parameter in copy.named_parameters()}
    device = next((parameter.device for parameter in copy.parameters()), None)
    with seeds.borrowed(seed, device), torch.no_grad():  # third-party modules draw from the global generator
        for module in copy.modules():
            reset = next((method for name in RESETS if callable(method := getattr(module, name, None))), None)
            if reset is not None and not isinstance(module, DRAWN):
                reset()
    generator = torch.Generator().manual_seed(seed)
    initialise(copy, generator)
    fresh: dict[str, Tensor] = dict(copy.named_parameters())
    for name, parameter in net.named_parameters():
        # Both are needed: some resets write the same values, and writes through `.data` do not change the version.
        if fresh[name]._version == versions[name] and torch.equal(fresh[name], parameter):
            fresh[name] = _alike(parameter.detach(), generator)
    return trees.clone(fresh)


def _alike(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Normal random values with the mean and standard deviation of a tensor."""
    wide = tensor.double()
    spread = float(wide.std(correction=0)) if tensor.numel() else 0.0
    if spread == 0 and tensor.numel() > 1 and tensor.dim() > 1 and not bool(tensor.any()):
        spread = EMBEDDING
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
    return torch.empty_like(tensor).copy_(wide.mean() + spread * drawn)
