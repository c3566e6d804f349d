"""Cascades from kept logits: their ends are the first member and all of them, their cost is the share really asked."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch

from modebridge.ensembles import Mean
from modebridge.errors import ModebridgeError
from modebridge.scoring import ALL, LogitTable, MemberCost, advise, cascaded
from modebridge.scoring.advice import POINTS

TWO = ["mode-0", "mode-1"]
MEANS: tuple[Mean, ...] = ("probability", "logarithmic")


def answers(n: int = 300, seed: int = 0, heads: int = 1) -> LogitTable:
    """Three modes whose mistakes are their own, and a bridge on the first that says nearly the same."""
    generator = torch.Generator().manual_seed(seed)
    truth = {split: torch.randint(4, (n,), generator=generator) for split in ("valid", "test")}
    names = ["mode-0", "mode-1", "mode-2", "I-0-1-small"]
    logits = {
        split: {
            name: 2 * torch.nn.functional.one_hot(labels, 4) + 1.6 * torch.randn(heads, n, 4, generator=generator)
            for name in names
        }
        for split, labels in truth.items()
    }
    for tables in logits.values():
        tables["I-0-1-small"] = tables["mode-0"] + 0.4 * torch.randn(heads, n, 4, generator=generator)
    one = {split: {k: v[0] if heads == 1 else v for k, v in tables.items()} for split, tables in logits.items()}
    costs = {name: MemberCost(100.0, 1000) for name in names[:3]} | {names[3]: MemberCost(5.0, 80, ("mode-0",))}
    return LogitTable(one["valid"], one["test"], truth["valid"], truth["test"], costs)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("heads", [1, 2])
def test_the_ends_are_the_first_member_and_all_of_them(mean: Mean, heads: int) -> None:
    found = answers(heads=heads)
    one, two = found.score(TWO[:1], mean=mean), found.score(TWO, mean=mean)
    nobody, everybody = (found.score(TWO, threshold=threshold, mean=mean) for threshold in (0.0, ALL))
    scores = ("accuracy", "nll", "ece", "brier", "raw_nll", "raw_ece", "raw_brier", "relative_flops")
    assert {name: getattr(nobody, name) for name in scores} == {name: getattr(one, name) for name in scores}
    assert {name: getattr(everybody, name) for name in scores} == {name: getattr(two, name) for name in scores}
    assert (nobody.asked, everybody.asked) == (0.0, 1.0)
    # Whether or not the second is ever asked, its weights have to be there.
    assert nobody.relative_params == everybody.relative_params == 2.0
    assert torch.equal(found.calibrated(TWO, threshold=0.0, mean=mean), found.calibrated(TWO[:1], mean=mean))
    assert torch.equal(found.calibrated(TWO, threshold=ALL, mean=mean), found.calibrated(TWO, mean=mean))


def test_scores_and_cost_by_hand() -> None:
    found = answers()
    members = ["mode-0", "mode-1", "I-0-1-small"]
    threshold = found.threshold(members, 1.4)
    scored = found.score(members, threshold=threshold, intervals=True)
    alone, whole = found.calibrated(members[:1]), found.calibrated(members)
    unsure = [k for k in range(len(alone)) if float(alone[k].max()) < threshold]
    assert scored.asked == len(unsure) / len(alone)
    # 1 + share x (the cost of the rest), of the test images that were really asked about.
    assert scored.relative_flops == pytest.approx(1 + len(unsure) / len(alone) * 1.05, abs=1e-12)
    assert 0.1 < scored.asked < 0.9
    by_hand = [(whole if k in unsure else alone)[k] for k in range(len(alone))]
    losses = [-math.log(float(row[label]) + 1e-12) for row, label in zip(by_hand, found.test_labels, strict=True)]
    assert scored.nll == pytest.approx(sum(losses) / len(losses), abs=1e-12)
    right = [int(row.argmax()) == int(label) for row, label in zip(by_hand, found.test_labels, strict=True)]
    assert scored.accuracy == sum(right) / len(right)
    assert scored.nll_interval is not None
    assert scored.nll_interval[0] < scored.nll < scored.nll_interval[1]


def test_a_threshold_is_of_validation_data_alone_and_keeps_to_its_cost_there() -> None:
    found = answers()
    elsewhere = replace(found, test={k: v.flip(0) * 7 for k, v in found.test.items()})
    thresholds = [found.threshold(TWO, cost) for cost in (1.0, 1.1, 1.25, 1.5, 1.9, 2.0)]
    assert thresholds == [elsewhere.threshold(TWO, cost) for cost in (1.0, 1.1, 1.25, 1.5, 1.9, 2.0)]
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] == ALL
    top = found.calibrated(TWO[:1], "valid").amax(dim=-1)
    shares = [float((top < threshold).double().mean()) for threshold in thresholds]
    assert shares == pytest.approx([0.0, 0.1, 0.25, 0.5, 0.9, 1.0], abs=1 / len(top))
    costs = [found.score(TWO, threshold=threshold).relative_flops for threshold in thresholds]
    assert costs == sorted(costs)
    with pytest.raises(ModebridgeError, match=r"at least the base's 1, but got 0\.9"):
        found.threshold(TWO, 0.9)


def test_one_member_and_one_image() -> None:
    found = answers()
    alone = found.score(TWO[:1], threshold=found.threshold(TWO[:1], 1.2))
    assert alone.nll == found.score(TWO[:1]).nll
    assert alone.relative_flops == 1.0
    none = torch.zeros(0, 3)
    assert [len(table) for table in cascaded(none, none, 0.5)] == [0, 0]
    short, long = torch.tensor([[0.6, 0.4]]), torch.tensor([[0.2, 0.8]])
    assert torch.equal(cascaded(short, long, 0.6)[0], short), "as sure as the threshold is sure enough"
    assert torch.equal(cascaded(short, long, 0.61)[0], long)
    tiny = answers(n=1)
    with pytest.warns(UserWarning, match="the temperature stays 1"):
        scored = tiny.score(TWO, threshold=tiny.threshold(TWO, 1.5))
    assert scored.relative_flops == 1 + scored.asked


@pytest.mark.parametrize("mean", MEANS)
def test_advice_of_a_cascade_is_the_best_of_those_on_the_front(mean: Mean) -> None:
    found = answers()
    budget = 1.37
    plain = advise(found, budget, cascades=False, mean=mean)
    advice = advise(found, budget, mean=mean)
    candidates = [(choice.cost, choice.nll) for choice in plain.front if choice.cost <= budget]
    for choice in plain.front:
        for first in (name for name in choice.members if name.startswith("mode")):
            members = [first, *(name for name in choice.members if name != first)]
            for cost in (*POINTS, budget):
                if not 1 < cost <= budget or found.cost(members)[0] <= cost:
                    continue
                threshold = found.threshold(members, cost, mean)
                table = found.calibrated(members, "valid", threshold=threshold, mean=mean)
                loss = -(table[torch.arange(len(table)), found.valid_labels] + 1e-12).log().mean()
                candidates.append((cost, float(loss)))
    chosen = advice.chosen
    assert chosen.nll == pytest.approx(min(loss for _, loss in candidates), abs=1e-12)
    assert chosen.nll < plain.chosen.nll - 0.005, "modes that err apart make good cascades"
    assert chosen.threshold == found.threshold(chosen.members, chosen.average_cost or 0, mean)
    assert chosen.mean == mean
    assert chosen.cost == pytest.approx(1 + chosen.asked * (found.cost(chosen.members)[0] - 1))
    assert chosen.cost <= budget
    for one, two in pairwise(advice.front):
        assert one.cost < two.cost
        assert one.nll > two.nll
    # The test split takes no part in it.
    shuffled = replace(found, test={k: v.flip(0) * 7 for k, v in found.test.items()})
    assert asdict(advise(shuffled, budget, mean=mean)) == asdict(advice)
    # The same members by the other mean, at the same average cost.
    other = MEANS[1 - MEANS.index(mean)]
    assert (advice.other_mean.members, advice.other_mean.mean) == (chosen.members, other)
    table = found.calibrated(chosen.members, "valid", threshold=chosen.threshold, mean=other)
    loss = -(table[torch.arange(len(table)), found.valid_labels] + 1e-12).log().mean()
    assert advice.other_mean.nll == pytest.approx(float(loss), abs=1e-12)
