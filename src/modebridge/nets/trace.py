"""Trace one forward pass of a network: what every submodule returned, and the FLOPs up to then."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from modebridge.errors import ModebridgeError
from modebridge.nets.flops import Shape, counting
from modebridge.nets.running import call, feature_of
from modebridge.types import Inputs

__all__ = ["CallRecord", "ForwardTrace", "find_blocks", "watch"]

LISTS = (nn.Sequential, nn.ModuleList)

ON_MAPS = (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.GroupNorm, nn.MaxPool2d, nn.AdaptiveAvgPool2d)
"""Layers whose input with four axes is (B, C, H, W)."""

ON_SEQUENCES = (
    nn.Conv1d,
    nn.ConvTranspose1d,
    nn.BatchNorm1d,
    nn.InstanceNorm1d,
    nn.GroupNorm,
    nn.MaxPool1d,
    nn.AvgPool1d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveMaxPool1d,
)
"""Layers whose input and output with three axes are (B, C, L)."""

ON_TOKENS = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)
"""Layers whose output with three axes is (B, T, C)."""


@dataclass
class CallRecord:
    """The record of one submodule: its last output (None if that does not start with a tensor) and when it ran."""

    output: Tensor | None
    kind: str  # type of the output
    version: int  # version counter of the output after the call
    flops: float  # multiply-adds of the whole network up to and including its last call
    runs: int

    @property
    def changed(self) -> bool:
        """Whether a later layer changed the output in place."""
        return self.output is not None and self.output._version != self.version


@dataclass
class ForwardTrace:
    """The record of a whole pass: every submodule that ran, in the order in which they finished."""

    seen: dict[str, CallRecord] = field(default_factory=dict)
    logits: Tensor | None = None
    flops: float = 0.0
    # Shapes of maps read by a layer with channels on the first axis, and on the last.
    first: set[Shape] = field(default_factory=set)
    last: set[Shape] = field(default_factory=set)
    # Whether a tensor with three axes is (B, C, L), by its id: known from a layer that made or read it, or guessed
    # (activations from their input, sums from their last summand). The tensors are kept alive: ids stay unique.
    sequences: dict[int, bool] = field(default_factory=dict)
    likely: dict[int, bool] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)

    def is_logits(self, tensor: Tensor) -> bool:
        """Whether a tensor is the logits, or the logits are a view of it."""
        assert self.logits is not None
        # Compared by storage, which exists on the meta device too.
        return bool(tensor.untyped_storage()._cdata == self.logits.untyped_storage()._cdata)

    def channels_last(self, shape: Shape) -> bool:
        """Whether a feature is (H, W, C): by the layers that read such a map, otherwise by which axes are equal."""
        if (shape in self.first) != (shape in self.last):
            return shape in self.last
        height, width, channels = shape
        return height == width != channels

    def is_sequence(self, tensor: Tensor) -> bool:
        """Whether a tensor with three axes is (B, C, L), as for 1d convolutions, and not (B, T, C)."""
        return self.sequences.get(id(tensor), self.likely.get(id(tensor), False))


def watch(net: nn.Module, example: Inputs, *, count: bool = True) -> ForwardTrace:
    """Run `net` once with a temporary hook on every submodule; counting FLOPs takes longer."""
    watched = ForwardTrace()

    def reader(name: str, counted: Callable[[], float]) -> Callable[[nn.Module, tuple[Any, ...], object], None]:
        def read(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
            _axes(module, args, watched)
            try:
                feature = feature_of(output, name)
            except ModebridgeError:
                feature = None
            _sequences(module, args, feature, watched)
            before = watched.seen.pop(name, None)  # popped to keep the order of last calls
            watched.seen[name] = CallRecord(
                feature,
                type(output).__name__,
                0 if feature is None else feature._version,
                counted(),
                1 if before is None else before.runs + 1,
            )

        return read

    with ExitStack() as hooks, counting() if count else nullcontext(float) as counted:
        for name, module in net.named_modules():
            if name:
                hooks.callback(module.register_forward_hook(reader(name, counted)).remove)
        watched.logits = call(net, example)
        watched.flops = counted()
    if watched.logits.dim() != 2:
        raise ModebridgeError(
            f"Expected the network to return logits of (batch, classes), but got {tuple(watched.logits.shape)}; "
            "wrap it in a module that does."
        )
    return watched


def find_blocks(net: nn.Module, watched: ForwardTrace) -> list[str]:
    """The names of a network's blocks: repeated children of its lists, without stages that only hold other blocks.

    A block is a child of an `nn.Sequential` or `nn.ModuleList` that has submodules and whose class occurs again, or a
    module of such a class that holds such lists as branches. A stage returns the output of its last block. A block
    that holds lists does not (it adds a shortcut), or at least not every block of its class does.
    """
    kinds = Counter(type(module) for module in net.modules())
    ends: dict[type[nn.Module], bool] = {}

    def find(module: nn.Module, prefix: str, stages: Container[type[nn.Module]]) -> list[str]:
        blocks: list[str] = []
        for name, child in module.named_children():
            inside = find(child, f"{prefix}{name}.", stages)
            seen = watched.seen.get(prefix + name)
            transparent = bool(inside) and (isinstance(child, LISTS) or type(child) in stages)
            listed = isinstance(module, LISTS) and any(True for _ in child.children())
            if seen is None or transparent or kinds[type(child)] < 2 or not (listed or inside):
                blocks += inside
                continue
            blocks.append(prefix + name)
            # The same tensor at the same version: torchvision's mobile networks add their shortcut in place.
            inner = [watched.seen[block] for block in inside]
            same = any(block.output is seen.output and block.version == seen.version for block in inner)
            ends[type(child)] = ends.get(type(child), True) and same
        return blocks

    # The first pass, in which nothing counts as a stage, finds the classes that are stages.
    find(net, "", ())
    return find(net, "", [kind for kind, end in ends.items() if end])


def _axes(module: nn.Module, args: tuple[Any, ...], watched: ForwardTrace) -> None:
    """Record the channel axis of a map, for layers that define it."""
    if not args or not isinstance(args[0], Tensor) or args[0].dim() != 4:
        return
    shape = tuple(args[0].shape[1:])
    if isinstance(module, ON_MAPS):
        watched.first.add(shape)
    elif isinstance(module, nn.Linear) or (
        # timm's LayerNorm2d is a subclass, but normalises the first axis.
        isinstance(module, nn.LayerNorm) and math.prod(module.normalized_shape) == shape[-1]
    ):
        watched.last.add(shape)


def _sequences(module: nn.Module, args: tuple[Any, ...], output: Tensor | None, watched: ForwardTrace) -> None:
    """Record whether tensors with three axes are (B, C, L), for layers that make or read one and define it."""
    inputs = [tensor for tensor in args if isinstance(tensor, Tensor) and tensor.dim() == 3]
    if inputs and isinstance(module, (*ON_SEQUENCES, nn.MultiheadAttention, nn.RNNBase)):
        watched.sequences.setdefault(id(inputs[0]), isinstance(module, ON_SEQUENCES))
        watched.kept.append(inputs[0])
    if output is None or output.dim() != 3:
        return
    watched.kept.append(output)
    if isinstance(module, ON_SEQUENCES + ON_TOKENS):
        # The layer that made it takes precedence over one that reads it: a linear layer may mix sequence positions.
        watched.sequences.setdefault(id(output), isinstance(module, ON_SEQUENCES))
    elif id(output) not in watched.sequences:
        known = watched.sequences | watched.likely
        candidates = [t for t in (*inputs, *reversed(watched.kept)) if t.shape == output.shape and id(t) in known]
        if candidates:
            watched.likely[id(output)] = known[id(candidates[0])]
