"""Find the units of a network that can be permuted: run it and track the axes of every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from modebridge.alignment.axes import Axis, fixed, pin
from modebridge.alignment.groups import Groups, groups_of, leaves_of
from modebridge.alignment.operations import OPERATIONS
from modebridge.alignment.passes import (
    CONTRACTIONS,
    Point,
    Tracker,
    as_in_training,
    has_units,
    one_pass,
    signature,
    tensors_in,
    weights_of,
)
from modebridge.alignment.reshaping import Labels
from modebridge.errors import ModebridgeError
from modebridge.nets import frozen_copy
from modebridge.types import Inputs

ITSELF = "the network itself"


@torch.no_grad()
def trace(net: nn.Module, batches: Sequence[Inputs]) -> Groups:
    """The units that can be permuted, from a trace of a copy of `net` in evaluation mode.

    It is traced in training mode too if some weights are not used otherwise. Every batch (of at least two images: axes
    of size 1 cannot be tracked) is run, since the path through a network may depend on the images; one that takes a
    known path adds nothing. Weights that are never used pin all axes that they might be applied to.
    """
    bare = frozen_copy(net)
    tracer = _Tracer(bare)
    ways: set[int] = set()
    for given in batches:
        tracer.run(given, ways)
    unseen = len(tracer.missing())
    if unseen:
        # Heads that are used only in training may need other images than these: then they count as unused weights.
        ways = set()
        with as_in_training(bare), suppress(ModebridgeError):
            for given in batches:
                tracer.run(given, ways)
    training = len(tracer.missing()) < unseen
    tracer.pin_missing()
    axes = {name: tracer.labels(tensor) for name, tensor in tracer.named.items()}
    return groups_of(axes, tracer.points, tracer.stopped(), training)


class _Tracer(Tracker):  # type: ignore[no-untyped-call]
    """Labels the result of every operation with axes; see `operations` for the rules."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.net = net
        self.named = weights_of(net)
        self.points: dict[Point, Labels] = {}
        self._labels: MutableMapping[Tensor, Labels] = WeakTensorKeyDictionary()
        self._ran: set[str] = set()
        self._running: set[str] = set()
        self._notes: dict[tuple[str, str], list[Axis]] = {}
        # The modules that are running, and for each module the axes that its own code has access to.
        self._where: list[str] = []
        self._visible: dict[str, dict[int, Axis]] = {}
        for tensor in self.named.values():
            self._labels[tensor] = tuple(Axis(size, pinned=not has_units(tensor)) for size in tensor.shape)

    def run(self, inputs: Inputs, ways: set[int]) -> None:
        """Trace one pass, unless its path through the network is already known."""
        if ways and signature(self.net, inputs) in ways:
            return
        self.begin()
        self._running, self._where = set(), []
        with _whereabouts(self.net, self._where, self._see_tensors), self:
            returned = one_pass(self.net, inputs)
        ways.add(self.way)
        logits = returned.get("output.logits", next(iter(returned.values()), None))
        for name, tensor in returned.items():
            if logits is not None and tensor.shape != logits.shape:
                # A feature returned with the logits is part of the function, so its units must keep their order.
                self._stop(self.labels(tensor), f"being returned as {name}", ITSELF)
            for axis in self.labels(tensor):
                pin(axis)
        # Not reached by a pass that failed: the further use of its weights is unknown.
        self._ran |= self._running

    def missing(self) -> list[str]:
        """The weights that no pass has used and that have an order to keep."""
        return [
            name
            for name, tensor in self.named.items()
            if name not in self._ran and tensor.numel() > 1 and has_units(tensor)
        ]

    def pin_missing(self) -> None:
        """Pin the axes of unused weights, and all axes that the surrounding code could apply them to."""
        for name in self.missing():
            owner = name.rpartition(".")[0]
            while owner and owner not in self._visible:
                owner = owner.rpartition(".")[0]
            reach = [*self._labels[self.named[name]], *self._visible.get(owner, {}).values()]
            self._stop(reach, "weights that never ran", self._idle_part(name))

    def _idle_part(self, name: str) -> str:
        """The outermost module around a weight in which nothing ran: 'aux1' and not 'aux1.conv.weight'."""
        steps = name.split(".")
        parts = (".".join(steps[:k]) for k in range(1, len(steps)))
        return next((part for part in parts if not any(ran.startswith(f"{part}.") for ran in self._ran)), name)

    def stopped(self) -> list[tuple[str, str]]:
        """What keeps units in place, counting only axes of weights; positions of a mask are not units."""
        units = {
            id(leaf)
            for tensor in self.named.values()
            if has_units(tensor)
            for axis in self._labels[tensor]
            for leaf in leaves_of(axis)
            if leaf.pinned and leaf.size > 1
        }
        return [
            place
            for place, axes in self._notes.items()
            if any(id(leaf) in units for axis in axes for leaf in leaves_of(axis))
        ]

    def labels(self, tensor: Tensor) -> Labels:
        """The axes of a tensor; those of external tensors (images, constants) are pinned."""
        known = self._labels.get(tensor)
        if known is None or len(known) != tensor.dim():
            known = self._labels[tensor] = fixed(tensor.shape)
        return known

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        given = list(tensors_in((args, kwargs)))
        # Read before the call: the result of an in-place operation must not be mistaken for its input.
        before = [self.labels(tensor) for tensor in given]
        # Only of activations: every convolution pins the spatial axes of its kernel.
        free = [
            axis
            for tensor, labels in zip(given, before, strict=True)
            if not self.static(tensor)
            for axis in labels
            # The 3 of query, key and value is not an axis of units: it exists to be selected from.
            if axis.size > 1 and not axis.root.pinned and axis.root.family is None
        ]
        met = self.met(name, args)
        out = func(*args, **kwargs)
        results = list(tensors_in(out))
        axes = self._by_rule(name, args, kwargs, out, results)
        place = self._where[-1] if self._where else ""
        if axes is None:
            self._stop([axis for labels in before for axis in labels], name, place or ITSELF)
            axes = [fixed(result.shape) for result in results]
        elif any(axis.root.pinned for axis in free):
            self._note([axis for axis in free if axis.root.pinned], name, place or ITSELF)
        for result, labels in zip(results, axes, strict=True):
            self._labels[result] = labels
        weights = self.follow(given, results)
        self._running |= weights
        self.sign(name, (args, kwargs), given, weights)
        self._see_tensors(place, [*given, *results])
        if met is not None:
            key, side = met
            operand = args[CONTRACTIONS[name][side]]
            self.points.setdefault((key, side), self.labels(operand))
            self.points.setdefault((key, None), self.labels(results[0]))
        return out

    def _by_rule(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, results: Sequence[Tensor]
    ) -> list[Labels] | None:
        rule = OPERATIONS.get(name.removesuffix("_") if name not in OPERATIONS else name)
        try:
            axes = rule(self.labels, args, kwargs, out) if rule is not None else None
        # The rule does not support this use of the operation.
        except (TypeError, IndexError, ValueError, KeyError, AttributeError, StopIteration):
            return None
        sizes = axes is not None and [[axis.size for axis in labels] for labels in axes]
        return axes if sizes == [list(result.shape) for result in results] else None

    def _see_tensors(self, module: str, tensors: Iterable[Tensor]) -> None:
        visible = self._visible.setdefault(module, {})
        for tensor in tensors:
            if not self.static(tensor):
                visible.update({id(axis): axis for axis in self.labels(tensor)})

    def _note(self, axes: Sequence[Axis], name: str, where: str) -> None:
        self._notes.setdefault((name, where), []).extend(axes)

    def _stop(self, axes: Sequence[Axis], name: str, where: str) -> None:
        free = [axis for axis in axes if axis.size > 1 and not axis.root.pinned]
        if free:
            self._note(free, name, where)
        for axis in free:
            pin(axis)


@contextmanager
def _whereabouts(net: nn.Module, where: list[str], see: Callable[[str, Iterable[Tensor]], None]) -> Iterator[None]:
    """Track the modules that are running, and the input and output tensors of each."""

    def enter(name: str) -> Callable[..., None]:
        def entered(_: nn.Module, args: object, kwargs: object) -> None:
            given = list(tensors_in((args, kwargs)))
            if where:
                see(where[-1], given)
            see(name, given)
            where.append(name)

        return entered

    def leave(_: nn.Module, args: object, out: object) -> None:
        where.pop()
        if where:
            see(where[-1], tensors_in(out))

    with ExitStack() as stack:
        for name, module in net.named_modules():
            stack.callback(module.register_forward_pre_hook(enter(name), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        yield
