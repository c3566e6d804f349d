"""Every score against an independent library, closed forms, and every refusal."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torchmetrics.classification import MulticlassCalibrationError

from modebridge.errors import ModebridgeError
from modebridge.scoring import (
    accuracy,
    brier,
    check,
    ece,
    hits,
    nll,
    reliability,
    squared_errors,
    surprisals,
)

SCORES = [accuracy, nll, brier, ece]
SIZES = [(1, 2), (1, 10), (2, 3), (500, 2), (300, 10), (1000, 100)]


def sample(n, k, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator)
    labels = torch.multinomial((0.7 * logits).softmax(dim=1), 1, generator=generator).squeeze(1)
    return logits.to(dtype).softmax(dim=1), labels


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_accuracy_is_sklearn_s(n, k):
    p, y = sample(n, k)
    assert accuracy(p, y) == pytest.approx(accuracy_score(y.numpy(), p.numpy().argmax(1)), abs=1e-12)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_nll_is_sklearn_s(n, k):
    p, y = sample(n, k, dtype=torch.float64)
    assert nll(p, y) == pytest.approx(log_loss(y.numpy(), p.numpy(), labels=np.arange(k)), rel=1e-9)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_brier_is_sklearn_s(n, k):
    p, y = sample(n, k, dtype=torch.float64)
    known = brier_score_loss(y.numpy(), p.numpy(), labels=np.arange(k), scale_by_half=False)
    assert brier(p, y) == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize("bins", [1, 2, 15, 40])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_ece_is_torchmetrics(n, k, bins):
    p, y = sample(n, k)
    known = MulticlassCalibrationError(num_classes=k, n_bins=bins, norm="l1")(p, y)
    assert ece(p, y, bins) == pytest.approx(float(known), abs=2e-6)


def test_ece_and_reliability_are_a_plain_loop_s():
    p, y = sample(400, 7, seed=3)
    found = reliability(p, y, bins=15)
    top, right = p.double().max(dim=1).values.numpy(), hits(p, y).numpy()
    total = 0.0
    for b in range(15):
        inside = (top > b / 15) & (top <= (b + 1) / 15)
        assert int(found.count[b]) == inside.sum()
        assert float(found.edges[b]) == pytest.approx(b / 15)
        if not inside.any():
            assert math.isnan(found.confidence[b])
            assert math.isnan(found.accuracy[b])
            continue
        assert float(found.confidence[b]) == pytest.approx(top[inside].mean())
        assert float(found.accuracy[b]) == pytest.approx(right[inside].mean())
        total += inside.mean() * abs(top[inside].mean() - right[inside].mean())
    assert ece(p, y) == pytest.approx(total, abs=1e-12)
    assert len(found.edges) == 16


def test_a_value_on_an_edge_belongs_to_the_lower_bin():
    p = torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]], dtype=torch.float64)
    assert reliability(p, torch.zeros(3, dtype=torch.long), bins=4).count.tolist() == [0, 1, 1, 1]


def test_rows_a_little_above_one_fall_into_the_last_bin():
    found = reliability(torch.tensor([[1.0005, 0.0]]), torch.tensor([0]), bins=3)
    assert found.count.tolist() == [0, 0, 1]


@pytest.mark.parametrize("k", [1, 2, 10, 1000])
def test_closed_forms_of_a_uniform_answer(k):
    p, y = torch.full((5, k), 1 / k, dtype=torch.float64), torch.zeros(5, dtype=torch.long)
    assert nll(p, y) == pytest.approx(-math.log(1 / k + 1e-12), abs=1e-12)
    assert brier(p, y) == pytest.approx(1 - 1 / k)
    assert ece(p, y) == pytest.approx(1 - 1 / k)


def test_closed_forms_of_certain_answers():
    p, y = torch.eye(4), torch.arange(4)
    assert accuracy(p, y) == 1.0
    assert nll(p, y) == pytest.approx(0.0, abs=1e-11)
    assert (brier(p, y), ece(p, y)) == (0.0, 0.0)
    wrong = y.roll(1)
    assert accuracy(p, wrong) == 0.0
    assert nll(p, wrong) == pytest.approx(12 * math.log(10))  # the floor
    assert (brier(p, wrong), ece(p, wrong)) == (2.0, 1.0)


def test_means_of_what_each_sample_gives():
    p, y = sample(50, 4)
    assert accuracy(p, y) == pytest.approx(float(hits(p, y).mean()))
    assert nll(p, y) == pytest.approx(float(surprisals(p, y).mean()))
    assert brier(p, y) == pytest.approx(float(squared_errors(p, y).mean()))
    assert squared_errors(p, y).dtype == torch.float64


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 40), k=st.integers(1, 8), seed=st.integers(0, 10_000))
def test_ranges_and_order_of_samples(n, k, seed):
    p, y = sample(n, k, seed)
    mixed = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for score, high in zip(SCORES, [1.0, math.inf, 2.0, 1.0], strict=True):
        assert -1e-11 <= score(p, y) <= high + 1e-6
        assert score(p[mixed], y[mixed]) == pytest.approx(score(p, y), abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_any_integer_labels(dtype):
    p, y = sample(20, 5)
    assert nll(p, y.to(dtype)) == nll(p, y)


def test_long_sums_do_not_lose_digits():
    p = torch.tensor([[0.9, 0.1]]).repeat(1_000_000, 1)
    y = torch.zeros(1_000_000, dtype=torch.long)
    assert nll(p, y) == pytest.approx(-math.log(float(torch.tensor(0.9)) + 1e-12), rel=1e-12)


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


@pytest.mark.parametrize("score", [*SCORES, check, reliability, hits, surprisals, squared_errors])
@pytest.mark.parametrize("case", REFUSED)
def test_refusals(score, case):
    p, y, words = REFUSED[case]
    with pytest.raises(ModebridgeError, match=words) as caught:
        score(p, y)
    message = str(caught.value)
    assert message.startswith("Expected ")
    assert message.endswith(".")
    assert ", but got " in message


@pytest.mark.parametrize("bins", [0, -1])
def test_bins_must_be_there(bins):
    with pytest.raises(ModebridgeError, match="bins to be at least 1"):
        ece(GOOD, LABELS, bins)
