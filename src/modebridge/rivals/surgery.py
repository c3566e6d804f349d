"""Other layers in a network's places: which layers a forward pass calls, and a copy with some of them replaced."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from modebridge import seeds
from modebridge.batches import each
from modebridge.errors import ModebridgeError, first_line
from modebridge.nets.flops import FAILED, examples, invoke, on_copy
from modebridge.types import Inputs

__all__ = ["LAYERS", "called", "channels_of", "drawn_like", "replaced", "tried"]

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""The layers that hold nearly all of a network's weights."""


def called(net: nn.Module, example: Inputs, kinds: tuple[type[nn.Module], ...] = LAYERS) -> dict[str, torch.Size]:
    """The layers of some kinds that a forward pass calls, first to last, with the shape of what each is given.

    A layer that is called again counts where it was called last. Layers of `nn.MultiheadAttention` are never called:
    it takes their weights.

    Args:
        net: any module.
        example: a batch; one image of it is looked at.
        kinds: of layers.

    >>> list(called(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)), torch.rand(1, 2)))
    ['0', '2']
    """

    def watch(bare: nn.Module, inputs: Sequence[Inputs]) -> dict[str, torch.Size]:
        shapes: dict[str, torch.Size] = {}

        def note(name: str, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            shapes.pop(name, None)
            shapes[name] = given[0].shape

        for name, layer in bare.named_modules():
            if isinstance(layer, kinds):
                layer.register_forward_pre_hook(partial(note, name))
        invoke(bare, inputs)
        return shapes

    return on_copy(net, examples(net, example), watch)


def replaced(net: nn.Module, layers: Mapping[str, nn.Module]) -> nn.Module:
    """A copy of a network with other modules in some places; one that stands in several places is replaced in all.

    >>> replaced(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), {"1": nn.SiLU()})[1]
    SiLU()
    """
    _check_untied(net, layers)
    memo: dict[int, object] = {id(net.get_submodule(name)): layer for name, layer in layers.items()}
    # deepcopy takes what its memo holds, wherever it meets the old one.
    return copy.deepcopy(net, memo)


def _check_untied(net: nn.Module, names: Iterable[str]) -> None:
    """Refuse to replace layers that share a weight with another one: replaced one by one they would come apart."""
    owners: dict[int, str] = {}
    for name, module in net.named_modules():
        for parameter in module._parameters.values():
            other = owners.setdefault(id(parameter), name)
            if parameter is not None and other != name and {name, other}.intersection(names):
                raise ModebridgeError(
                    f"Expected layers with weights of their own, but '{other}' and '{name}' of {type(net).__name__} "
                    "share one; this network cannot have the method."
                )


def channels_of(layer: nn.Module) -> tuple[int, int]:
    """How many channels go in and come out of one of `LAYERS`."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return layer.in_channels, layer.out_channels


def drawn_like(weight: Tensor, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """Fresh weights of another shape, normal with the standard deviation of those that are there."""
    spread = weight.detach().std() if weight.numel() > 1 else weight.detach().abs().sum()
    drawn = torch.randn(*shape, generator=generator, dtype=weight.dtype, device=weight.device) * spread
    last = weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return drawn.contiguous(memory_format=torch.channels_last) if last else drawn


def tried(rival: nn.Module, example: Inputs, members: int, what: str) -> Tensor:
    """The logits (M, B, K) of two images in evaluation mode, with a gradient; refuses a network that cannot be so.

    Args:
        rival: what was made of a network; it is left as it was.
        example: a batch of at least one image.
        members: M.
        what: how the error calls the method.
    """
    two = each(lambda tensor: torch.cat([tensor[:1], tensor[-1:]]), example)
    before = {part: part.training for part in rival.modules()}
    rival.eval()
    try:
        with torch.enable_grad(), seeds.borrowed(0):
            logits = invoke(rival, [two])
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 2 * members:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ModebridgeError(
                f"Expected {what} to give logits of ({members} members x batch, classes), but got {got}; this network "
                "cannot have it."
            )
    except FAILED as error:
        raise ModebridgeError(
            f"Expected the network to run as {what} on an example, but got '{first_line(error)}'; this network cannot "
            "have it."
        ) from error
    finally:
        for part, mode in before.items():
            part.training = mode
    return torch.unflatten(logits, 0, (members, 2))
