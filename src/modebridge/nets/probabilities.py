"""Class probabilities: of one network, and the mean over the members of an ensemble."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from modebridge.trees import wide

__all__ = ["mean_probability", "probabilities_of"]


def probabilities_of(logits: Tensor) -> Tensor:
    """The softmax of logits over classes, of half precision in float32: rows of bfloat16 do not sum to 1.

    >>> probabilities_of(torch.zeros(1, 3, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return wide(logits).softmax(dim=-1)


def mean_probability(tables: Tensor | Sequence[Tensor]) -> Tensor:
    r"""The probability of an ensemble: the equal-weight mean of its members', before any temperature.

    .. math:: p = \frac{1}{M} \sum_{m=1}^{M} p_m

    Args:
        tables: (M, B, K), or M tables of (B, K); the mean is of their own type.

    >>> mean_probability([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])])
    tensor([[0.7500, 0.2500]])
    """
    return (tables if isinstance(tables, Tensor) else torch.stack(list(tables))).mean(dim=0)
