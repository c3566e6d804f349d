"""Choose members within a budget, from validation data only: as many as fit, then by their NLL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from modebridge.ensembles.temperature import FLOOR
from modebridge.errors import ModebridgeError
from modebridge.scoring.logit_table import LogitTable
from modebridge.scoring.scores import nll
from modebridge.scoring.table import Scored

Names: TypeAlias = tuple[str, ...]

WIDTH, NARROW = 128, 4
"""Combinations of each size and number of networks from which larger ones grow: within the budget, and one network
beyond it, for cascades."""
SAMPLE = 2000
"""About as many images are used to compare combinations; larger splits use every second, third, ... image."""
SHORTLIST = 16
"""Combinations of each size that are calibrated: the search itself compares them without a temperature."""
CHUNK = 10_000_000
"""Maximum number of probabilities averaged at once."""
EPSILON = 1e-9
"""Tolerance when comparing a cost, a sum of floats, with a budget."""


@dataclass(frozen=True)
class Advice:
    """The recommended combination and smaller ones, scored on the validation split.

    Args:
        chosen: the recommendation.
        by_size: the best combination of 1, 2, ... members within the budget.
        prices: cost of each member in networks.
        looked_at: number of combinations compared.
        exact: whether these are all combinations within the budget; otherwise the best ones of each size were extended.
    """

    chosen: Scored
    by_size: tuple[Scored, ...]
    prices: Mapping[str, float]
    looked_at: int
    exact: bool

    def cost(self, scored: Scored) -> float:
        """The cost of a combination in networks, by `prices`; for a cascade the average over the images."""
        first, *others = (self.prices[name] for name in scored.members)
        return first + scored.deferred_share * sum(others)


def advise(
    table: LogitTable,
    budget: float,
    prices: Mapping[str, float] | None = None,
    *,
    cascades: bool = False,
) -> Advice:
    """Choose the most members that fit a budget, and among equally many the lowest validation NLL.

    A combination consists of modes and of bridges that read only these modes, so its cost is the sum of its members'.
    The number of members comes first because the lowest of many validation scores is mostly lucky.

    Args:
        table: logits of modes and bridges; networks on curves, which are only targets, are left out.
        budget: maximum cost in networks, such as 1.2.
        prices: cost of each member in networks; None uses relative FLOPs.
        cascades: whether to also consider cascades with this average cost, of up to one network more: a mode runs alone
            on images where it is confident, and all members run on the others. On small validation splits their scores
            are optimistic.
    """
    costs = {name: cost for name, cost in table.costs.items() if cost.usable}
    modes = [name for name, cost in costs.items() if not cost.reads]
    names = [*modes, *(name for name, cost in costs.items() if cost.reads and set(cost.reads) <= set(modes))]
    if prices is None:
        prices = {name: costs[name].flops / costs[modes[0]].flops for name in names}
    if not budget >= min(prices[mode] for mode in modes):
        raise ModebridgeError(f"Expected a budget of at least one network, but got {budget:g}; try 1.2.")
    search = _Search(table, names, prices)
    by_size = list(map(search.best, search.by_size(budget)))
    chosen, exact = by_size[-1], search.exact
    if cascades:
        larger = [scored.members for scored in map(search.best, search.by_size(budget + 1, NARROW))]
        choices = [choice for members in larger for choice in search.cascades(members, budget)]
        chosen = min([chosen, *choices], key=lambda choice: choice.nll)
    return Advice(chosen, tuple(by_size), prices, search.looked_at, exact)


class _Search:
    """Grows combinations by one member at a time, and scores them on the validation split."""

    def __init__(self, table: LogitTable, names: Sequence[str], prices: Mapping[str, float]) -> None:
        self._table, self._prices = table, prices
        self._order = {name: place for place, name in enumerate(names)}
        step = max(1, len(table.valid_labels) // SAMPLE)
        labels = table.valid_labels[::step]
        heads = [torch.stack(table.heads(name, "valid"))[:, ::step] for name in names]
        # Only the probability of the label matters for the NLL; heads are summed. (M, N)
        self._of_labels = torch.stack(
            [logits.double().softmax(-1)[:, torch.arange(len(labels)), labels].sum(0) for logits in heads]
        )
        self._heads = torch.tensor([len(logits) for logits in heads], dtype=torch.float64)
        self.looked_at = 0
        self.exact = True

    def by_size(self, budget: float, width: int = WIDTH) -> list[list[Names]]:
        """The combinations of 1, 2, ... members within the budget, best first."""
        sizes: list[list[Names]] = []
        grown: list[Names] = [()]
        while fitting := self._grown(grown, budget):
            self.looked_at += len(fitting)
            losses = dict(zip(fitting, self._nll(fitting), strict=True))
            ranked = sorted(fitting, key=lambda one: (losses[one], one))
            groups: defaultdict[int, list[Names]] = defaultdict(list)
            for one in ranked:
                groups[sum(not self._table.costs[name].reads for name in one)].append(one)
            self.exact = self.exact and all(len(group) <= width for group in groups.values())
            grown = [one for group in groups.values() for one in group[:width]]
            sizes.append(ranked[: min(SHORTLIST, width)])
        return sizes

    def best(self, combinations: Sequence[Names]) -> Scored:
        """The one with the lowest calibrated NLL."""
        labels = self._table.valid_labels
        best = min(combinations, key=lambda one: nll(self._table.calibrated(one, "valid"), labels))
        return self._table.score(best, "valid")

    def cascades(self, members: Names, average_cost: float) -> list[Scored]:
        """The cascades of a combination with an average cost, each starting with another mode."""
        choices = []
        for first in members:
            if not self._table.costs[first].reads and self._prices[first] < average_cost:
                ordered = (first, *(name for name in members if name != first))
                threshold = self._table.threshold(ordered, average_cost, self._prices)
                choices.append(self._table.score(ordered, "valid", threshold=threshold))
        return [choice for choice in choices if 0 < choice.deferred_share < 1]

    def _grown(self, combinations: Sequence[Names], budget: float) -> list[Names]:
        """Each combination with one more member, in the order of the table, if it is allowed and fits."""
        costs = self._table.costs
        grown: dict[Names, None] = {}
        for one in combinations:
            left = budget + EPSILON - sum(self._prices[name] for name in one)
            for name in self._order:
                fits = name not in one and self._prices[name] <= left and set(costs[name].reads) <= set(one)
                if fits and not (one and any(costs[other].alone for other in (*one, name))):
                    grown[tuple(sorted((*one, name), key=self._order.__getitem__))] = None
        return list(grown)

    def _nll(self, combinations: Sequence[Names]) -> list[float]:
        """The NLL of the mean probability of each, without a temperature."""
        chosen = torch.tensor([[name in one for name in self._order] for one in combinations], dtype=torch.float64)
        losses: list[float] = []
        for chunk in torch.split(chosen, max(1, CHUNK // self._of_labels.shape[1])):
            means = (chunk @ self._of_labels) / (chunk @ self._heads).unsqueeze(1)
            losses += (-(means + FLOOR).log()).mean(dim=1).tolist()
        return losses
