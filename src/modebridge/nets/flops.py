"""Count the multiply-adds of a forward pass without computing it, on a copy of the module without weights."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from modebridge.batches import flatten, map_inputs
from modebridge.errors import ModebridgeError, first_line
from modebridge.nets.running import Tapped, arguments
from modebridge.types import Inputs

__all__ = ["Shape", "counting", "examples", "feature_shapes", "invoke", "on_copy", "plain_attention", "zeros"]

Shape: TypeAlias = tuple[int, ...]
"""Shape of one image or feature, without the batch axis."""

T = TypeVar("T")

FAILED = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError)
"""Exceptions that modules raise for unsuitable inputs."""


@contextmanager
def counting() -> Iterator[Callable[[], float]]:
    """Count the multiply-adds of convolutions, matrix products and vector products inside the block.

    Yields a function that returns the count so far.

    >>> with counting() as counted:
    ...     _ = nn.Linear(3, 5)(torch.zeros(1, 3))
    >>> counted()
    15.0
    """
    with plain_attention(), FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as counter:
        # torch counts a multiply-add as two operations.
        yield lambda: float(counter.get_total_flops()) / 2


def _products(first: Shape, second: Shape, *_: object, **__: object) -> int:
    """FLOPs of a matrix or vector times a vector: each element of the first is used once."""
    return 2 * math.prod(first)


def _distances(first: Shape, second: Shape, *_: object, **__: object) -> int:
    """FLOPs of distances between all rows of (..., P, M) and (..., R, M): P R M, whatever the norm and algorithm."""
    return 2 * math.prod(_broadcast(first[:-2], second[:-2])) * first[-2] * second[-2] * first[-1]


def _broadcast(*shapes: Sequence[int]) -> Shape:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _own_distances(rows: Shape, *_: object, **__: object) -> int:
    return 2 * math.comb(rows[0], 2) * rows[1]


def _added(_: Shape, first: Shape, second: Shape, *__: object, **___: object) -> int:
    """FLOPs of a product that is added to a tensor: the size of the first factor times the columns of the second."""
    return 2 * math.prod(first) * (second[-1] if len(second) > 1 else 1)


def _bilinear(
    x: Shape,
    weight: Shape,
    y: Shape,
    in_x: Sequence[int],
    in_weight: Sequence[int],
    in_y: Sequence[int],
    *_: object,
    **__: object,
) -> int:
    """FLOPs of nn.Bilinear: one multiply-add per weight and image. torch runs it as a sum over inserted axes."""
    shapes = []
    for shape, places in ((x, in_x), (weight, in_weight), (y, in_y)):
        rest = iter(shape)
        shapes.append([1 if axis in places else next(rest) for axis in range(len(shape) + len(places))])
    return 2 * math.prod(_broadcast(*shapes))


_UNCOUNTED: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mv: _products,
    torch.ops.aten.dot: _products,
    torch.ops.aten.vdot: _products,
    torch.ops.aten.addmv: _added,
    torch.ops.aten.addbmm: _added,
    torch.ops.aten._trilinear: _bilinear,
    torch.ops.aten._cdist_forward: _distances,
    torch.ops.aten._euclidean_dist: _distances,
    torch.ops.aten._pdist_forward: _own_distances,
}
"""Products that torch's counter ignores, in its units: two operations per multiply-add."""

_ATTENTION = threading.RLock()


@contextmanager
def plain_attention() -> Iterator[None]:
    """Turn off fused attention, which hides matrix products from the counter in evaluation mode or on a CPU."""
    # The switches are global: of two threads here, the last one would restore what the first one had set.
    with _ATTENTION:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def feature_shapes(net: nn.Module, image: Sequence[int] | Inputs, taps: Sequence[str]) -> dict[str, Shape]:
    """The shape of the feature at each tap, without the batch axis; `image` as in `examples`.

    >>> from modebridge.nets import resnet
    >>> feature_shapes(resnet("cifar10"), (3, 32, 32), ["layers.12"])
    {'layers.12': (128, 8, 8)}
    """

    def read(bare: nn.Module, inputs: Sequence[Inputs]) -> dict[str, Shape]:
        _, features = Tapped(bare, taps)(inputs[0])
        return {tap: tuple(feature.shape[1:]) for tap, feature in features.items()}

    return on_copy(net, examples(net, image), read) if taps else {}


def examples(module: nn.Module, *given: Sequence[int] | Inputs) -> list[Inputs]:
    """A batch of one for each input, which is given as a shape without the batch axis or as a batch of any size."""
    return [
        map_inputs(lambda tensor: tensor[:1], one) if isinstance(one, Tensor | Mapping) else zeros(module, one)[0]
        for one in given
    ]


def zeros(module: nn.Module, *shapes: Sequence[int]) -> list[Tensor]:
    """A batch of one for each shape, in the module's dtype, on the meta device."""
    parameter = next(iter(module.parameters()), torch.zeros(()))
    dtype = parameter.dtype if parameter.is_floating_point() else torch.float32
    return [torch.empty(1, *shape, dtype=dtype, device="meta") for shape in shapes]


def invoke(module: nn.Module, inputs: Sequence[Inputs]) -> object:
    """The output of a module for inputs that are tensors, passed in order, or dicts, passed by name."""
    plain, by_name = arguments(inputs)
    return module(*plain, **by_name)


def on_copy(
    module: nn.Module,
    inputs: Sequence[Inputs],
    work: Callable[[nn.Module, Sequence[Inputs]], T],
    *,
    weightless: bool = True,
) -> T:
    """Call a function on a weightless copy of a module, or on a real copy if a weightless one cannot run.

    `work` gets the copy, in evaluation mode, and copies of the inputs on its device (zeros, if they have no values); it
    may be called twice. For one small batch a weightless copy takes longer than the computation itself.
    """
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    try:
        with torch.inference_mode(False), torch.no_grad(), plain_attention():
            try:
                if weightless:
                    meta = torch.device("meta")
                    return work(_weightless(module), [map_inputs(partial(_moved, meta), given) for given in inputs])
            except ModebridgeError:
                raise
            except FAILED:  # the module reads values, or holds tensors that are not buffers
                pass
            return work(copy.deepcopy(module).eval(), [map_inputs(partial(_moved, device), given) for given in inputs])
    except ModebridgeError:
        raise
    except FAILED as error:
        valued = any(tensor.device.type != "meta" for given in inputs for tensor in flatten(given).values())
        shapes = ", ".join(str(tuple(tensor.shape)) for given in inputs for tensor in flatten(given).values())
        fix = "check its shape and dtype" if valued else "give the shape of one image or feature without the batch axis"
        raise ModebridgeError(
            f"Expected {type(module).__name__} to run on {'an example' if valued else 'zeros'} of shape {shapes}, "
            f"but got '{first_line(error)}'; {fix}."
        ) from error


def _moved(device: torch.device, tensor: Tensor) -> Tensor:
    if tensor.device.type == "meta":
        return torch.zeros_like(tensor, device=device)
    # Cloned: a network may change its input in place.
    return tensor.detach().to(device, copy=True)


def _weightless(module: nn.Module) -> nn.Module:
    # deepcopy uses the objects in its memo, so the weights are never copied, not even temporarily.
    memo: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False) for p in module.parameters()
    }
    memo.update({id(b): torch.empty_like(b, device="meta") for b in module.buffers()})
    return copy.deepcopy(module, memo).eval()
