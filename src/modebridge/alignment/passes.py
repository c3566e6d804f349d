"""Forward passes operation by operation: the weights that each operation uses, and the path through the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from modebridge.batches import map_inputs, shapes_of
from modebridge.errors import ModebridgeError, first_line
from modebridge.nets.quirks import FAILED, plain_attention
from modebridge.types import Inputs, Params

T = TypeVar("T")

CONTRACTIONS = {"aten::convolution": (0, 1), "aten::addmm": (1, 2), "aten::mm": (0, 1), "aten::bmm": (0, 1)}
"""Operations that multiply activations with weights, with the positions of the two operands."""

Contraction: TypeAlias = tuple[tuple[str, ...], int]
"""The weights of a contraction, and how often the same weights were used before in the pass.

Identified by weights and not by position, because positions shift if the path depends on the images.
"""

Point: TypeAlias = tuple[Contraction, int | None]
"""A point in the forward pass where units can be observed: the side (0 or 1) of the operand that is not a weight, or
None for the result."""

See: TypeAlias = Callable[[Contraction, int, Tensor, Tensor], None]
"""Callback with a contraction, the side (0 or 1) of the operand that is not a weight, that operand, and the result."""


def weights_of(net: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer by name."""
    kept = net.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in kept.items() if isinstance(tensor, Tensor)}


def has_units(weight: Tensor) -> bool:
    """Whether a weight holds values of units; integers are positions and counts."""
    return weight.is_floating_point() or weight.is_complex()


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks which tensors of a pass depend only on weights, and which weights every contraction uses."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._origins: MutableMapping[Tensor, frozenset[str]] = WeakTensorKeyDictionary()
        self._met: Counter[tuple[str, ...]] = Counter()
        self._way: list[object] = []
        names: dict[int, list[str]] = {}
        for name, tensor in weights_of(net).items():
            # A tied tensor has several names.
            names.setdefault(id(tensor), []).append(name)
            self._origins[tensor] = frozenset(names[id(tensor)])

    def begin(self) -> None:
        """Start a new pass."""
        self._met.clear()
        self._way.clear()

    @property
    def way(self) -> int:
        """The path of the pass so far, as a hash of the recorded operations."""
        return hash(tuple(self._way))

    def sign(self, name: str, arguments: object, given: Sequence[Tensor], weights: frozenset[str]) -> None:
        """Record an operation: its name, shapes, weights, and its integer arguments, which determine how units move."""
        shapes = tuple(tuple(tensor.shape) for tensor in given)
        self._way.append((name, tuple(_all_of(int, arguments)), shapes, weights))

    def static(self, tensor: Tensor) -> bool:
        """Whether a tensor depends only on weights; the other operand of a product with it is an activation."""
        return tensor in self._origins

    def follow(self, given: Sequence[Tensor], results: Sequence[Tensor]) -> frozenset[str]:
        """Propagate the origins of tensors through an operation; returns the weights that its inputs depend on."""
        origins = [self._origins.get(tensor) for tensor in given]
        known = frozenset(name for names in origins if names is not None for name in names)
        constant = bool(given) and all(names is not None for names in origins)
        for result in results:
            if constant:
                self._origins[result] = known
            else:
                self._origins.pop(result, None)
        return known

    def met(self, name: str, args: tuple[Any, ...]) -> tuple[Contraction, int] | None:
        """The contraction of an operation, and the side of the activations; None if it is not a contraction."""
        if name not in CONTRACTIONS:
            return None
        origins = [self._origins.get(args[place]) for place in CONTRACTIONS[name]]
        if sum(names is None for names in origins) != 1:
            return None
        side = origins.index(None)
        weights = tuple(sorted(origins[1 - side] or ()))
        self._met[weights] += 1
        return (weights, self._met[weights] - 1), side


class _Watcher(Tracker):  # type: ignore[no-untyped-call]
    """Records the path of a pass, and calls a function for every contraction."""

    def __init__(self, net: nn.Module, see: See | None = None) -> None:
        super().__init__(net)
        self._see = see

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        met = self.met(name, args)
        given = list(tensors_in((args, kwargs)))
        out = func(*args, **(kwargs or {}))
        weights = self.follow(given, list(tensors_in(out)))
        if self._see is None:
            self.sign(name, (args, kwargs), given, weights)
        elif met is not None:
            key, side = met
            self._see(key, side, args[CONTRACTIONS[name][side]], out)
        return out


def contractions(net: nn.Module, inputs: Inputs, see: See) -> None:
    """Run a network and call `see` for every contraction of activations with weights."""
    with _Watcher(net, see):
        one_pass(net, inputs)


def signature(net: nn.Module, inputs: Inputs) -> int:
    """A hash of the path through a network: equal for passes with the same operations on the same shapes."""
    tracker = _Watcher(net)
    with tracker:
        one_pass(net, inputs)
    return tracker.way


@torch.no_grad()
def one_pass(net: nn.Module, inputs: Inputs, state: Params | None = None) -> dict[str, Tensor]:
    """All tensors that a network returns, by name, with its own weights or others; attention is not fused."""
    inputs = map_inputs(Tensor.clone, inputs)  # the next network needs the same images, even if this one works in place
    plain, by_name = ((inputs,), {}) if isinstance(inputs, Tensor) else ((), dict(inputs))
    try:
        with plain_attention():
            out = net(*plain, **by_name) if state is None else functional_call(net, (dict(state),), plain, by_name)
    except ModebridgeError:
        raise
    except FAILED as error:
        reason = first_line(error)
        raise ModebridgeError(
            f"Expected {type(net).__name__} to run on the images of data, but got {shapes_of(inputs)} and '{reason}'; "
            "check their size and dtype."
        ) from error
    return outputs_of(out)


def outputs_of(output: object, name: str = "output", depth: int = 4) -> dict[str, Tensor]:
    """All tensors in a network's output: alone, in tuples, lists or dicts, or as attributes of an object.

    >>> list(outputs_of((torch.zeros(1), {"aux": torch.ones(1), "loss": None})))
    ['output[0]', 'output[1].aux']
    """
    if isinstance(output, Tensor):
        return {name: output}
    if depth == 0:
        return {}
    parts: dict[str, object]
    if isinstance(output, tuple | list):
        names = getattr(output, "_fields", None) or [f"[{k}]" for k in range(len(output))]
        parts = dict(zip(names, output, strict=True))
    elif isinstance(output, Mapping):
        parts = {str(key): value for key, value in output.items()}
    else:
        parts = dict(getattr(output, "__dict__", {}))
    tensors: dict[str, Tensor] = {}
    for key, value in parts.items():
        tensors.update(outputs_of(value, f"{name}{key}" if key.startswith("[") else f"{name}.{key}", depth - 1))
    return tensors


@contextmanager
def as_in_training(net: nn.Module) -> Iterator[None]:
    """Training mode inside the block for networks (auxiliary heads), but not for single layers (norms, dropout)."""
    changed = [module for module in net.modules() if not module.training and any(True for _ in module.children())]
    try:
        for module in changed:
            module.training = True
        yield
    finally:
        for module in changed:
            module.training = False


def tensors_in(tree: object) -> Iterator[Tensor]:
    """The tensors in the arguments or results of an operation."""
    return _all_of(Tensor, tree)


def _all_of(kind: type[T], tree: object) -> Iterator[T]:
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from _all_of(kind, part)
    elif isinstance(tree, dict):
        yield from _all_of(kind, list(tree.values()))
