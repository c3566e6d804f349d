"""Class probabilities of one network, and their mean over the members of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.trees import wide

__all__ = ["MEANS", "Mean", "average", "check_mean", "logarithmic_mean", "mean_probability", "probabilities_of"]

Mean: TypeAlias = Literal["probability", "logarithmic"]
"""How members are averaged: the mean of their probabilities, as in the paper, or of their log probabilities."""


def probabilities_of(logits: Tensor) -> Tensor:
    """The softmax of logits over classes; half precision is computed in float32, as bfloat16 rows do not sum to 1.

    >>> probabilities_of(torch.zeros(1, 3, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return wide(logits).softmax(dim=-1)


def mean_probability(tables: Tensor | Sequence[Tensor]) -> Tensor:
    r"""The probability of an ensemble: the equal-weight mean of its members' probabilities, before any temperature.

    .. math:: p = \frac{1}{M} \sum_{m=1}^{M} p_m

    Args:
        tables: probabilities (M, B, K), or M tables of (B, K); the mean has the same dtype.

    >>> mean_probability([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])])
    tensor([[0.7500, 0.2500]])
    """
    return (tables if isinstance(tables, Tensor) else torch.stack(list(tables))).mean(dim=0)


def logarithmic_mean(tables: Tensor | Sequence[Tensor]) -> Tensor:
    r"""The normalised geometric mean of the members' probabilities: the softmax of the mean of their logits.

    .. math:: p = \mathrm{softmax}\Bigl(\frac{1}{M} \sum_{m=1}^{M} \log p_m\Bigr)

    Probabilities are clamped to the smallest normal number of their dtype.

    Args:
        tables: probabilities (M, B, K), or M tables of (B, K); the mean has the same dtype.

    >>> logarithmic_mean([torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])])
    tensor([[0.7500, 0.2500]])
    """
    stacked = tables if isinstance(tables, Tensor) else torch.stack(list(tables))
    return stacked.clamp_min(torch.finfo(stacked.dtype).tiny).log().mean(dim=0).softmax(dim=-1)


MEANS: Mapping[Mean, Callable[[Tensor | Sequence[Tensor]], Tensor]] = {
    "probability": mean_probability,
    "logarithmic": logarithmic_mean,
}
"""By name, functions from members' probabilities (M, B, K) to the ensemble's (B, K)."""


def average(tables: Tensor | Sequence[Tensor], mean: Mean) -> Tensor:
    """The probability (B, K) of an ensemble: the named mean of its members' (M, B, K), before any temperature."""
    return MEANS[check_mean(mean)](tables)


def check_mean(mean: object) -> Mean:
    """Return `mean` if it is a known name; raise an error otherwise."""
    for name in MEANS:
        if mean == name:
            return name
    raise ModebridgeError(f"Expected the mean to be {' or '.join(MEANS)}, but got {mean!r}; choose one.")
