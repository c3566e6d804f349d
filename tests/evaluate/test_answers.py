"""Any combination from kept logits: the same scores as the ensemble itself; advice from validation alone."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from modebridge.errors import ModebridgeError
from modebridge.evaluate import Answers, MemberCost, advise


def answers(seed: int = 0, n: int = 300) -> Answers:
    """Three modes, two bridges, a network on a curve; each has its own noise about the truth."""
    generator = torch.Generator().manual_seed(seed)
    truth = {split: torch.randint(4, (n,), generator=generator) for split in ("valid", "test")}
    noise = {"mode-0": 1.6, "mode-1": 1.5, "mode-2": 1.7, "curve-0-1": 1.2, "I-0-1-small": 1.6, "II-0-1-small": 1.5}
    said = {
        split: {
            name: 2 * torch.nn.functional.one_hot(labels, 4) + s * torch.randn(n, 4, generator=generator)
            for name, s in noise.items()
        }
        for split, labels in truth.items()
    }
    costs = {name: MemberCost(100.0, 1000) for name in noise if name.startswith(("mode", "curve"))}
    costs |= {
        "I-0-1-small": MemberCost(5.0, 80, ("mode-0",)),
        "II-0-1-small": MemberCost(6.0, 100, ("mode-0", "mode-1")),
    }
    return Answers(said["valid"], said["test"], truth["valid"], truth["test"], costs)


def test_costs_count_what_runs() -> None:
    found = answers()
    assert found.cost(["mode-0"]) == (1, 1)
    assert found.cost(["mode-0", "I-0-1-small"]) == (1.05, 1.08)
    # A mode that is read runs even where its own answer is not used.
    assert found.cost(["I-0-1-small"]) == (1.05, 1.08)
    assert found.cost(["mode-0", "II-0-1-small"]) == (2.06, 2.1)


def test_scores_by_hand() -> None:
    found = answers()
    scored = found.score(["mode-0", "I-0-1-small"], intervals=True)
    mean = (found.test["mode-0"].double().softmax(1) + found.test["I-0-1-small"].double().softmax(1)) / 2
    labels = found.test_labels
    assert scored.accuracy == pytest.approx(float((mean.argmax(1) == labels).double().mean()))
    assert scored.raw_nll == pytest.approx(float(-mean[torch.arange(len(labels)), labels].log().mean()), abs=1e-9)
    tempered = (mean.log() / scored.temperature).softmax(1)
    assert scored.nll == pytest.approx(float(-tempered[torch.arange(len(labels)), labels].log().mean()), abs=1e-8)
    assert scored.nll_interval is not None
    assert scored.nll_interval[0] < scored.nll < scored.nll_interval[1]
    with pytest.raises(ModebridgeError, match="near ones: mode-"):
        found.score(["mode-9"])
    with pytest.raises(ModebridgeError, match="to have members"):
        found.score([])


@pytest.mark.parametrize("budget", [1.0, 1.1, 2.0, 2.2, 9.0])
def test_advice_keeps_to_the_budget_and_never_looks_at_the_test_split(budget: float) -> None:
    found = answers()
    advice = advise(found, budget)
    assert advice.chosen.cost <= budget + 1e-9
    assert not any(name.startswith("curve") for choice in advice.front for name in choice.members)
    for one, two in zip(advice.front, advice.front[1:], strict=False):
        assert one.cost < two.cost
        assert one.nll > two.nll
    shuffled = Answers(
        found.valid,
        {k: v.flip(0) * 7 for k, v in found.test.items()},
        found.valid_labels,
        found.test_labels,
        found.costs,
    )
    assert advise(shuffled, budget).chosen == advice.chosen


def test_advice_against_every_combination() -> None:
    """Greedy is not exhaustive, but on five members it should come within a hair of the best."""
    found = answers()
    members = [name for name in found.test if not name.startswith("curve")]
    best = min(
        _valid_nll(found, chosen)
        for count in range(1, 6)
        for chosen in combinations(members, count)
        if found.cost(chosen)[0] <= 2.2
    )
    assert advise(found, 2.2).chosen.nll <= best + 0.01
    by_params = advise(found, 1.05, lambda chosen: found.cost(chosen)[1])
    assert len(by_params.chosen.members) == 1
    with pytest.raises(ModebridgeError, match=r"at least one network, but got 0\.5"):
        advise(found, 0.5)


def _valid_nll(found: Answers, chosen: tuple[str, ...]) -> float:
    table = found.calibrated(chosen, "valid")
    return float(-table[torch.arange(len(table)), found.valid_labels].log().mean())
