"""Every score against independent libraries, closed forms, and every refusal."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import bootstrap
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torch_uncertainty.metrics import BrierScore, CalibrationError, CategoricalNLL

from modebridge.errors import ModebridgeError
from modebridge.scoring import FEW, accuracy, brier, ece, nll
from modebridge.scoring.scores import hits, interval_of, reliability, resampled_means, surprisals

SCORES = [accuracy, nll, brier, ece]
SIZES = [(1, 2), (1, 10), (2, 3), (500, 2), (300, 10), (1000, 100)]


def sample(n, k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits.softmax(1), torch.multinomial((0.7 * logits).softmax(1), 1, generator=generator)[:, 0]


def sklearn_scores(p, y):
    labels = np.arange(p.shape[1])
    return {
        accuracy: accuracy_score(y.numpy(), p.numpy().argmax(1)),
        nll: log_loss(y.numpy(), p.numpy(), labels=labels),
        brier: brier_score_loss(y.numpy(), p.numpy(), labels=labels, scale_by_half=False),
    }


def torch_uncertainty_scores(p, y):
    k = p.shape[1]
    return {
        nll: CategoricalNLL()(p, y),
        brier: BrierScore(num_classes=k)(p.float(), y),
        ece: CalibrationError(task="multiclass", num_bins=15, num_classes=k)(p.float(), y),
    }


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize(("library", "slack"), [(sklearn_scores, 1e-9), (torch_uncertainty_scores, 1e-5)])
def test_scores_are_theirs(library, slack, n, k):
    for seed in range(3):
        p, y = sample(n, k, seed)
        for score, theirs in library(p, y).items():
            assert score(p, y) == pytest.approx(float(theirs), abs=slack), score.__name__


@pytest.mark.parametrize("bins", [1, 2, 15, 40])
def test_ece_and_reliability_are_a_plain_loop_s(bins):
    p, y = sample(400, 7, seed=3)
    found = reliability(p, y, bins)
    top, right = p.max(dim=1).values.numpy(), hits(p, y).numpy()
    total = 0.0
    for b in range(bins):
        inside = (top > b / bins) & (top <= (b + 1) / bins)
        assert int(found.count[b]) == inside.sum()
        assert float(found.edges[b]) == pytest.approx(b / bins)
        if not inside.any():
            assert math.isnan(found.confidence[b])
            assert math.isnan(found.accuracy[b])
            continue
        assert float(found.confidence[b]) == pytest.approx(top[inside].mean())
        assert float(found.accuracy[b]) == pytest.approx(right[inside].mean())
        total += inside.mean() * abs(top[inside].mean() - right[inside].mean())
    assert ece(p, y, bins) == pytest.approx(total, abs=1e-12)
    # A value on an edge belongs to the lower bin, and one slightly above 1 to the last.
    edges = torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0], [1.0005, 0.0]])
    assert reliability(edges, torch.zeros(4, dtype=torch.long), bins=4).count.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(("n", "k"), [(5, 1), (5, 2), (5, 1000), (1_000_000, 2)])
def test_closed_forms_of_a_uniform_prediction(n, k):
    p, y = torch.full((n, k), 1 / k, dtype=torch.float64), torch.zeros(n, dtype=torch.long)
    assert nll(p, y) == pytest.approx(-math.log(1 / k + 1e-12), abs=1e-12), "long sums do not lose digits"
    assert brier(p, y) == pytest.approx(1 - 1 / k)
    assert ece(p, y) == pytest.approx(1 - 1 / k)


def test_closed_forms_of_certain_predictions():
    p, y = torch.eye(4), torch.arange(4)
    assert nll(p, y) == pytest.approx(0.0, abs=1e-11)
    assert (accuracy(p, y), brier(p, y), ece(p, y)) == (1.0, 0.0, 0.0)
    wrong = y.roll(1)
    assert nll(p, wrong) == pytest.approx(12 * math.log(10)), "the floor, where other libraries give infinity"
    assert (accuracy(p, wrong), brier(p, wrong), ece(p, wrong)) == (0.0, 2.0, 1.0)


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 40), k=st.integers(1, 8), seed=st.integers(0, 10_000))
def test_ranges_order_and_kind_of_labels(n, k, seed):
    p, y = sample(n, k, seed)
    mixed = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for score, high in zip(SCORES, [1.0, math.inf, 2.0, 1.0], strict=True):
        assert -1e-11 <= score(p, y) <= high + 1e-6
        assert score(p[mixed], y[mixed].to(torch.uint8)) == pytest.approx(score(p, y), abs=1e-9)
    for score, each in ((accuracy, hits), (nll, surprisals)):
        assert score(p, y) == pytest.approx(float(each(p, y).mean()))


GOOD, LABELS = torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 2, 0])
REFUSED = {
    "no samples": (torch.zeros(0, 3), LABELS[:0], "at least one sample"),
    "no classes": (torch.zeros(4, 0), LABELS, "at least one class"),
    "one dimension": (GOOD[0], LABELS, r"to be \(N, K\)"),
    "members not averaged": (GOOD.expand(2, 4, 3), LABELS, r"to be \(N, K\)"),
    "one-hot labels": (GOOD, torch.eye(3, dtype=torch.long)[LABELS], "not one-hot"),
    "labels too few": (GOOD, LABELS[:3], "3 labels for 4 samples"),
    "labels are floats": (GOOD, LABELS.float(), "to be integers"),
    "labels are booleans": (GOOD, LABELS.bool(), "to be integers"),
    "class count one off": (GOOD, LABELS + 1, "data with the same classes"),
    "negative label": (GOOD, LABELS - 1, "data with the same classes"),
    "nan": (torch.where(torch.eye(4, 3) > 0, torch.nan, GOOD), LABELS, "finite, but got NaN or Inf in 3 of 4"),
    "inf": (torch.where(torch.eye(4, 3) > 0, torch.inf, GOOD), LABELS, "finite"),
    "logits": (torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), LABELS, "not logits"),
    "positive logits": (torch.full((4, 3), 5.0), LABELS, "not logits"),
    "sums a little off": (GOOD * 1.002, LABELS, "sum to 1"),
    "complex": (GOOD.to(torch.complex64), LABELS, "real numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    p, y, words = REFUSED[case]
    for score in (*SCORES, reliability, hits, surprisals):
        with pytest.raises(ModebridgeError, match=words) as caught:
            score(p, y)
        assert re.fullmatch(r"Expected .*, but got .*; .*\.", str(caught.value))
    with pytest.raises(ModebridgeError, match="bins to be at least 1"):
        ece(GOOD, LABELS, 0)


def bootstrapped(values):
    return interval_of(resampled_means(values[:, None])[:, 0])


@pytest.mark.parametrize("each", [hits, surprisals])
def test_intervals_are_scipy_s_percentiles(each):
    values = each(*sample(400, 5))
    low, high = bootstrapped(values)
    rng = np.random.default_rng(0)
    known = bootstrap((values.numpy(),), np.mean, n_resamples=1000, method="percentile", rng=rng).confidence_interval
    assert (low, high) == pytest.approx((known.low, known.high), abs=0.12 * (known.high - known.low))
    torch.manual_seed(5)  # the global generator has no say
    assert bootstrapped(values) == (low, high)
    assert bootstrapped(values[:1]) == pytest.approx((float(values[0]),) * 2)


def test_columns_are_paired():
    """Every column sees the same draws, one by one and in blocks."""
    values = torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means = resampled_means(values)
    generator = torch.Generator().manual_seed(0)
    by_hand = torch.stack([values[torch.randint(300, (300,), generator=generator)].mean(0) for _ in range(1000)])
    torch.testing.assert_close(means, by_hand, rtol=0, atol=1e-12)
    for wrong in (torch.zeros(0, 2), torch.zeros(3)):
        with pytest.raises(ModebridgeError, match=r"to be \(N, C\) with at least one sample"):
            resampled_means(wrong)


@pytest.mark.parametrize(("n", "low", "high"), [(50, 0.84, 0.91), (FEW, 0.93, 0.96)])
def test_how_often_intervals_hold_the_true_nll(n, low, high):
    """NLLs like those of a network of 91 % accuracy: most nearly 0, a few large."""
    generator = torch.Generator().manual_seed(1)
    values = torch.nn.functional.softplus(-4 - 3 * torch.randn(2_000_000, generator=generator, dtype=torch.float64))
    means = resampled_means(values[: 1000 * n].reshape(n, 1000))
    bounds = torch.tensor([interval_of(column) for column in means.T])
    held = (bounds[:, 0] < values.mean()) & (values.mean() < bounds[:, 1])
    assert low < float(held.double().mean()) < high
