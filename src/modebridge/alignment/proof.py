"""Run networks on a few images of the data, and prove that a permuted network is the same function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from modebridge.batches import check_batch, first_batch, map_inputs, rows_of, shapes_of, take_rows
from modebridge.errors import ModebridgeError, quoting
from modebridge.modes import Mode
from modebridge.nets import frozen_copy
from modebridge.nets.quirks import FAILED, plain_attention
from modebridge.nets.running import arguments
from modebridge.types import Batch, Batches, Inputs, Params

BATCHES = 8
"""Number of batches: the path through a network may depend on the images."""

IMAGES = 16
"""Number of images per batch."""

TOLERANCE = 1e-6
"""Maximum difference relative to the largest value of an output, in float64."""

OWN_TOLERANCE = 1e-4
"""Maximum difference for networks that cannot run in float64, unless their dtype is coarser."""


def sample(data: Batches, keep: int = 0) -> tuple[list[Inputs], list[Batch]]:
    """Up to 16 images from each of the first 8 batches; and the first `keep` images with labels, in their batches.

    >>> few, kept = sample([(torch.zeros(40, 3), torch.zeros(40).long())], keep=30)
    >>> few[0].shape, kept[0][1].shape
    (torch.Size([16, 3]), torch.Size([30]))
    """
    if isinstance(data, Iterator):
        first_batch(data, "data")
    few: list[Inputs] = []
    kept: list[Batch] = []
    for item in data:
        batch = check_batch(item, "data")
        size = len(batch[1])
        if len(few) < BATCHES and size:
            few.append(take_rows(batch[0], torch.linspace(0, size - 1, min(size, IMAGES)).round().long()))
        if keep > 0 and size:
            kept.append(rows_of(batch, slice(0, keep)))
            keep -= size
        if len(few) >= BATCHES and keep <= 0:
            break
    if not few:
        first_batch([], "data")
    # Batch norm cannot estimate a variance from one image.
    return few, [batch for batch in kept if len(batch[1]) > 1]


@torch.no_grad()
def prove(net: nn.Module, before: Mode, after: Mode, inputs: Inputs | Sequence[Inputs]) -> float:
    """The largest relative difference of two modes' outputs in float64; more than rounding raises an error."""
    own, wide = frozen_copy(net), frozen_copy(net).double()
    worst = 0.0
    for batch in [inputs] if isinstance(inputs, Tensor | Mapping) else inputs:
        try:
            first, second = (_outputs(wide, mode, batch, _wide) for mode in (before, after))
        except ModebridgeError:
            # A network that cannot run in float64 is compared in its own dtype.
            first, second = (_outputs(own, mode, batch, lambda tensor: tensor) for mode in (before, after))
        difference = _apart(first, second)
        eps = max([torch.finfo(t.dtype).eps for t in first.values() if t.is_floating_point()], default=0.0)
        tolerance = TOLERANCE if eps <= torch.finfo(torch.float64).eps else max(OWN_TOLERANCE, 8 * eps)
        if not difference <= tolerance:
            raise ModebridgeError(
                f"Expected the permuted network to be the same function, but its logits differ by "
                f"{difference:.1e} of the largest (allowed: {tolerance:.0e}); check the spec if you passed one, "
                "or do not align this network."
            )
        worst = max(worst, difference)
    return worst


@torch.no_grad()
def one_pass(net: nn.Module, inputs: Inputs, state: Params | None = None) -> dict[str, Tensor]:
    """All tensors that a network returns, by name, with its own weights or others; attention is not fused."""
    plain, by_name = arguments([inputs])
    expected = f"{type(net).__name__} to run on the images of data, {shapes_of(inputs)}"
    with quoting(expected, "check their size and dtype", FAILED), plain_attention():
        return outputs_of(functional_call(net, (dict(state or {}),), tuple(plain), by_name))


def outputs_of(output: object, name: str = "output", depth: int = 4) -> dict[str, Tensor]:
    """All tensors in a network's output: alone, in tuples, lists or dicts, or as attributes of an object.

    >>> list(outputs_of((torch.zeros(1), {"aux": torch.ones(1), "loss": None})))
    ['output.0', 'output.1.aux']
    """
    if isinstance(output, Tensor):
        return {name: output}
    if isinstance(output, tuple | list):
        output = dict(zip(getattr(output, "_fields", range(len(output))), output, strict=True))
    parts = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    tensors: dict[str, Tensor] = {}
    for key, value in parts.items() if depth else ():
        tensors |= outputs_of(value, f"{name}.{key}", depth - 1)
    return tensors


def _outputs(net: nn.Module, mode: Mode, inputs: Inputs, cast: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    return one_pass(net, map_inputs(cast, inputs), {name: cast(tensor) for name, tensor in mode.state.items()})


def _apart(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    if first.keys() != second.keys() or any(first[name].shape != second[name].shape for name in first):
        return math.inf
    worst = 0.0
    for name, given in first.items():
        if given.numel():
            a, b = (tensor.to(torch.complex128) for tensor in (given, second[name]))
            # Infinities and NaN at the same positions count as equal.
            same = (a == b) | (a.isnan() & b.isnan())
            difference = (a - b).abs().masked_fill(same, 0.0).max()
            scale = a.abs()[a.isfinite()].max() if bool(a.isfinite().any()) else difference
            relative = float(difference / scale.clamp_min(1e-12))
            worst = math.inf if math.isnan(relative) else max(worst, relative)
    return worst


def _wide(tensor: Tensor) -> Tensor:
    floats = tensor.is_floating_point() or tensor.is_complex()
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64)) if floats else tensor
