"""Find the units of a network that can be renumbered: run it once and watch the axes of every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from modebridge.alignment.axes import Axis, pin
from modebridge.alignment.operations import OPERATIONS, Labels
from modebridge.nets import call, skeleton
from modebridge.nets.flops import plain_attention
from modebridge.types import Inputs

__all__ = ["Point", "Trace", "contractions", "trace"]

CONTRACTIONS = {"aten::convolution": (0, 1), "aten::addmm": (1, 2), "aten::mm": (0, 1), "aten::bmm": (0, 1)}
"""Operations in which units meet weights: the positions of the two operands."""


@dataclass(frozen=True)
class Point:
    """A place in the forward pass where units can be seen.

    Args:
        number: of the contraction, counted from 0.
        side: 0 or 1: the operand that is not a weight; None: the result.
        axes: of the tensor there.
    """

    number: int
    side: int | None
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Trace:
    """What a forward pass showed.

    Args:
        axes: of every parameter and persistent buffer, by name.
        points: where units can be seen.
        stopped: operations that are not understood and keep their units in place: name, where.
    """

    axes: dict[str, list[Axis]]
    points: list[Point]
    stopped: list[tuple[str, str]]


@torch.no_grad()
def trace(net: nn.Module, inputs: Inputs) -> Trace:
    """Run a copy of `net` in evaluation mode and watch.

    Args:
        net: any module that maps inputs to logits.
        inputs: a small batch.
    """
    bare = skeleton(net)
    watcher = _Watcher(bare)
    kept = bare.state_dict(keep_vars=True)
    named = {name: tensor for name, tensor in kept.items() if isinstance(tensor, Tensor)}
    for tensor in named.values():
        watcher.start(tensor)
    with plain_attention(), _whereabouts(bare, watcher), watcher:
        logits = call(bare, inputs)
    for axis in watcher.labels(logits):
        pin(axis)
    return Trace({name: list(watcher.labels(t)) for name, t in named.items()}, watcher.points, watcher.stopped)


def contractions(net: nn.Module, inputs: Inputs, see: Callable[[int, Sequence[Tensor], Tensor], None]) -> None:
    """Run a network and show every contraction: its number, its two operands and its result."""
    with torch.no_grad(), plain_attention(), _Shower(see):
        call(net, inputs)


@contextmanager
def _whereabouts(net: nn.Module, watcher: _Watcher) -> Iterator[None]:
    """Tell the watcher which submodule is running, for the words of a refusal."""

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: watcher.where.append(name)

    with ExitStack() as stack:
        for name, module in net.named_modules():
            if name:
                stack.callback(module.register_forward_pre_hook(enter(name)).remove)
                stack.callback(module.register_forward_hook(lambda *_: watcher.where.pop() and None).remove)
        yield


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Labels the result of every operation with axes; see `operations` for the rules."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.net = net
        self.where: list[str] = []
        self.points: list[Point] = []
        self.stopped: list[tuple[str, str]] = []
        self._labels: MutableMapping[Tensor, Labels] = WeakTensorKeyDictionary()
        # Tensors made of weights and constants alone: what meets one of them in a product is a unit's activation.
        self._static: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()
        self._contraction = 0

    def start(self, tensor: Tensor) -> None:
        """A weight: free until something pins it."""
        # Whole numbers are positions and counts, which name places instead of filling them.
        fixed = not tensor.is_floating_point()
        self._labels[tensor] = tuple(Axis(size, pinned=fixed) for size in tensor.shape)
        self._static[tensor] = True

    def labels(self, tensor: Tensor) -> Labels:
        """The axes of a tensor; one that comes from outside (images, constants) has its places fixed."""
        known = self._labels.get(tensor)
        if known is None or len(known) != tensor.dim():
            known = tuple(Axis(size, pinned=True) for size in tensor.shape)
            self._labels[tensor] = known
        return known

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        given = list(_tensors((args, kwargs)))
        # Looked at beforehand: an operation in place must not be taken for its own input.
        before = [self.labels(tensor) for tensor in given]
        static = all(self._static.get(tensor, False) for tensor in given)
        out = func(*args, **kwargs)
        results = list(_tensors(out))
        # Of activations only: a kernel's own places are pinned by every convolution.
        free = [
            axis
            for tensor, labels in zip(given, before, strict=True)
            if not self._static.get(tensor, False)
            for axis in labels
            # The 3 of query, key and value is no unit: choosing one of them is what it is for.
            if axis.size > 1 and not axis.root.pinned and axis.root.family is None
        ]
        axes = self._by_rule(name, args, kwargs, out)
        if axes is None:
            for axis in (axis for labels in before for axis in labels):
                self._stop(name, axis)
        elif any(axis.root.pinned for axis in free):
            self._note(name)
        if axes is None:
            axes = [tuple(Axis(size, pinned=True) for size in result.shape) for result in results]
        for result, found in zip(results, axes, strict=True):
            self._labels[result] = found
            self._static[result] = static and bool(given)
        if name in CONTRACTIONS:
            self._see(name, args, results[0])
        return out

    def _by_rule(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> list[Labels] | None:
        rule = OPERATIONS.get(name.removesuffix("_") if name not in OPERATIONS else name)
        try:
            return rule(self.labels, args, kwargs, out) if rule is not None else None
        # A use of the operation that its rule was not written for: not understood, like any other.
        except (TypeError, IndexError, ValueError, KeyError, StopIteration):
            return None

    def _note(self, name: str) -> None:
        place = (name, self.where[-1] if self.where else "the network itself")
        if place not in self.stopped:
            self.stopped.append(place)

    def _stop(self, name: str, axis: Axis) -> None:
        if axis.size > 1 and not axis.root.pinned:
            self._note(name)
            pin(axis)

    def _see(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        number, self._contraction = self._contraction, self._contraction + 1
        operands = [args[place] for place in CONTRACTIONS[name]]
        static = [bool(self._static.get(tensor, False)) for tensor in operands]
        if static.count(True) == 1:
            side = static.index(False)
            self.points.append(Point(number, side, tuple(self.labels(operands[side]))))
            self.points.append(Point(number, None, tuple(self.labels(result))))


class _Shower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, see: Callable[[int, Sequence[Tensor], Tensor], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._see = see
        self._number = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        places = CONTRACTIONS.get(func._schema.name)
        if places is not None:
            self._see(self._number, [args[place] for place in places], out)
            self._number += 1
        return out


def _tensors(tree: object) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
