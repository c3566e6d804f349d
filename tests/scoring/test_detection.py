"""AUROC and FPR95 against scikit-learn and by counting, with ties, sizes 0 and 1."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from modebridge.errors import ModebridgeError
from modebridge.scoring import auroc, fpr_at


def scores(count: int, seed: int, grid: int) -> torch.Tensor:
    """Random scores; on a grid of few values most are ties."""
    return torch.randint(grid, (count,), generator=torch.Generator().manual_seed(seed)).double() / grid


@pytest.mark.parametrize("grid", [2, 5, 10**9])
@pytest.mark.parametrize(("inside", "outside"), [(1, 1), (1, 7), (20, 1), (20, 33), (301, 200)])
def test_they_are_scikit_learns(inside: int, outside: int, grid: int) -> None:
    ours, others = scores(inside, 0, grid) + (0.2 if grid > 5 else 0), scores(outside, 1, grid)
    truth = [1] * inside + [0] * outside
    together = torch.cat([ours, others]).numpy()
    assert auroc(ours, others) == pytest.approx(float(roc_auc_score(truth, together)), abs=1e-12)
    false, true, _ = roc_curve(truth, together, drop_intermediate=False)
    for share in (0.5, 0.95, 1.0):
        wanted = min(f for f, t in zip(false, true, strict=True) if t >= share - 1e-12)
        assert fpr_at(ours, others, share) == pytest.approx(float(wanted), abs=1e-12)


def test_auroc_by_counting_pairs() -> None:
    ours, others = scores(13, 2, 4), scores(9, 3, 4)
    pairs = [(a > b) + (a == b) / 2 for a in ours.tolist() for b in others.tolist()]
    assert auroc(ours, others) == pytest.approx(sum(pairs) / len(pairs), abs=1e-15)
    assert auroc(others, ours) == pytest.approx(1 - auroc(ours, others), abs=1e-15)


def test_the_ends() -> None:
    low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9])
    assert (auroc(high, low), fpr_at(high, low)) == (1.0, 0.0)
    assert (auroc(low, high), fpr_at(low, high)) == (0.0, 1.0)
    same = torch.full((20,), 0.5)
    assert (auroc(same, same), fpr_at(same, same)) == (0.5, 1.0)
    # 19 of 20 are 95 %: the last one need not be taken.
    ours = torch.cat([torch.full((19,), 0.9), torch.tensor([0.1])])
    assert fpr_at(ours, torch.tensor([0.5])) == 0.0
    assert fpr_at(ours, torch.tensor([0.5]), share=0.951) == 1.0


def test_what_is_refused() -> None:
    one = torch.tensor([0.5])
    for pair, words in (
        ((one[:0], one), r"scores inside to be \(N,\) with at least one sample"),
        ((one, one[None]), "scores outside"),
        ((one, one * math.nan), "but got NaN"),
    ):
        with pytest.raises(ModebridgeError, match=words):
            auroc(*pair)
    for share in (0.0, 1.1):
        with pytest.raises(ModebridgeError, match="share to be above 0"):
            fpr_at(one, one, share)
