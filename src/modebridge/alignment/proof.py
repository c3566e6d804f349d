"""Verify that a permuted network is the same function: run both and compare all outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from modebridge.alignment.passes import as_in_training, one_pass
from modebridge.batches import flatten, map_inputs
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import frozen_copy
from modebridge.types import Inputs

__all__ = ["prove"]

TOLERANCE = 1e-6
"""Maximum difference relative to the largest value of an output, in float64."""

OWN_TOLERANCE = 1e-4
"""Maximum difference for networks that cannot run in float64, unless their dtype is coarser."""


@torch.no_grad()
def prove(
    net: nn.Module, before: Mode, after: Mode, inputs: Inputs | Sequence[Inputs], *, training: bool = False
) -> float:
    """The largest difference of two modes' outputs relative to the largest value of each output, in float64.

    Raises an error if any output on any batch differs by more than rounding.

    Args:
        net: the network of both modes, on their device.
        before: one mode.
        after: the other mode.
        inputs: a batch or several.
        training: whether to compare the outputs in training mode (auxiliary logits) too, unless they are random.
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
