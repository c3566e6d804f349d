"""R2 and KL against scikit-learn and scipy, closed forms, refusals."""

import math

import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import r2_score

from modebridge.errors import ModebridgeError
from modebridge.scoring import correspondence


def pair(n, k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits.softmax(dim=1), (logits + noise).softmax(dim=1)


def r2s(target, prediction):
    """Scikit-learn's."""
    return [
        r2_score(target.numpy(), prediction.numpy(), multioutput=average)
        for average in ("variance_weighted", "uniform_average")
    ]


@pytest.mark.parametrize(("n", "k"), [(2, 2), (5, 3), (200, 10), (400, 100)])
def test_they_are_sklearn_s_and_scipy_s(n, k):
    target, prediction = pair(n, k)
    divergence = entropy(target.numpy(), prediction.numpy(), axis=1).mean()
    found = correspondence(target, prediction)
    assert [found.r2, found.r2_per_class, found.kl] == pytest.approx([*r2s(target, prediction), divergence], rel=1e-8)
    same = correspondence(target, target)
    assert (same.r2, same.r2_per_class, same.kl) == (1.0, 1.0, pytest.approx(0.0, abs=1e-12))
    mean = target.mean(dim=0, keepdim=True).expand_as(target)
    assert correspondence(target, mean).r2 == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("others_vary", [True, False])
def test_classes_without_variance_are_sklearn_s(exact, others_vary):
    target = torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.25, 0.5], [0.25, 0.5, 0.25]], dtype=torch.float64)
    if not others_vary:
        target = target[:1].expand(3, 3)
    prediction = target.flip(1) if not exact else target
    found = correspondence(target, prediction)
    assert [found.r2, found.r2_per_class] == pytest.approx(r2s(target, prediction))
    # The mean of many 0.1 is not 0.1 to the last bit; a variance of 1e-32 would give an R2 of -1e30.
    constant = torch.tensor([[0.1, 0.9]], dtype=torch.float64).repeat(7, 1)
    assert correspondence(constant, constant.flip(1)).r2 == 0.0


def test_kl_closed_forms():
    certain, even = torch.tensor([[1.0, 0.0]] * 2), torch.tensor([[0.5, 0.5]] * 2)
    assert correspondence(certain, even).kl == pytest.approx(math.log(2))
    # Not symmetric: half of log(0.5 / 1e-12), the floor, and half of log(0.5).
    assert correspondence(even, certain).kl == pytest.approx(0.5 * math.log(0.5e12) + 0.5 * math.log(0.5))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, p: (t[:0], p[:0]), "at least one sample"),
        (lambda t, p: (t[:1], p[:1]), "at least 2 samples"),
        (lambda t, p: (t, p[:-1]), "same shape"),
        (lambda t, p: (t, torch.cat([p, 0 * p[:, :1]], dim=1)), "same shape"),
        (lambda t, p: (t.log(), p), "the target.*not logits"),
        (lambda t, p: (t, p.log()), "the prediction.*not logits"),
        (lambda t, p: (t, p * torch.nan), "the prediction to be finite"),
    ],
)
def test_refusals(change, words):
    with pytest.raises(ModebridgeError, match=words):
        correspondence(*change(*pair(6, 3)))
