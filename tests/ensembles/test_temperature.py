"""The fitted temperature against scipy and against closed forms; data that cannot tell it; its time."""

from __future__ import annotations

import math
import time

import pytest
import torch
from scipy.optimize import brentq

from modebridge.ensembles import fit_temperature, scale
from modebridge.ensembles.temperature import BOUNDS, FLOOR
from modebridge.scoring import nll


def sampled(n, k, seed, sharpness=1.0, spread=1.5):
    """Probabilities that are too sharp by a factor, and labels that follow the right ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator).squeeze(1)
    return (logits * sharpness).softmax(dim=1), labels


@pytest.mark.parametrize(("right", "wrong"), [(1, 1), (9, 1), (199, 1), (3, 2), (4000, 37)])
@pytest.mark.parametrize("top", [0.501, 0.8, 0.99])
def test_two_classes_have_a_closed_form(right, wrong, top):
    table = torch.tensor([[top, 1 - top]], dtype=torch.float64).expand(right + wrong, 2)
    labels = torch.tensor([0] * right + [1] * wrong)
    odds = math.log((top + FLOOR) / (1 - top + FLOOR))
    known = odds / math.log(right / wrong) if right > wrong else math.inf
    assert fit_temperature(table, labels) == pytest.approx(max(BOUNDS[0], min(BOUNDS[1], known)), rel=1e-9)


@pytest.mark.parametrize("sharpness", [0.06, 0.4, 1.0, 3.0, 25.0])
@pytest.mark.parametrize(("n", "k"), [(5, 3), (40, 2), (3000, 10)])
def test_is_the_root_of_the_derivative(n, k, sharpness):
    """To 1e-9, in the range of all temperatures, from the first guess and without one."""
    table, labels = sampled(n, k, 6, sharpness)
    before = table.clone()
    logs = (table + FLOOR).log()

    def slope(u):
        """The derivative of the NLL by 1/T at 1/T = exp(u)."""
        mean = ((logs * math.exp(u)).softmax(dim=1) * logs).sum(dim=1)
        return float((mean - logs.gather(1, labels[:, None])[:, 0]).mean())

    found = fit_temperature(table, labels)
    assert found == pytest.approx(math.exp(-brentq(slope, -math.log(99), math.log(99), xtol=1e-13)), rel=1e-9)
    assert torch.equal(table, before)
    if n == 40:
        assert fit_temperature(table.float(), labels) == pytest.approx(found, rel=1e-5)


def test_where_all_are_right_the_temperature_stays():
    """An underconfident table: right on all of the validation split, wrong on some of the test split."""
    table, labels = sampled(4000, 5, 3, sharpness=0.3, spread=6.0)
    right = table.argmax(dim=1) == labels
    assert 0.8 < right.double().mean() < 0.95
    with pytest.warns(
        UserWarning,
        match=r"but in all 50 rows the true class is the most probable one; the temperature stays 1: use more data",
    ):
        found = fit_temperature(table[right][:50], labels[right][:50])
    assert found == 1.0
    assert nll(scale(table, BOUNDS[0]), labels) > 1.5 * nll(table, labels), "what the lower bound would do"
    # Some wrong ones among the fifty, and it is an ordinary fit that makes the test split better.
    assert nll(scale(table, fit_temperature(table[:50], labels[:50])), labels) < 0.8 * nll(table, labels)


def test_a_near_tie_is_no_evidence_either():
    table = torch.tensor([[0.9, 0.1]] * 300 + [[0.50005, 0.49995]])
    labels = torch.tensor([0] * 300 + [1])
    with pytest.warns(UserWarning, match=r"at T = 0\.14, expects less than one of 301; the temperature stays 1"):
        assert fit_temperature(table, labels) == 1.0
    # A wrong prediction that is as sure as the right ones is evidence.
    table[300] = table[0]
    assert fit_temperature(table, labels) == pytest.approx(math.log(9) / math.log(300), rel=1e-6)


def test_five_thousand_by_a_thousand():
    """Under .2 s on one core; the best of five, in this process's own time, since others use the machine too."""
    table, labels = sampled(5000, 1000, 1, sharpness=1.7)
    table = table.float()
    times = []
    for _ in range(5):
        begin = time.process_time()
        found = fit_temperature(table, labels)
        times.append(time.process_time() - begin)
    assert found == pytest.approx(1.7, rel=0.02)
    assert min(times) < 0.2
