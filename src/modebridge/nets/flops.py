"""Watch one forward pass: its multiply-adds, and what every submodule returned. Nothing needs to be computed for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from modebridge.batches import take_rows
from modebridge.errors import ModebridgeError
from modebridge.nets.quirks import on_copy, plain_attention
from modebridge.nets.running import Tapped, arguments, call, feature_of
from modebridge.types import Inputs

Shape: TypeAlias = tuple[int, ...]
"""Shape of one image or feature, without the batch axis."""


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


def _added(_: Shape, first: Shape, second: Shape, *__: object, **___: object) -> int:
    """FLOPs of a product that is added to a tensor: the size of the first factor times the columns of the second."""
    return 2 * math.prod(first) * (second[-1] if len(second) > 1 else 1)


def _recurrent(steps: Shape, *given: Any, **_: object) -> int:
    """FLOPs of a fused recurrent layer: all its matrices (a list, or the first two tensors) at each step and image."""
    weights = given[0] if isinstance(given[0], list) else given[:2]
    return 2 * math.prod(steps[:-1]) * sum(math.prod(weight) for weight in weights if len(weight) == 2)


_UNCOUNTED: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mv: _products,
    torch.ops.aten.dot: _products,
    torch.ops.aten.vdot: _products,
    torch.ops.aten.addmv: _added,
    torch.ops.aten.addbmm: _added,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent,
    torch.ops.aten._cudnn_rnn: _recurrent,
}
"""Products that torch's counter ignores, in its units: two operations per multiply-add."""


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
    return [take_rows(one, slice(1)) if isinstance(one, Tensor | Mapping) else zeros(module, one)[0] for one in given]


def zeros(module: nn.Module, *shapes: Sequence[int]) -> list[Tensor]:
    """A batch of one for each shape, in the module's dtype, on the meta device."""
    parameter = next(iter(module.parameters()), torch.zeros(()))
    dtype = parameter.dtype if parameter.is_floating_point() else torch.float32
    return [torch.empty(1, *shape, dtype=dtype, device="meta") for shape in shapes]


def invoke(module: nn.Module, inputs: Sequence[Inputs]) -> object:
    """The output of a module for inputs that are tensors, passed in order, or dicts, passed by name."""
    plain, by_name = arguments(inputs)
    return module(*plain, **by_name)


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
    # Shapes of features at layers with channels on the first axis, and on the last.
    first: set[Shape] = field(default_factory=set)
    last: set[Shape] = field(default_factory=set)

    def channels_last(self, shape: Shape) -> bool:
        """Whether a feature is (H, W, C): by the layers that read such a map, otherwise by which axes are equal."""
        if (shape in self.first) != (shape in self.last):
            return shape in self.last
        height, width, channels = shape
        return height == width != channels


def watch(net: nn.Module, example: Inputs, *, count: bool = True) -> ForwardTrace:
    """Run `net` once with a temporary hook on every submodule; counting FLOPs takes longer."""
    watched = ForwardTrace()

    def reader(name: str, counted: Callable[[], float]) -> Callable[[nn.Module, tuple[Any, ...], object], None]:
        def read(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
            try:
                feature = feature_of(output, name)
            except ModebridgeError:
                feature = None
            _axes(module, args, feature, watched)
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
    if watched.logits.dim() < 2:
        raise ModebridgeError(
            f"Expected the network to return logits of (batch, classes), but got {tuple(watched.logits.shape)}; "
            "wrap it in a module that does."
        )
    return watched


def _axes(module: nn.Module, args: tuple[Any, ...], output: Tensor | None, watched: ForwardTrace) -> None:
    """Record the channel axis of features, for layers that define it."""
    given = args[0] if args and isinstance(args[0], Tensor) else torch.empty(0)
    shape = tuple(given.shape[1:])
    if len(shape) == 3 and isinstance(module, ON_MAPS):
        watched.first.add(shape)
    elif len(shape) == 3 and (
        isinstance(module, nn.Linear)
        # timm's LayerNorm2d is a subclass, but normalizes the first axis.
        or (isinstance(module, nn.LayerNorm) and math.prod(module.normalized_shape) == shape[-1])
    ):
        watched.last.add(shape)
    if isinstance(module, ON_SEQUENCES):
        watched.first |= {tuple(one.shape[1:]) for one in (given, output) if one is not None and one.dim() == 3}
