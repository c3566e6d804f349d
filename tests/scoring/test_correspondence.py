"""R2 and KL against scikit-learn and scipy, closed forms, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import r2_score

from modebridge.errors import ModebridgeError
from modebridge.scoring import correspondence, kl, r2

SKLEARN = {"variance_weighted": "variance_weighted", "uniform": "uniform_average"}


def pair(n, k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits.softmax(dim=1), (logits + noise).softmax(dim=1)


@pytest.mark.parametrize("average", SKLEARN)
@pytest.mark.parametrize(("n", "k"), [(2, 2), (5, 3), (200, 10), (400, 100)])
def test_r2_is_sklearn_s(n, k, average):
    target, prediction = pair(n, k)
    known = r2_score(target.numpy(), prediction.numpy(), multioutput=SKLEARN[average])
    assert r2(target, prediction, average) == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize("average", SKLEARN)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("others_vary", [True, False])
def test_classes_without_variance_are_sklearn_s(average, exact, others_vary):
    target = torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.25, 0.5], [0.25, 0.5, 0.25]], dtype=torch.float64)
    if not others_vary:
        target = target[:1].expand(3, 3)
    prediction = target.flip(1) if not exact else target
    known = r2_score(target.numpy(), prediction.numpy(), multioutput=SKLEARN[average])
    assert r2(target, prediction, average) == pytest.approx(known)


def test_a_constant_class_leaves_no_dust():
    # The mean of many 0.1 is not 0.1 to the last bit; a variance of 1e-32 would give an R2 of -1e30.
    target = torch.tensor([[0.1, 0.9]], dtype=torch.float64).repeat(7, 1)
    prediction = torch.tensor([[0.2, 0.8]], dtype=torch.float64).repeat(7, 1)
    assert r2(target, prediction, "uniform") == 0.0
    assert r2(target, target) == 1.0


def test_r2_closed_forms():
    target, prediction = pair(50, 4)
    assert r2(target, target) == 1.0
    mean = target.mean(dim=0, keepdim=True).expand_as(target)
    assert r2(target, mean) == pytest.approx(0.0, abs=1e-12)
    whole = 1 - (target - prediction).square().sum() / (target - mean).square().sum()
    assert r2(target, prediction) == pytest.approx(float(whole))


@pytest.mark.parametrize(("n", "k"), [(1, 2), (3, 5), (300, 100)])
def test_kl_is_scipy_s(n, k):
    target, prediction = pair(n, k)
    known = entropy(target.numpy(), prediction.numpy(), axis=1).mean()
    assert kl(target, prediction) == pytest.approx(known, rel=1e-8)
    assert kl(target, target) == pytest.approx(0.0, abs=1e-12)


def test_kl_closed_forms():
    certain, even = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    assert kl(certain, even) == pytest.approx(math.log(2))
    # Not symmetric: half of log(0.5 / 1e-12), the floor, and half of log(0.5).
    assert kl(even, certain) == pytest.approx(0.5 * math.log(0.5e12) + 0.5 * math.log(0.5))


def test_correspondence_is_all_three():
    target, prediction = pair(40, 6)
    found = correspondence(target, prediction)
    assert found.r2 == r2(target, prediction)
    assert found.r2_per_class == r2(target, prediction, "uniform")
    assert found.kl == kl(target, prediction)


@pytest.mark.parametrize("function", [r2, kl, correspondence])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, p: (t[:0], p[:0]), "at least one sample"),
        (lambda t, p: (t, p[:-1]), "same shape"),
        (lambda t, p: (t, torch.cat([p, 0 * p[:, :1]], dim=1)), "same shape"),
        (lambda t, p: (t.log(), p), "the target.*not logits"),
        (lambda t, p: (t, p.log()), "the prediction.*not logits"),
        (lambda t, p: (t, p * torch.nan), "the prediction to be finite"),
    ],
)
def test_refusals(function, change, words):
    with pytest.raises(ModebridgeError, match=words):
        function(*change(*pair(6, 3)))


def test_r2_refuses_one_sample_and_unknown_averages():
    target, prediction = pair(3, 3)
    with pytest.raises(ModebridgeError, match="at least 2 samples"):
        r2(target[:1], prediction[:1])
    with pytest.raises(ModebridgeError, match="average to be"):
        r2(target, prediction, "raw_values")
