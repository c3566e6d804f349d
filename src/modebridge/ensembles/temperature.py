"""Temperature scaling of an averaged probability."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError

__all__ = ["FLOOR", "fit_temperature", "probabilities_of", "scale"]

FLOOR = 1e-12
"""Added to a probability before its logarithm, as the authors do."""

BOUNDS = (0.01, 100.0)


def probabilities_of(logits: Tensor) -> Tensor:
    """The softmax of logits over classes, of half precision in float32: rows of bfloat16 do not sum to 1.

    >>> probabilities_of(torch.zeros(1, 3, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    half = logits.dtype in (torch.bfloat16, torch.float16)
    return logits.softmax(dim=-1, dtype=torch.float32 if half else None)


def scale(probabilities: Tensor, temperature: Tensor | float) -> Tensor:
    """softmax(log(p) / T): the temperature acts on the log of the averaged probability, not on members' logits.

    >>> import torch
    >>> scale(torch.tensor([[0.2, 0.8]]), 1.0)
    tensor([[0.2000, 0.8000]])
    """
    return ((probabilities + FLOOR).log() / temperature).softmax(dim=-1)


def fit_temperature(probabilities: Tensor, labels: Tensor) -> float:
    """The temperature with the lowest NLL, between 0.01 and 100.

    In 1/T the NLL is convex, so its derivative has one sign change: bisection on log(1/T) finds it to float precision.
    Where every answer is right (or the derivative never changes sign) the bound is the answer.

    Args:
        probabilities: (N, K), the averaged ones, of held-out data.
        labels: (N,).
    """
    if len(labels) == 0:
        raise ModebridgeError("Expected data to fit a temperature on, but got no sample; give a validation split.")
    if len(probabilities) != len(labels):
        raise ModebridgeError(
            f"Expected one row of probabilities a label, but got {len(probabilities)} for {len(labels)}; check them."
        )
    if not bool(torch.isfinite(probabilities).all()):
        raise ModebridgeError("Expected probabilities to be finite, but got NaN or Inf; check the images.")
    logs = (probabilities.double() + FLOOR).log()
    own = logs.gather(1, labels.view(-1, 1)).mean()
    low, high = -math.log(BOUNDS[1]), -math.log(BOUNDS[0])
    for _ in range(60):
        middle = 0.5 * (low + high)
        tempered = (logs * math.exp(middle)).softmax(dim=-1)
        slope = float((tempered * logs).sum(dim=-1).mean() - own)
        low, high = (low, middle) if slope > 0 else (middle, high)
    return math.exp(-0.5 * (low + high))
