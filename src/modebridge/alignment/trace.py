"""Find the units of a network that can be permuted: run it and follow the axes of every tensor."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from modebridge.alignment.groups import NATURAL, Axes, Axis, Groups, Point, fixed, free, groups_of, pin, resolve
from modebridge.alignment.proof import one_pass
from modebridge.alignment.rules import Call, apply_rule, tensors_in
from modebridge.nets import frozen_copy
from modebridge.types import Inputs

PRODUCTS = {"aten::convolution": (0, 1), "aten::addmm": (1, 2), "aten::mm": (0, 1), "aten::bmm": (0, 1)}
"""Operations that multiply activations with weights, with the positions of the two operands."""

ITSELF = "the network itself"


@torch.no_grad()
def trace(net: nn.Module, batches: Sequence[Inputs]) -> Groups:
    """The units that can be permuted, from a trace of a copy of `net` in evaluation mode.

    Every batch (of at least two images: axes of size 1 cannot be followed) is run, since the path through a network may
    depend on the images. Weights that are never used pin all axes that they might be applied to.
    """
    tracer = _Tracer(frozen_copy(net))
    for inputs in batches:
        tracer.run(inputs)
    return tracer.groups()


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows through a pass which tensors were computed from weights alone, and shows where activations meet them.

    Every point where units can be observed is passed to `see`, with the activations there.
    """

    def __init__(self, net: nn.Module, see: Callable[[Point, Tensor], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.see = see
        self.named = {k: v for k, v in net.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}
        self.sources: MutableMapping[Tensor, frozenset[str]] = WeakTensorKeyDictionary()
        self._uses: Counter[tuple[str, ...]] = Counter()
        for tensor in self.named.values():
            # A tied tensor has several names.
            self.sources[tensor] = frozenset(name for name, other in self.named.items() if other is tensor)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = list(tensors_in((args, kwargs)))
        sources = [self.sources.get(tensor) for tensor in given]
        product = self._product(func._schema.name, args)
        out = self.call(func, args, kwargs or {}, given)
        for result in tensors_in(out):
            if given and None not in sources:
                self.sources[result] = frozenset().union(*filter(None, sources))
            else:
                self.sources.pop(result, None)
        if product is not None:
            weights, activations = product
            self.see((weights, self._uses[weights], True), activations)
            self.see((weights, self._uses[weights], False), out)
            self._uses[weights] += 1
        return out

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Sequence[Tensor]) -> Any:
        """Run an operation on the given tensors."""
        return func(*args, **kwargs)

    def _product(self, name: str, args: tuple[Any, ...]) -> tuple[tuple[str, ...], Tensor] | None:
        """The weights and the activations that an operation multiplies."""
        operands = [args[place] for place in PRODUCTS.get(name, ())]
        weights = [self.sources[operand] for operand in operands if operand in self.sources]
        activations = [operand for operand in operands if operand not in self.sources]
        return (tuple(sorted(weights[0])), activations[0]) if weights and activations else None


class _Tracer(Watch):  # type: ignore[no-untyped-call]
    """Gives axes to the results of every operation."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net, lambda point, tensor: self._points.setdefault(point, self._axes_of(tensor)))
        self._net = net
        self._points: dict[Point, Axes] = {}
        self._axes: MutableMapping[Tensor, Axes] = WeakTensorKeyDictionary()
        self._ran: set[str] = set()
        # The modules that are running, and for each module the axes that its own code has access to.
        self._running = [""]
        self._visible: defaultdict[str, set[Axis]] = defaultdict(set)
        for tensor in self.named.values():
            self._axes[tensor] = tuple(map(free, tensor.shape)) if _has_units(tensor) else fixed(tensor.shape)

    def run(self, inputs: Inputs) -> None:
        self._uses.clear()
        for tensor in tensors_in(inputs):
            self._axes[tensor] = fixed(tensor.shape)
        with self._whereabouts(), self:
            returned = one_pass(self._net, inputs)
        logits = returned.get("output.logits", next(iter(returned.values()), None))
        for name, tensor in returned.items():
            # A feature returned with the logits is part of the function, so its units must keep their order.
            is_feature = logits is not None and tensor.shape != logits.shape
            for axis in self._axes_of(tensor):
                pin(axis, (f"being returned as {name}", ITSELF) if is_feature else NATURAL)

    def groups(self) -> Groups:
        """What can be permuted; unused weights pin all axes that the code around them could apply them to."""
        for name, tensor in self.named.items():
            if name not in self._ran and tensor.numel() > 1 and _has_units(tensor):
                idle, owner = name, name.rpartition(".")[0]
                while owner and owner not in self._visible:
                    idle, owner = owner, owner.rpartition(".")[0]
                for axis in (*self._axes[tensor], *self._visible[owner]):
                    pin(axis, ("weights that never ran", idle))
        return groups_of({name: self._axes[tensor] for name, tensor in self.named.items()}, self._points)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Sequence[Tensor]) -> Any:
        place = self._running[-1]
        # Read before the call: one that works in place may change the shape of its argument.
        before = {id(tensor): self._axes_of(tensor) for tensor in given}
        out = func(*args, **kwargs)
        results = list(tensors_in(out))
        why = (func._schema.name, place or ITSELF)
        axes = apply_rule(Call(func, args, kwargs, given, before, results, why))
        if axes is None:
            met = [block.units for labels in before.values() for axis in labels for block in resolve(axis)]
            # What is computed from pixels alone is as good as pixels.
            natural = met and all(units.pinned for units in met)
            for labels in before.values():
                for axis in labels:
                    pin(axis, why)
            axes = [fixed(result.shape, NATURAL if natural else why) for result in results]
        for result, labels in zip(results, axes, strict=True):
            self._axes[result] = labels
        self._ran.update(*(self.sources.get(tensor, ()) for tensor in given))
        self._show(place, [*given, *results])
        return out

    def _axes_of(self, tensor: Tensor) -> Axes:
        """The axes of a tensor; those of constants from elsewhere are pinned."""
        known = self._axes.get(tensor)
        if known is None or len(known) != tensor.dim():
            known = self._axes[tensor] = fixed(tensor.shape, ("a constant", self._running[-1] or ITSELF))
        return known

    def _show(self, module: str, tensors: Iterable[Tensor]) -> None:
        self._visible[module].update(
            axis for tensor in tensors if tensor not in self.sources for axis in self._axes_of(tensor)
        )

    @contextmanager
    def _whereabouts(self) -> Iterator[None]:
        """Follow the modules that are running, and the tensors that each is given and returns."""
        running = self._running = [""]

        def enter(name: str) -> Callable[..., None]:
            def entered(_: nn.Module, args: object, kwargs: object) -> None:
                given = list(tensors_in((args, kwargs)))
                self._show(running[-1], given)
                self._show(name, given)
                running.append(name)

            return entered

        def leave(_: nn.Module, args: object, out: object) -> None:
            running.pop()
            self._show(running[-1], tensors_in(out))

        with ExitStack() as stack:
            for name, module in self._net.named_modules():
                stack.callback(module.register_forward_pre_hook(enter(name), with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(leave).remove)
            yield


def _has_units(weight: Tensor) -> bool:
    """Whether a weight holds values of units; integers are positions and counts."""
    return weight.is_floating_point() or weight.is_complex()
