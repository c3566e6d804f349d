"""Newly drawn weights for any network: a student's start, and a pin's where it is not put on the straight line."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from modebridge import seeds, trees
from modebridge.modes.mode import Mode
from modebridge.nets import initialise, skeleton
from modebridge.nets.blocks import DRAWN

__all__ = ["fresh_mode", "fresh_weights"]

RESETS = ("reset_parameters", "_reset_parameters")
"""What torch's modules call the drawing of their own weights; the latter is attention's."""

EMBEDDING = 0.02
"""The standard deviation of tokens and position embeddings that are zero so far, transformers' usual one."""


def fresh_weights(net: nn.Module, seed: int) -> dict[str, Tensor]:
    """New numbers for every parameter: each module's own reset, then the paper's initialisation of what it covers.

    What neither reaches (class tokens, position embeddings, layer scales, the parts of weight norm) is normal with the
    mean and spread that the parameter has in `net`. There, a constant is a neutral start as a norm's ones are, and
    stays; but a zero tensor of several axes, as tokens begin, is drawn with standard deviation 0.02.

    Args:
        net: any module; it is not changed.
        seed: of all draws.
    """
    copy = skeleton(net)
    versions = {name: parameter._version for name, parameter in copy.named_parameters()}
    device = next((parameter.device for parameter in copy.parameters()), None)
    with seeds.borrowed(seed, device), torch.no_grad():  # modules of others draw from the global generator
        for module in copy.modules():
            reset = next((method for name in RESETS if callable(method := getattr(module, name, None))), None)
            if reset is not None and not isinstance(module, DRAWN):
                reset()
    generator = torch.Generator().manual_seed(seed)
    initialise(copy, generator)
    fresh: dict[str, Tensor] = dict(copy.named_parameters())
    for name, parameter in net.named_parameters():
        # Both are asked: some write the numbers they had, and what is written through `.data` has no new version.
        if fresh[name]._version == versions[name] and torch.equal(fresh[name], parameter):
            fresh[name] = _alike(parameter.detach(), generator)
    return trees.clone(fresh)


def fresh_mode(net: nn.Module, seed: int) -> Mode:
    """The network as if it had just been built: new weights, and running statistics that have seen nothing."""
    copy = skeleton(net)
    for module in copy.modules():
        reset = getattr(module, "reset_running_stats", None)
        if callable(reset):
            reset()
    return Mode(fresh_weights(net, seed), Mode.from_module(copy).buffers)


def _alike(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers with the mean and the spread of a tensor."""
    wide = tensor.double()
    spread = float(wide.std(correction=0)) if tensor.numel() else 0.0
    if spread == 0 and tensor.numel() > 1 and tensor.dim() > 1 and not bool(tensor.any()):
        spread = EMBEDDING
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
    return torch.empty_like(tensor).copy_(wide.mean() + spread * drawn)
