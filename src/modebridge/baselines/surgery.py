"""Replace layers of a network: find the layers that a forward pass calls, and copy the network with some replaced."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from modebridge import seeds
from modebridge.baselines.rival import Rival
from modebridge.batches import map_inputs
from modebridge.errors import ModebridgeError, first_line
from modebridge.nets.flops import FAILED, examples, invoke, on_copy
from modebridge.types import Inputs

__all__ = ["LAYERS", "called", "channels_of", "drawn_like", "replaced", "tried"]

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""The layers that hold nearly all of a network's weights."""


def called(net: nn.Module, example: Inputs, kinds: tuple[type[nn.Module], ...] = LAYERS) -> dict[str, torch.Size]:
    """The layers of some classes that a forward pass calls, first to last, with the shapes of their inputs.

    A layer that is called several times is listed at its last call. Layers of `nn.MultiheadAttention` are never
    called: it uses their weights directly.

    Args:
        net: any module.
        example: a batch; only one image is used.
        kinds: classes of layers.

    >>> list(called(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)), torch.rand(1, 2)))
    ['0', '2']
    """

    def trace(bare: nn.Module, inputs: Sequence[Inputs]) -> dict[str, torch.Size]:
        shapes: dict[str, torch.Size] = {}

        def record(name: str, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            shapes.pop(name, None)
            shapes[name] = given[0].shape

        for name, layer in bare.named_modules():
            if isinstance(layer, kinds):
                layer.register_forward_pre_hook(partial(record, name))
        invoke(bare, inputs)
        return shapes

    return on_copy(net, examples(net, example), trace)


def replaced(net: nn.Module, layers: Mapping[str, nn.Module]) -> nn.Module:
    """A copy of a network with some modules replaced; a module that is used in several places is replaced in all.

    >>> replaced(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), {"1": nn.SiLU()})[1]
    SiLU()
    """
    _check_untied(net, layers)
    memo: dict[int, object] = {id(net.get_submodule(name)): layer for name, layer in layers.items()}
    # deepcopy uses the objects in its memo wherever the old module occurs.
    return copy.deepcopy(net, memo)


def _check_untied(net: nn.Module, names: Iterable[str]) -> None:
    """Raise an error if a layer to replace shares a weight with another one: they would become separate."""
    owners: dict[int, str] = {}
    for name, module in net.named_modules():
        for parameter in module._parameters.values():
            other = owners.setdefault(id(parameter), name)
            if parameter is not None and other != name and {name, other}.intersection(names):
                raise ModebridgeError(
                    f"Expected layers with separate weights, but '{other}' and '{name}' of {type(net).__name__} "
                    "share one; this method does not support the network."
                )


def channels_of(layer: nn.Module) -> tuple[int, int]:
    """Number of input and output channels of one of `LAYERS`."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return layer.in_channels, layer.out_channels


def drawn_like(weight: Tensor, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """New weights of another shape, normal with the standard deviation of the old ones."""
    spread = weight.detach().std() if weight.numel() > 1 else weight.detach().abs().sum()
    drawn = torch.randn(*shape, generator=generator, dtype=weight.dtype, device=weight.device) * spread
    last = weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return drawn.contiguous(memory_format=torch.channels_last) if last else drawn


def tried(rival: Rival, example: Inputs, what: str) -> Tensor | None:
    """The logits (M, B, K) of two images in evaluation mode, with a gradient; raises an error if the rival cannot run.

    None for a rival on the meta device, which has no weights to run with.

    Args:
        rival: the rival; its training flags are restored.
        example: a batch of at least one image.
        what: name of the method in errors.
    """
    if next(rival.parameters()).device.type == "meta":
        return None
    two = map_inputs(lambda tensor: torch.cat([tensor[:1], tensor[-1:]]), example)
    before = {part: part.training for part in rival.modules()}
    rival.eval()
    try:
        with torch.enable_grad(), seeds.borrowed(0):
            logits = invoke(rival, [two])
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 2 * rival.members:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ModebridgeError(
                f"Expected {what} to return logits of ({rival.members} members x batch, classes), but got {got}; it "
                "does not support this network."
            )
    except FAILED as error:
        raise ModebridgeError(
            f"Expected the network to run as {what} on an example, but got '{first_line(error)}'; use another network "
            "or method."
        ) from error
    finally:
        for part, mode in before.items():
            part.training = mode
    return torch.unflatten(logits, 0, (rival.members, 2))
