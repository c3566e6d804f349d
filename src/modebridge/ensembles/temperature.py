"""Temperature scaling of an averaged probability."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.trees import exact
from modebridge.types import IGNORED

FLOOR = 1e-12
"""Added to a probability before taking its logarithm, as the authors do."""

BOUNDS = (0.01, 100.0)

CHUNK = 2**16
"""Elements processed at a time on a CPU, so that they stay in its cache."""

FIRST = 512
"""Rows used for the first guess, if there are several times as many."""


PLACES = 1000
"""Labeled pixels of each image to fit on, if there are more: thousands of neighbors say little more."""


def sampled(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (N, K) and labels (N,) to fit on: all images, or the same random places of each image (B, *P, K).

    >>> rows, labels = sampled(torch.full((2, 8, 3), 1 / 3), torch.tensor([[0, 1, -100, -100, 2, 0, 0, 0]] * 2))
    >>> rows.shape, labels.tolist()
    (torch.Size([12, 3]), [0, 1, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0])
    """
    if labels.dim() == 1:
        return probabilities, labels
    generator, rows, truths = torch.Generator().manual_seed(0), [], []
    for table, truth in zip(probabilities.flatten(1, -2), labels.flatten(1), strict=True):
        known = (truth != IGNORED).nonzero().squeeze(1)
        if len(known) > PLACES:
            known = known[torch.randperm(len(known), generator=generator)[:PLACES].to(known.device)]
        rows.append(table[known])
        truths.append(truth[known])
    return torch.cat(rows), torch.cat(truths)


def scale(probabilities: Tensor, temperature: Tensor | float) -> Tensor:
    """softmax(log(p) / T): the temperature acts on the log of the averaged probability, not on members' logits.

    >>> import torch
    >>> scale(torch.tensor([[0.2, 0.8]]), 1.0)
    tensor([[0.2000, 0.8000]])
    """
    return ((probabilities + FLOOR).log() / temperature).softmax(dim=-1)


def fit_temperature(probabilities: Tensor, labels: Tensor) -> float:
    """The temperature with the lowest NLL, between 0.01 and 100; 1 if the data cannot determine it.

    The NLL is convex in 1/T, so its derivative changes sign once, which Newton's method finds inside a bracket.

    If no prediction is wrong, the NLL keeps falling as T goes to 0, and such a temperature would ruin the NLL of other
    data. So T stays 1, with a warning, if every prediction is right, or if the lowest NLL is at a T below 1 with a mean
    confidence above (N + 1) / (N + 2), the expected accuracy after N right predictions out of N (Laplace's rule of
    succession). Neither is the case once the data contain wrong predictions that are not near ties. Both arguments, the
    averaged probabilities (N, K) and the labels (N,), are of held-out data.

    >>> import torch
    >>> round(fit_temperature(torch.tensor([[0.8, 0.2]] * 10), torch.tensor([0] * 9 + [1])), 6)  # log(4) / log(9)
    0.63093
    """
    check_table(probabilities, labels, "a temperature")
    probabilities = probabilities.detach()
    data = _Data(probabilities, labels)
    if not any(bool(of_labels.any()) for of_labels in data.of_labels):
        return _unfitted(f"in all {len(labels)} rows the true class is the most probable one")
    stride = len(labels) // FIRST
    # A guess may be at a bound, where the NLL is flat; then it is better to start in the middle.
    guess = _sharpest(_Data(probabilities[::stride], labels[::stride]), 1.0)[0] if stride >= 4 else 1.0
    sharpness, confidence = _sharpest(data, guess if 0.1 < guess < 10 else 1.0)
    if sharpness > 1 and confidence > (len(labels) + 1) / (len(labels) + 2):
        return _unfitted(f"the lowest NLL, at T = {1 / sharpness:.2g}, expects less than one of {len(labels)}")
    return 1 / sharpness


def check_table(probabilities: Tensor, labels: Tensor, what: str) -> None:
    """Raise an error unless there are labels, and a row of finite probabilities for each."""
    if len(labels) == 0:
        raise ModebridgeError(f"Expected data to fit {what} on, but got no sample; pass a validation split.")
    if len(probabilities) != len(labels):
        raise ModebridgeError(
            f"Expected one row of probabilities per label, but got {len(probabilities)} for {len(labels)}; check them."
        )
    if not bool(torch.isfinite(probabilities).all()):
        raise ModebridgeError("Expected probabilities to be finite, but got NaN or Inf; check the images.")


def _unfitted(got: str) -> float:
    warnings.warn(
        f"Expected validation data with wrong predictions to fit a temperature on, but {got}; the temperature stays 1: "
        "use more data, and none that the networks were trained on.",
        stacklevel=3,
    )
    return 1.0


class _Data:
    """The log-probabilities of all rows, each minus its maximum, in parts that fit a CPU's cache."""

    def __init__(self, probabilities: Tensor, labels: Tensor) -> None:
        self.rows, classes = probabilities.shape
        count = max(1, CHUNK // classes) if probabilities.device.type == "cpu" else self.rows
        parts = [slice(start, start + count) for start in range(0, self.rows, count)]
        self.logs = [(exact(probabilities[part]) + FLOOR).log_() for part in parts]
        # The maximum is then exactly 0, so the small sums of confident rows lose no digits.
        self.logs = [part.sub_(part.amax(dim=1, keepdim=True)) for part in self.logs]
        pairs = zip(self.logs, [labels[part] for part in parts], strict=True)
        self.of_labels = [logs.gather(1, numbers.view(-1, 1).to(logs.device))[:, 0] for logs, numbers in pairs]

    def derivatives(self, sharpness: float) -> tuple[float, float, float]:
        """The NLL's first and second derivative by the sharpness 1/T, and the mean confidence."""
        sums = []
        for logs, of_labels in zip(self.logs, self.of_labels, strict=True):
            weights = (logs * sharpness).exp_()
            total = weights.sum(dim=1)
            mean = weights.mul_(logs).sum(dim=1) / total
            square = weights.mul_(logs).sum(dim=1) / total
            sums.append(torch.stack([(mean - of_labels).sum(), (square - mean * mean).sum(), total.reciprocal().sum()]))
        slope, curvature, confidence = (torch.stack(sums).sum(dim=0) / self.rows).tolist()
        return slope, curvature, confidence


def _sharpest(data: _Data, start: float) -> tuple[float, float]:
    """The sharpness with the lowest NLL, by Newton's method on its log in a bracket, and the mean confidence there."""
    edges = (-math.log(BOUNDS[1]), -math.log(BOUNDS[0]))
    (low, high), x = edges, math.log(start)
    for iteration in range(200):
        sharpness = math.exp(x)
        slope, curvature, confidence = data.derivatives(sharpness)
        if x == edges[slope < 0]:  # the NLL still falls at the bound
            return 1 / BOUNDS[slope >= 0], confidence
        low, high = (low, x) if slope > 0 else (x, high)
        step = -slope / (curvature * sharpness) if curvature > 0 else -math.copysign(math.inf, slope)
        if abs(step) < 1e-7 or high - low < 1e-14:  # the next step would be about the square of this one
            return sharpness * math.exp(max(low - x, min(high - x, step))), confidence
        ahead, middle = x + step, (low + high) / 2
        if not low < ahead < high:
            edge = high if step > 0 else low
            x = edge if edge in edges else middle
        else:
            # Far from the minimum the derivative vanishes and steps are short: halving the bracket is faster.
            x = middle if iteration >= 8 and iteration % 2 else ahead
    return math.exp(x), confidence
