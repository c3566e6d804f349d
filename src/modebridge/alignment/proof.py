"""A few images of the data, on which a permuted network is verified to be the same function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from modebridge.alignment.passes import as_in_training, one_pass
from modebridge.batches import check_batch, first_batch, flatten, map_inputs, rows_of, take_rows, unflatten
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import frozen_copy
from modebridge.types import Batch, Batches, Inputs

BATCHES = 8
"""Number of batches: the path through a network may depend on the images."""

IMAGES = 16
"""Number of images per batch."""


def sample(data: Batches, hold: int = 0) -> tuple[list[Inputs], list[Batch]]:
    """Up to 16 images from each of the first 8 batches; and the first `hold` images with labels, in their batches.

    >>> looked, held = sample([(torch.zeros(40, 3), torch.zeros(40).long())], hold=30)
    >>> looked[0].shape, held[0][1].shape
    (torch.Size([16, 3]), torch.Size([30]))
    """
    if isinstance(data, Iterator):
        first_batch(data, "data")
    looked: list[Inputs] = []
    held: list[Batch] = []
    count = 0
    for item in data:
        batch = check_batch(item, "data")
        size = len(batch[1])
        if len(looked) < BATCHES and size:
            looked.append(take_rows(batch[0], torch.linspace(0, size - 1, min(size, IMAGES)).round().long()))
        if count < hold and size:
            held.append(rows_of(batch, slice(0, hold - count)))
            count += len(held[-1][1])
        if len(looked) >= BATCHES and count >= hold:
            break
    if not looked:
        first_batch([], "data")
    return looked, _without_lone_images(held)


def _without_lone_images(batches: list[Batch]) -> list[Batch]:
    """Join a batch of one image to its neighbour: batch norm cannot estimate a variance from one image."""
    joined: list[Batch] = []
    for batch in batches:
        joined[-1:] = [*joined[-1:], batch] if not joined or len(joined[-1][1]) > 1 else _join(joined[-1], batch)
    if len(joined) > 1 and len(joined[-1][1]) == 1:
        joined[-2:] = _join(joined[-1], joined[-2])
    return joined


def _join(lone: Batch, other: Batch) -> list[Batch]:
    """Both as one batch, or only the other one if the shapes of their images differ."""
    image, inputs = flatten(lone[0]), flatten(other[0])
    if {name: t.shape[1:] for name, t in image.items()} != {name: t.shape[1:] for name, t in inputs.items()}:
        return [other]
    joined = {name: torch.cat([tensor, image[name]]) for name, tensor in inputs.items()}
    return [(unflatten(joined), torch.cat([other[1], lone[1]]))]


TOLERANCE = 1e-6
"""Maximum difference relative to the largest value of an output, in float64."""

OWN_TOLERANCE = 1e-4
"""Maximum difference for networks that cannot run in float64, unless their dtype is coarser."""


@torch.no_grad()
def prove(
    net: nn.Module, before: Mode, after: Mode, inputs: Inputs | Sequence[Inputs], *, training: bool = False
) -> float:
    """The largest difference of two modes' outputs relative to the largest value of each output, in float64.

    Raises an error if any output on any batch differs by more than rounding. With `training`, outputs in training mode
    (auxiliary logits) are compared too, unless they are random.
    """
    batches = [inputs] if isinstance(inputs, Tensor | Mapping) else list(inputs)
    worst = 0.0
    for batch in batches:
        for mode in (False, True) if training else (False,):
            try:
                difference, tolerance = _difference(frozen_copy(net).double(), before, after, batch, mode, _wide)
            except ModebridgeError:
                # A network that cannot run in float64 is compared in its own dtype.
                difference, tolerance = _difference(frozen_copy(net), before, after, batch, mode, lambda tensor: tensor)
            if not difference <= tolerance:
                raise ModebridgeError(
                    f"Expected the permuted network to be the same function, but its logits differ by "
                    f"{difference:.1e} of the largest (allowed: {tolerance:.0e}); check the spec if you passed one, "
                    "or do not align this network."
                )
            worst = max(worst, difference)
    return worst


def _difference(
    net: nn.Module, before: Mode, after: Mode, inputs: Inputs, training: bool, cast: Callable[[Tensor], Tensor]
) -> tuple[float, float]:
    states = [{name: cast(tensor) for name, tensor in mode.state.items()} for mode in (before, after)]
    with as_in_training(net) if training else nullcontext(), torch.random.fork_rng(_devices(inputs)):
        first, second = (one_pass(net, map_inputs(cast, inputs), state) for state in states)
        if training and _apart(first, one_pass(net, map_inputs(cast, inputs), states[0])) > TOLERANCE:
            return 0.0, TOLERANCE
    eps = max([torch.finfo(t.dtype).eps for t in first.values() if t.is_floating_point()], default=0.0)
    fine = eps <= torch.finfo(torch.float64).eps
    return _apart(first, second), TOLERANCE if fine else max(OWN_TOLERANCE, 8 * eps)


def _apart(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    if first.keys() != second.keys() or any(first[name].shape != second[name].shape for name in first):
        return math.inf
    worst = 0.0
    for name, given in first.items():
        if given.numel():
            a, b = _wide(given), _wide(second[name])
            # Infinities and NaN at the same positions count as equal.
            same = (a == b) | (a.isnan() & b.isnan())
            difference = (a - b).abs().masked_fill(same, 0.0).max()
            scale = a.abs()[a.isfinite()].max() if bool(a.isfinite().any()) else difference
            relative = float(difference / scale.clamp_min(1e-12))
            worst = math.inf if math.isnan(relative) else max(worst, relative)
    return worst


def _wide(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _devices(inputs: Inputs) -> list[int]:
    devices = [tensor.device for tensor in flatten(inputs).values()]
    return sorted({device.index or 0 for device in devices if device.type == "cuda"})
