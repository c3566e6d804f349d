"""Advice from validation data alone, compared with trying every set of members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from modebridge.ensembles import cascade_threshold
from modebridge.errors import ModebridgeError
from modebridge.scoring import LogitTable, MemberCost, accuracy, advise, nll, resampled_means, surprisals
from tests.scoring.test_table import drawn, table


def many(bridges: int, seed: int = 0, n: int = 60) -> LogitTable:
    """Two modes and type I bridges of two prices, each wrong in its own way."""
    costs = {f"mode-{k}": MemberCost(100.0, 1000) for k in range(2)}
    for k in range(bridges):
        costs[f"I-{k % 2}-{9 + k}-small"] = MemberCost(5.0 + 9 * (k % 3 == 0), 80, (f"mode-{k % 2}",))
    return drawn(costs, 3, n, 2.5, torch.Generator().manual_seed(seed))


def nll_of(found: LogitTable, members: Sequence[str]) -> float:
    return nll(found.calibrated(members, "valid"), found.valid_labels)


def tried(found: LogitTable, budget: float, prices: dict[str, float] | None = None) -> dict[int, list[tuple[str, ...]]]:
    """Every combination within the budgets by hand, by number of members, the best first."""
    names = [name for name, cost in found.costs.items() if cost.usable]
    prices = prices or {name: found.costs[name].flops / 100 for name in names}
    sets = [some for count in range(1, len(names) + 1) for some in combinations(names, count)]
    sets = [some for some in sets if all(set(found.costs[name].reads) <= set(some) for name in some)]
    sets = [some for some in sets if sum(prices[name] for name in some) <= budget + 1e-9]
    by_size: dict[int, list[tuple[str, ...]]] = {}
    for some in sorted(sets, key=lambda some: nll_of(found, some)):
        by_size.setdefault(len(some), []).append(some)
    return by_size


def by_the_rule(found: LogitTable, budget: float, prices: dict[str, float] | None = None) -> tuple[str, ...]:
    """The choice among all combinations, one by one."""
    sets = [some for size in tried(found, budget, prices).values() for some in size]
    losses = [surprisals(found.calibrated(some, "valid"), found.valid_labels) for some in sets]
    draws = resampled_means(torch.stack(losses, dim=1)).numpy()
    levels = np.array([float(loss.mean()) for loss in losses])
    base, best = sets.index(("mode-0",)), int(levels.argmin())
    gains, gain = draws[:, [base]] - draws, levels[base] - levels
    spread = gains.std(0, ddof=1)
    others = [k for k in range(len(sets)) if k != base]
    critical = np.quantile(((gains - gain)[:, others] / spread[others]).max(1), 0.95) if others else np.inf
    worse = [np.quantile(draws[:, k] - draws[:, best], 0.025) > 0 for k in range(len(sets))]
    paid = prices or {name: cost.flops / found.costs["mode-0"].flops for name, cost in found.costs.items()}
    cost = [sum(paid[name] for name in some) for some in sets]
    helpful = [k for k in others if gain[k] > critical * spread[k]]
    safe = [
        k
        for k in helpful
        if not worse[k] and not any(cost[j] < cost[k] + 1e-9 and levels[j] < levels[k] for j in helpful)
    ]
    instead = min((k for k in range(len(sets)) if cost[k] < cost[base] + 1e-9), key=levels.__getitem__)
    return sets[max(safe, key=lambda k: (len(sets[k]), -levels[k]), default=instead)]


@pytest.mark.parametrize("budget", [1.0, 1.1, 2.0, 2.2, 9.0])
def test_it_keeps_to_the_budget_and_never_looks_at_the_test_split(budget: float) -> None:
    found = table()
    advice = advise(found, budget)
    assert advice.cost(advice.chosen) <= budget + 1e-9
    assert not any(name.startswith("curve") for choice in advice.by_size for name in choice.members)
    shuffled = replace(found, test={name: logits.flip(0) * 7 for name, logits in found.test.items()})
    assert advise(shuffled, budget).chosen.members == advice.chosen.members


@pytest.mark.parametrize("seed", [0, 14, 19])
@pytest.mark.parametrize(("budget", "n"), [(1.1, 60), (1.3, 60), (2.05, 60), (1.3, 1000), (2.05, 1000)])
def test_the_rule(seed: int, budget: float, n: int) -> None:
    found = many(4, seed, n)
    by_size = tried(found, budget)
    advice = advise(found, budget)
    assert advice.exact
    assert advice.looked_at == sum(map(len, by_size.values()))
    assert len(advice.by_size) == max(by_size)
    for size, choice in enumerate(advice.by_size, start=1):
        # The short list is by the NLL without a temperature, and nearly always has the best with one.
        assert choice.nll <= nll_of(found, by_size[size][0]) + 0.01
    assert set(advice.chosen.members) == set(by_the_rule(found, budget))


@pytest.mark.filterwarnings("ignore:Expected validation data with wrong predictions")
def test_it_is_rarely_fooled() -> None:
    """Bridges that know nothing new: some are better on validation images by luck, few of 40 times significantly so."""
    costs = {"mode-0": MemberCost(100.0, 1000)} | {f"I-0-{k}-small": MemberCost(5.0, 80, ("mode-0",)) for k in range(9)}
    fooled, lower = 0, 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        found = drawn(costs, 3, 50, 2.5, generator)
        noise = {name: found.valid["mode-0"] + torch.randn(50, 3, generator=generator) for name in costs}
        advice = advise(replace(found, valid={**noise, "mode-0": found.valid["mode-0"]}), 1.2)
        fooled += advice.chosen.members != ("mode-0",)
        lower += min(choice.nll for choice in advice.by_size) < nll_of(found, ["mode-0"])
        assert advice.optimism > 0
    assert lower > 20
    assert fooled <= 5
    flat = {name: torch.zeros_like(logits) for name, logits in found.valid.items()}
    advice = advise(replace(found, valid=flat), 1.2)
    assert (advice.chosen.members, f"{advice.optimism:.4f}") == (("mode-0",), "0.0000")


def test_the_optimism_is_that_of_the_lowest_of_many() -> None:
    """Networks of equal worth: how much lower the lowest NLL is than the mean one, on average."""
    expected, seen = [], []
    for seed in range(20):
        costs = {f"mode-{k}": MemberCost(100.0, 1000, alone=True) for k in range(12)}
        found = drawn(costs, 3, 200, 2.5, torch.Generator().manual_seed(seed))
        levels = [nll_of(found, [name]) for name in costs]
        expected.append(advise(replace(found, costs={**costs, "mode-0": MemberCost(100.0, 1000)}), 1.0).optimism)
        seen.append(float(np.mean(levels) - min(levels)))
    assert np.mean(expected) == pytest.approx(np.mean(seen), rel=0.5)


def test_networks_come_first_and_alone_means_alone() -> None:
    found = table()
    costs = {**found.costs, "mode-1": replace(found.costs["mode-1"], alone=True)}
    advice = advise(replace(found, costs=costs), 4.0)
    assert all(choice.members == ("mode-1",) or "mode-1" not in choice.members for choice in advice.by_size)
    assert advice.by_size[-1].members == ("mode-0", "mode-2", "I-0-1-small")


def test_it_counts_in_the_prices_it_is_given() -> None:
    found = table()
    prices = {name: cost.params / 1000 for name, cost in found.costs.items()}
    for budget in (1.05, 2.15):
        assert set(advise(found, budget, prices).chosen.members) == set(by_the_rule(found, budget, prices))
    with pytest.raises(ModebridgeError, match=r"at least one network, but got 0\.5"):
        advise(found, 0.5)


@pytest.mark.filterwarnings("ignore:Expected validation data with wrong predictions")
def test_many_members_are_not_all_compared() -> None:
    found = many(24, n=40)
    advice = advise(found, 9.0)
    assert not advice.exact
    assert len(advice.by_size[-1].members) == 26
    assert advise(found, 1.1).exact


def test_cascades_only_when_asked_for() -> None:
    found, budget = table(), 1.37
    plain, advice = advise(found, budget), advise(found, budget, cascades=True)
    assert plain.chosen.threshold is None
    chosen = advice.chosen
    assert chosen.nll < plain.chosen.nll - 0.005, "modes that err apart make good cascades"
    assert chosen.threshold == found.threshold(chosen.members, budget)
    whole = found.cost(chosen.members).relative_flops
    assert advice.cost(chosen) == pytest.approx(1 + chosen.deferred_share * (whole - 1))
    assert advice.cost(chosen) <= budget
    assert replace(chosen, intervals={}) == found.score(chosen.members, "valid", threshold=chosen.threshold)
    # No other first mode of these members is better.
    for first in (name for name in chosen.members if name.startswith("mode")):
        members = (first, *(name for name in chosen.members if name != first))
        threshold = found.threshold(members, budget)
        assert found.score(members, "valid", threshold=threshold).nll >= chosen.nll - 1e-12


def test_cascades_with_a_limited_loss() -> None:
    found = many(3, 1, n=3000)
    chosen = advise(found, 1.9, max_loss=0.05).chosen
    first, full = (found.calibrated(some, "valid") for some in (chosen.members[:1], chosen.members))
    assert chosen.threshold >= cascade_threshold(first, full, found.valid_labels, 0.05), "for all cascades at once"
    assert accuracy(full, found.valid_labels) - chosen.accuracy < 0.05
    assert advise(found, 1.9).chosen.threshold is None
    few = advise(many(3, 1, n=100), 1.9, max_loss=0.001)
    assert few.cascade is None
    assert "images cannot show that" in few.refused
