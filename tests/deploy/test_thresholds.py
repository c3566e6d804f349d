"""Thresholds keep to their cost; the ends of a trade-off are the base and the ensemble."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modebridge.deploy import ALL, Temperatures, choose_threshold, fit_temperatures, gated, trade_off
from modebridge.ensembles import fit_temperature, scale
from modebridge.errors import ModebridgeError
from modebridge.scoring.scores import accuracy, nll


def cost(confidences: torch.Tensor, threshold: float, base: float, extra: float) -> float:
    return base + extra * float((confidences < threshold).double().mean())


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.floats(0.01, 3.0),
    st.floats(0.0, 1.2),
)
def test_the_average_cost_is_kept_and_used_up(tenths, extra, share):
    confidences = torch.tensor(tenths, dtype=torch.float64) / 10
    asked = 1 + share * extra
    threshold = choose_threshold(confidences, 1.0, extra, asked)
    assert cost(confidences, threshold, 1.0, extra) <= asked + 1e-6
    # The next higher threshold, which lets the next group of equals through, would cost more.
    above = confidences[confidences >= threshold]
    if len(above):
        assert cost(confidences, float(above.min()) + 1e-6, 1.0, extra) > asked - 1e-6
    else:
        assert threshold == ALL


def test_bad_costs_are_said():
    with pytest.raises(ModebridgeError, match=r"at least the base's 1, but got 0.9"):
        choose_threshold(torch.rand(3), 1.0, 0.2, 0.9)
    with pytest.raises(ModebridgeError, match=r"\(N,\) with N at least 1, but got \(0,\)"):
        choose_threshold(torch.rand(0), 1.0, 0.2, 1.1)


@pytest.fixture(scope="module")
def said():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (200,), generator=generator)
    logits = 2 * torch.nn.functional.one_hot(labels, 4) + 1.5 * torch.randn(5, 200, 4, generator=generator)
    return logits.double().softmax(-1), labels


def test_temperatures_are_those_of_each_partial_mean(said):
    members, labels = said
    found = fit_temperatures(members, labels, bases=2)
    assert found.first == fit_temperature(members[0], labels)
    assert found.by_bridges == pytest.approx([fit_temperature(members[:m].mean(0), labels) for m in (2, 3, 4, 5)])
    one = fit_temperatures(members[:1], labels, bases=1)
    assert one.by_bridges == (one.first,)
    with pytest.raises(ModebridgeError, match="bases to be from 1 to 5"):
        fit_temperatures(members, labels, bases=6)


def test_the_ends_of_the_curve(said):
    members, labels = said
    fitted = fit_temperatures(members, labels, bases=1)
    points = trade_off(members, labels, 1, fitted, 1.0, 0.4)
    alone, whole = scale(members[0], fitted.first), scale(members.mean(0), fitted.by_bridges[-1])
    first, last = points[0], points[-1]
    assert (first.share, first.cost) == (0.0, 1.0)
    assert (first.accuracy, first.nll) == (accuracy(alone, labels), pytest.approx(nll(alone, labels)))
    assert (last.share, last.cost) == (1.0, pytest.approx(1.4))
    assert (last.accuracy, last.nll) == (accuracy(whole, labels), pytest.approx(nll(whole, labels)))
    assert [point.cost for point in points] == sorted(point.cost for point in points)
    assert len(points) == 21


def test_a_single_image(said):
    members, labels = said
    same = Temperatures.same(1.0, 4)
    assert [point.share for point in trade_off(members[:, :1], labels[:1], 1, same, 1.0, 0.4)] == [0.0, 1.0]


def test_gates_by_hand():
    members = torch.tensor([[[0.9, 0.1], [0.6, 0.4]], [[0.5, 0.5], [0.2, 0.8]]])
    answers, unsure = gated(members, 1, Temperatures.same(1.0, 1), 0.7)
    assert unsure.tolist() == [False, True]
    torch.testing.assert_close(answers, torch.tensor([[0.9, 0.1], [0.4, 0.6]]))
