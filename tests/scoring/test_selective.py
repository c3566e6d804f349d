"""Risk and coverage against torch-uncertainty and scikit-learn, by hand, with ties and one image; AUROC."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, roc_auc_score
from torch_uncertainty.metrics.classification import AURC, CovAt5Risk

from modebridge.errors import ModebridgeError
from modebridge.scoring import auroc, risk_coverage


def drawn(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    table = (3 * torch.randn(n, 4, generator=generator, dtype=torch.float64)).softmax(-1)
    return table, torch.multinomial(table, 1, generator=generator)[:, 0]


@pytest.mark.parametrize("n", [2, 17, 300])
def test_the_curve_is_that_of_scikit_learn_and_torch_uncertainty(n: int) -> None:
    table, labels = drawn(n)
    curve = risk_coverage(table, labels)
    order = np.argsort(-table.amax(1).numpy())
    wrong = (table.argmax(1) != labels).numpy()[order]
    risks = [wrong[:k].mean() for k in range(1, n + 1)]
    np.testing.assert_allclose(curve.risk, risks, atol=1e-12)
    assert curve.aurc == pytest.approx(np.mean(risks), abs=1e-12)
    # torch-uncertainty and scikit-learn integrate by trapezoids between 1/n and 1.
    by_trapezoids = auc(curve.coverage, curve.risk) / (1 - 1 / n)
    reference = AURC()
    reference.update(table, labels)
    assert by_trapezoids == pytest.approx(float(reference.compute()), abs=1e-6)
    best = [max(0, k - (~wrong).sum()) / k for k in range(1, n + 1)]
    assert curve.excess_aurc == pytest.approx(np.mean(risks) - np.mean(best), abs=1e-12)


def test_what_can_be_answered() -> None:
    table, labels = drawn(500, 1)
    reference = CovAt5Risk()
    reference.update(table, labels)
    curve = risk_coverage(table, labels)
    assert curve.coverage_at(0.05) == pytest.approx(float(reference.compute()), abs=1e-6)
    assert (curve.coverage_at(1.0), curve.coverage_at(-1.0)) == (1.0, 0.0)
    kept = table.amax(1).argsort(descending=True)[:450]
    assert curve.accuracy_at(0.9) == pytest.approx(float((table.argmax(1) == labels)[kept].double().mean()))


def test_ties_count_with_their_mean_and_one_image_is_enough() -> None:
    even = torch.tensor([[0.9, 0.1]] * 4)
    for labels in ([0, 0, 1, 1], [1, 1, 0, 0]):  # the order of images does not matter
        assert risk_coverage(even, torch.tensor(labels)).risk.tolist() == [0.5] * 4
    one = risk_coverage(even[:1], torch.tensor([0]))
    assert (one.aurc, one.excess_aurc, one.accuracy_at(0.9), one.coverage_at(0.05)) == (0.0, 0.0, 1.0, 1.0)
    assert risk_coverage(even[:1], torch.tensor([1])).excess_aurc == 0.0
    with pytest.raises(ModebridgeError, match="at least one sample"):
        risk_coverage(even[:0], torch.tensor([], dtype=torch.long))


@pytest.mark.parametrize("grid", [2, 5, 10**9])
@pytest.mark.parametrize(("inside", "outside"), [(1, 1), (20, 1), (301, 200)])
def test_auroc_is_scikit_learns(inside: int, outside: int, grid: int) -> None:
    """On a grid of few values most are ties."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(grid, (inside + outside,), generator=generator).double() / grid
    wanted = roc_auc_score([1] * inside + [0] * outside, scores.numpy())
    assert auroc(scores[:inside], scores[inside:]) == pytest.approx(float(wanted), abs=1e-12)
    for wrong in (scores[:0], scores * math.nan):
        with pytest.raises(ModebridgeError, match="scores of both sets"):
            auroc(scores, wrong)


@pytest.mark.parametrize("n", [20, 40, 60, 100, 200])
def test_all_images_are_answered_at_their_own_risk(n: int) -> None:
    """One in 20 is wrong: rounding of the means over equal confidences must not cost images."""
    wrong = torch.arange(n) % 20 == 0
    assert risk_coverage(torch.tensor([[0.6, 0.4]]).repeat(n, 1), wrong.long()).coverage_at(0.05) == 1
