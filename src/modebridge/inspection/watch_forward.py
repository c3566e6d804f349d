"""One forward pass of a network, watched: what every submodule returned, and how many FLOPs there were by then."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modebridge.errors import ModebridgeError
from modebridge.nets.flops import Shape, counting
from modebridge.nets.functional import call
from modebridge.nets.taps import feature_of
from modebridge.types import Inputs

__all__ = ["Seen", "Watched", "find_blocks", "watch"]

LISTS = (nn.Sequential, nn.ModuleList)

ON_MAPS = (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.GroupNorm, nn.MaxPool2d, nn.AdaptiveAvgPool2d)
"""Layers whose input of four axes is (B, C, H, W)."""

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
"""Layers whose input and output of three axes are (B, C, L)."""

ON_TOKENS = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)
"""Layers whose output of three axes is (B, T, C)."""


@dataclass
class Seen:
    """What one submodule did.

    Args:
        output: of its last run; None where that is no tensor and does not begin with one.
        kind: the type of what it returned.
        version: how often the output had been changed in place by then.
        flops: multiply-adds of the whole network up to and including its last run.
        runs: how often it ran.
    """

    output: Tensor | None
    kind: str
    version: int
    flops: float
    runs: int

    @property
    def changed(self) -> bool:
        """Whether a later layer changed the output in place."""
        return self.output is not None and self.output._version != self.version


@dataclass
class Watched:
    """A whole pass: every submodule that ran, in the order in which they ended.

    Args:
        seen: by name.
        logits: (B, K).
        flops: of the whole pass.
        first: shapes of maps that met a layer with channels on the first axis.
        last: shapes of maps that met one with channels on the last axis.
        sequences: whether a tensor of three axes is (B, C, L), told by a layer that made or took it, by its identity.
        likely: the same of tensors that nobody tells about: an activation's as its input, a sum's as its last summand.
        kept: what `sequences` and `likely` speak of, so that no other tensor gets the same identity.
    """

    seen: dict[str, Seen] = field(default_factory=dict)
    logits: Tensor | None = None
    flops: float = 0.0
    first: set[Shape] = field(default_factory=set)
    last: set[Shape] = field(default_factory=set)
    sequences: dict[int, bool] = field(default_factory=dict)
    likely: dict[int, bool] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)

    def is_logits(self, tensor: Tensor) -> bool:
        """Whether a tensor is the logits, or they are a view of it."""
        assert self.logits is not None
        # Compared by storage, which exists on the meta device too.
        return bool(tensor.untyped_storage()._cdata == self.logits.untyped_storage()._cdata)

    def channels_last(self, shape: Shape) -> bool:
        """Whether a feature of three axes is (H, W, C): by the layers that took such a map, else by what is square."""
        if (shape in self.first) != (shape in self.last):
            return shape in self.last
        height, width, channels = shape
        return height == width != channels

    def is_sequence(self, tensor: Tensor) -> bool:
        """Whether a tensor of three axes is (B, C, L), as convolutions along one axis have it, and not (B, T, C)."""
        return self.sequences.get(id(tensor), self.likely.get(id(tensor), False))


def watch(net: nn.Module, example: Inputs, *, count: bool = True) -> Watched:
    """Run `net` once as it is, with a hook on every submodule for as long as that takes; counting takes longer."""
    watched = Watched()
    handles: list[RemovableHandle] = []

    def reader(name: str, counted: Callable[[], float]) -> Callable[[nn.Module, tuple[Any, ...], object], None]:
        def read(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
            _axes(module, args, watched)
            feature = _feature(output, name)
            _sequences(module, args, feature, watched)
            before = watched.seen.pop(name, None)  # popped, so that the order is that of the last runs
            watched.seen[name] = Seen(
                feature,
                type(output).__name__,
                0 if feature is None else feature._version,
                counted(),
                1 if before is None else before.runs + 1,
            )

        return read

    try:
        with counting() if count else nullcontext(float) as counted:
            for name, module in net.named_modules():
                if name:
                    handles.append(module.register_forward_hook(reader(name, counted)))
            watched.logits = call(net, example)
            watched.flops = counted()
        if watched.logits.dim() != 2:
            raise ModebridgeError(
                f"Expected the network to give logits of (batch, classes), but got {tuple(watched.logits.shape)}; "
                "wrap it in a module that does."
            )
    finally:
        for handle in handles:
            handle.remove()
    return watched


def find_blocks(net: nn.Module, watched: Watched) -> list[str]:
    """The names of a network's blocks: what its lists repeat, without the stages that only hold other blocks.

    A block is a child of an `nn.Sequential` or `nn.ModuleList` that has layers of its own and whose class comes again;
    or it is a module of such a class that holds such lists as branches. A stage returns what its last block returned;
    a block that holds lists does not (it adds a shortcut), at least not every block of its class.
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
            # The same tensor as it was: torchvision's mobile networks add their shortcut in place.
            inner = [watched.seen[block] for block in inside]
            same = any(block.output is seen.output and block.version == seen.version for block in inner)
            ends[type(child)] = ends.get(type(child), True) and same
        return blocks

    # The first look, in which nothing is a stage, shows of every class whether it is one.
    find(net, "", ())
    return find(net, "", [kind for kind, end in ends.items() if end])


def _axes(module: nn.Module, args: tuple[Any, ...], watched: Watched) -> None:
    """Remember where the channels of a map are, for layers that know it."""
    if not args or not isinstance(args[0], Tensor) or args[0].dim() != 4:
        return
    shape = tuple(args[0].shape[1:])
    if isinstance(module, ON_MAPS):
        watched.first.add(shape)
    elif isinstance(module, nn.Linear) or (
        # timm's LayerNorm2d is one by class, but norms the first axis.
        isinstance(module, nn.LayerNorm) and math.prod(module.normalized_shape) == shape[-1]
    ):
        watched.last.add(shape)


def _sequences(module: nn.Module, args: tuple[Any, ...], output: Tensor | None, watched: Watched) -> None:
    """Remember of tensors of three axes whether they are (B, C, L): a layer that makes or takes one knows it."""
    taken = [tensor for tensor in args if isinstance(tensor, Tensor) and tensor.dim() == 3]
    if taken and isinstance(module, (*ON_SEQUENCES, nn.MultiheadAttention, nn.RNNBase)):
        watched.sequences.setdefault(id(taken[0]), isinstance(module, ON_SEQUENCES))
        watched.kept.append(taken[0])
    if output is None or output.dim() != 3:
        return
    watched.kept.append(output)
    if isinstance(module, ON_SEQUENCES + ON_TOKENS):
        # Whoever made it is asked before whoever takes it: a linear layer may well mix the places of a sequence.
        watched.sequences.setdefault(id(output), isinstance(module, ON_SEQUENCES))
    elif id(output) not in watched.sequences:
        known = watched.sequences | watched.likely
        alike = [t for t in (*taken, *reversed(watched.kept)) if t.shape == output.shape and id(t) in known]
        if alike:
            watched.likely[id(output)] = known[id(alike[0])]


def _feature(output: object, name: str) -> Tensor | None:
    try:
        return feature_of(output, name)
    except ModebridgeError:
        return None
