"""Choose members within a budget, from validation data only, without falling for the lowest of many scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from modebridge.ensembles import cascade_threshold
from modebridge.ensembles.temperature import FLOOR
from modebridge.errors import ModebridgeError
from modebridge.scoring.logit_table import LogitTable
from modebridge.scoring.scores import interval_of, resampled_means, surprisals
from modebridge.scoring.table import Scored

Names: TypeAlias = tuple[str, ...]
Candidate: TypeAlias = tuple[Names, float | None]

WIDTH, NARROW = 128, 4
"""Combinations of each size and number of networks from which larger ones grow: within the budget, and one network
beyond it, for cascades."""
SAMPLE = 2000
"""About as many images are used to compare combinations; larger splits use every second, third, ... image."""
SHORTLIST = 16
"""Combinations of each size that are calibrated: the search itself compares them without a temperature."""
CHUNK = 10_000_000
"""Maximum number of probabilities averaged at once."""
DRAWS, ERROR = 1000, 0.05
"""Draws of the luck of the best of many, and the probability to take a combination that does not help."""
EPSILON = 1e-9
"""Tolerance when comparing a cost, a sum of floats, with a budget."""


@dataclass(frozen=True)
class Advice:
    """The recommended combination and others, scored on the validation split.

    Args:
        chosen: the recommendation; it and the others have the interval `gain`, one network's NLL minus theirs.
        by_size: the best combination of 1, 2, ... members within the budget.
        cascade: the best cascade, if any was considered.
        prices: cost of each member in networks.
        looked_at: number of combinations compared.
        exact: whether these are all combinations within the budget; otherwise the best ones of each size were extended.
        optimism: how much lower the lowest of the compared NLLs is expected to be than on new images, because it is the
            lowest (by the bootstrap).
        refused: why there is no cascade of a limited loss, if there is none.
    """

    chosen: Scored
    by_size: tuple[Scored, ...]
    cascade: Scored | None
    prices: Mapping[str, float]
    looked_at: int
    exact: bool
    optimism: float
    refused: str = ""

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
    max_loss: float | None = None,
) -> Advice:
    """Choose members within a budget, on the validation split.

    A combination consists of modes and of bridges that read only these modes, so its cost is the sum of its members'.
    It must be significantly better than the first mode, also given how many were compared, and not significantly worse
    than the best one, by paired bootstraps of the NLL; and no other may cost as much or less and have a lower NLL. Of
    these, the one with the most members is chosen, and then the lowest NLL. If there is none, it is the lowest NLL at
    the cost of the first mode or less: the lowest of many scores on a few hundred images is mostly lucky.

    Args:
        table: logits of modes and bridges; networks on curves, which are only targets, are left out.
        budget: maximum cost in networks, such as 1.2.
        prices: cost of each member in networks; None uses relative FLOPs.
        cascades: whether to also consider cascades with this average cost, of up to one network more: a mode runs alone
            on images where it is confident, and all members run on the others. The best one is chosen if it is
            significantly better than the choice without cascades, and better than all combinations.
        max_loss: the same, but with thresholds at which all of these cascades lose at most this share of the images,
            with a confidence of 95 %; see `cascade_threshold`.
    """
    costs = {name: cost for name, cost in table.costs.items() if cost.usable}
    modes = [name for name, cost in costs.items() if not cost.reads]
    names = [*modes, *(name for name, cost in costs.items() if cost.reads and set(cost.reads) <= set(modes))]
    if prices is None:
        prices = {name: costs[name].flops / costs[modes[0]].flops for name in names}
    if not budget >= prices[modes[0]]:
        raise ModebridgeError(f"Expected a budget of at least one network, but got {budget:g}; try 1.2.")
    search = _Search(table, names, prices)
    sizes = search.by_size(budget)
    exact, looked_at, bar = search.exact, search.looked_at, float(search.luck.quantile(1 - ERROR))
    # Each candidate: its members, and the threshold of a cascade.
    plain: list[Candidate] = [((modes[0],), None)]
    plain += [(members, None) for some in sizes for members in some if members != (modes[0],)]
    others: list[Candidate] = []
    if cascades or max_loss is not None:
        larger = [one for some in search.by_size(budget + 1, NARROW) for one in some if len(one) > 1]
        others = search.cascades(larger, budget, max_loss)
        looked_at += len(others)
    candidates = [*plain, *others]
    tables = (table.calibrated(members, "valid", threshold=threshold) for members, threshold in candidates)
    losses = torch.stack([surprisals(one, table.valid_labels) for one in tables], dim=1)
    means, nlls = resampled_means(losses), losses.mean(dim=0)

    def better(among: range, than: int, bar: float = 0.0) -> list[int]:
        """The candidates whose NLL is significantly lower than another one's, given how many are compared (max-T).

        They exceed in standard errors what the best of them would by luck, and `bar`.
        """
        if not among:
            return []
        gains, gain = means[:, than, None] - means[:, among], nlls[than] - nlls[among]
        spread = gains.std(dim=0).clamp_min(1e-12)
        critical = ((gains - gain) / spread).amax(dim=1).quantile(1 - ERROR).clamp_min(bar)
        return [k for k, won in zip(among, gain > critical * spread, strict=True) if won]

    whole, split = range(len(plain)), range(len(plain), len(candidates))
    cost = [sum(prices[name] for name in members) for members, _ in plain]
    best = min(whole, key=nlls.__getitem__)
    helpful = better(whole[1:], 0, bar)

    def beaten(k: int) -> bool:
        cheaper = any(cost[j] <= cost[k] + EPSILON and nlls[j] < nlls[k] for j in helpful)
        return cheaper or interval_of(means[:, k] - means[:, best])[0] > 0

    safe = [k for k in helpful if not beaten(k)]
    instead = min((k for k in whole if cost[k] <= cost[0] + EPSILON), key=nlls.__getitem__)
    chosen = max(safe, key=lambda k: (len(plain[k][0]), -float(nlls[k])), default=instead)
    cascade = min(split, key=nlls.__getitem__, default=None)
    if cascade in better(split, chosen) and nlls[cascade] < nlls[best]:
        chosen = cascade
    lucky = means.argmin(dim=1)
    optimism = max(0.0, float((nlls[lucky] - means.gather(1, lucky[:, None])[:, 0]).mean()))  # not below by rounding

    def scored(k: int) -> Scored:
        found = table.score(candidates[k][0], "valid", threshold=candidates[k][1])
        return replace(found, intervals={"gain": interval_of(means[:, 0] - means[:, k])} if k else {})

    ranked = sorted(range(len(plain)), key=lambda k: float(nlls[k]))
    by_size = tuple(scored(next(k for k in ranked if plain[k][0] in some)) for some in sizes)
    shown = None if cascade is None else scored(cascade)
    return Advice(scored(chosen), by_size, shown, prices, looked_at, exact, optimism, "" if others else search.refused)


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
        self._alone = -(self._of_labels[0] / self._heads[0] + FLOOR).log()
        self._noise = torch.randn(DRAWS, len(labels), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.luck = torch.zeros(DRAWS, dtype=torch.float64)
        """By how many standard errors the best of all compared combinations would beat the first network by luck."""
        self.looked_at, self.refused = 0, ""
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

    def cascades(self, combinations: Sequence[Names], budget: float, max_loss: float | None) -> list[Candidate]:
        """The cascades of combinations within an average cost, each starting with another mode."""
        table = self._table
        found: list[Candidate] = []
        firsts = [(one, first) for one in combinations for first in one if not table.costs[first].reads]
        for members, first in firsts:
            ordered = (first, *(name for name in members if name != first))
            alone = table.calibrated([first], "valid")
            if max_loss is None:
                threshold = table.threshold(ordered, budget, self._prices)
            else:
                full, confidence = table.calibrated(ordered, "valid"), 1 - 0.05 / len(firsts)
                try:
                    threshold = cascade_threshold(alone, full, table.valid_labels, max_loss, confidence)
                except ModebridgeError as error:
                    self.refused = str(error).partition(", but ")[2]
                    continue
            share = float((alone.amax(dim=1) < threshold).double().mean())
            cost = self._prices[first] + share * sum(self._prices[name] for name in ordered[1:])
            if 0 < share < 1 and cost <= budget + EPSILON:
                found.append((ordered, threshold))
        return found

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
            loss = -(means + FLOOR).log()
            losses += loss.mean(dim=1).tolist()
            # The multiplier bootstrap of a maximum (Chernozhukov et al., 2013).
            gains = self._alone - loss
            apart = gains - gains.mean(dim=1, keepdim=True)
            spread = apart.square().sum(dim=1).sqrt().clamp_min(1e-12)
            self.luck = torch.maximum(self.luck, (self._noise @ (apart / spread[:, None]).T).amax(dim=1))
        return losses
