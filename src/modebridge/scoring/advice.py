"""Choose the best combination or cascade of members within a budget, from validation data only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from modebridge.ensembles import Mean
from modebridge.errors import ModebridgeError
from modebridge.scoring.cascade import ALL, choose_threshold
from modebridge.scoring.effort import Effort
from modebridge.scoring.logit_table import LogitTable
from modebridge.scoring.scores import hits, surprisals
from modebridge.scoring.search import CHUNK, EPSILON, MOST, Combination, Members, search

__all__ = ["Advice", "Choice", "advise"]

NEAR, TIES = 1e-5, 200
"""Distance to the front within which combinations are scored again in float64, and their maximum number."""
POINTS = (1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0)
"""Average costs at which cascades are evaluated, in addition to the budget."""


@dataclass(frozen=True)
class Choice:
    """A combination, its cost and its scores on the validation split.

    Args:
        members: modes, then bridges, each ordered by gain; in a cascade the mode that runs on all images comes first.
        cost: cost in networks; for a cascade the average over the validation images.
        nll: calibrated negative log likelihood.
        accuracy: share of correct predictions.
        mean: how the members' probabilities are averaged.
        average_cost: cost limit of a cascade; None for a combination that runs on all images.
        threshold: images for which the first member is at least this confident use it alone.
        asked: share of validation images that need the other members.
        training: training needed, in epochs of one network; None if not requested.
    """

    members: tuple[str, ...]
    cost: float
    nll: float
    accuracy: float
    mean: Mean = "probability"
    average_cost: float | None = None
    threshold: float | None = None
    asked: float = 1.0
    training: float | None = None


@dataclass(frozen=True)
class Advice:
    """The recommended combination and the alternatives.

    Args:
        chosen: the best combination or cascade within the budget.
        front: the Pareto front by rising cost, also beyond the budget: combinations, and the best cascade at each of a
            few average costs.
        looked_at: number of combinations scored.
        whole: the search is exhaustive up to this cost, so choice and front are exact up to there; infinity if all
            combinations were scored. Cascades use only combinations on the front.
        other_mean: the chosen members, at the same average cost, with the other mean.
    """

    chosen: Choice
    front: tuple[Choice, ...]
    looked_at: int
    whole: float
    other_mean: Choice


def advise(
    answers: LogitTable,
    budget: float,
    prices: Mapping[str, float] | None = None,
    *,
    most: int = MOST,
    cascades: bool = True,
    mean: Mean = "probability",
    effort: Effort | None = None,
) -> Advice:
    """Choose members by their calibrated NLL on the validation split; the test split is never used.

    A combination consists of modes and of bridges that read only these modes, so its cost is the sum of its members'.
    If feasible, all are scored. Otherwise all up to some cost (at least the budget, if possible) are scored, and a beam
    search covers the rest. Each combination on the front is also evaluated as a cascade, at some average costs and at
    the budget: one of its modes runs alone on images where it is confident, and all members run on the others.

    Args:
        answers: logits of modes and bridges; networks on curves, which are only targets, are left out.
        budget: maximum cost in networks, such as 1.2.
        prices: cost of each member in networks; None uses relative FLOPs.
        most: maximum number of combinations x images x classes to score.
        cascades: whether to consider cascades; they save FLOPs but no parameters.
        mean: how the members' probabilities are averaged.
        effort: training needed by the members, and its limit; None for no limit.
    """
    members = _members(answers, prices, effort)
    if not list(members.after(())):
        assert effort is not None
        least = min(effort.of([name]) for name in members.names[: members.networks])
        raise ModebridgeError(
            f"Expected a training budget of at least {least:.3g} epochs of one network, but got {effort.most:g}; "
            "specify which networks are already trained, or allow more."
        )
    if not budget >= min(members.prices[: members.networks]):
        raise ModebridgeError(f"Expected a budget of at least one network, but got {budget:g}; try 1.2.")
    small = answers.heads(members.names[0], "valid")[0].numel() <= CHUNK
    with _one_thread() if small else nullcontext():
        return _advice(answers, members, budget, most, cascades, mean)


def _advice(answers: LogitTable, members: Members, budget: float, most: int, cascades: bool, mean: Mean) -> Advice:
    logits = [answers.heads(name, "valid") for name in members.names]
    nll, whole = search(members, logits, answers.valid_labels, budget, most, mean)
    costs = {one: members.cost(one) for one in nll}
    # The search uses float32: combinations near its front are scored again in float64, as in every table.
    near = [*_front(costs, nll, 0.0), *_front(costs, nll, NEAR)[:TIES]]
    judge = _Judge(answers, members, mean)
    scored = {one: judge.choice(_by_gain(members, one, nll), costs[one]) for one in dict.fromkeys(near)}
    order = _front({one: costs[one] for one in scored}, {one: choice.nll for one, choice in scored.items()}, 0.0)
    front = [scored[one] for one in order]
    if cascades:
        front = _merged(front, judge.cascades([choice.members for choice in front], {*POINTS, budget}))
    chosen = next((one for one in reversed(front) if one.cost <= budget + EPSILON), None)
    if chosen is None:
        raise ModebridgeError(
            f"Expected some combination within the training budget to cost at most {budget:g} networks, but the "
            f"cheapest costs {front[0].cost:.3g}; raise one of the two."
        )
    other = _Judge(answers, members, "probability" if mean == "logarithmic" else "logarithmic")
    counted, effort = front, members.effort
    if effort is not None:
        counted = [replace(choice, training=effort.of(choice.members)) for choice in front]
    return Advice(counted[front.index(chosen)], tuple(counted), len(nll), whole, other.like(chosen))


class _Judge:
    """Scores choices on the validation split, from the surprisal and correctness of each image."""

    def __init__(self, answers: LogitTable, members: Members, mean: Mean) -> None:
        self._answers, self._mean = answers, mean
        self._prices = dict(zip(members.names, members.prices, strict=True))
        self._seen: dict[tuple[str, ...], tuple[Tensor, Tensor, Tensor]] = {}

    def choice(self, names: Sequence[str], cost: float) -> Choice:
        """A combination that runs on all images."""
        _, surprise, right = self._images(names)
        return Choice(tuple(names), cost, float(surprise.mean()), float(right.mean()), self._mean)

    def cascade(self, names: Sequence[str], average_cost: float) -> Choice | None:
        """The cascade of a combination at an average cost; None if the cost is not above the first member's."""
        alone, whole = self._prices[names[0]], sum(self._prices[name] for name in names)
        if not alone < average_cost < whole:
            return None
        confidence, short, short_right = self._images(names[:1])
        threshold = choose_threshold(confidence, alone, whole - alone, average_cost)
        if threshold == ALL:
            return None
        unsure = confidence < threshold
        _, long, long_right = self._images(names)
        share = float(unsure.double().mean())
        return Choice(
            tuple(names),
            alone + share * (whole - alone),
            float(torch.where(unsure, long, short).mean()),
            float(torch.where(unsure, long_right, short_right).mean()),
            self._mean,
            average_cost,
            threshold,
            share,
        )

    def cascades(self, combinations: Sequence[Sequence[str]], points: Iterable[float]) -> list[Choice]:
        """The best cascade at each average cost, over all combinations and all their modes as first member."""
        reads = self._answers.costs
        orders = [
            (first, *(name for name in names if name != first))
            for names in combinations
            for first in names
            if not reads[first].reads
        ]
        best: list[Choice] = []
        for point in sorted(points):
            choices = [
                choice for names in orders if (choice := self.cascade(names, point)) is not None and choice.asked
            ]
            best += [min(choices, key=lambda one: (one.nll, one.cost, one.members))] if choices else []
        return best

    def like(self, chosen: Choice) -> Choice:
        """The same members at the same average cost, with this judge's mean."""
        plain = self.choice(chosen.members, chosen.cost)
        return plain if chosen.average_cost is None else self.cascade(chosen.members, chosen.average_cost) or plain

    def _images(self, names: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Confidence, surprisal and correctness of every validation image, each (N,)."""
        # The order of members does not matter here, and cascades use several orders.
        key = tuple(sorted(names))
        if key not in self._seen:
            table, labels = self._answers.calibrated(names, "valid", mean=self._mean), self._answers.valid_labels
            self._seen[key] = table.amax(dim=-1), surprisals(table, labels), hits(table, labels)
        return self._seen[key]


def _merged(front: Sequence[Choice], cascades: Sequence[Choice]) -> list[Choice]:
    """The joint front: by rising cost, choices with a lower NLL than everything as cheap or cheaper."""
    merged: list[Choice] = []
    for one in sorted([*front, *cascades], key=lambda one: (round(one.cost, 9), one.nll, one.members)):
        if not merged or one.nll < merged[-1].nll:
            merged.append(one)
    return merged


def _members(answers: LogitTable, prices: Mapping[str, float] | None, effort: Effort | None) -> Members:
    modes = [name for name, cost in answers.costs.items() if not cost.reads and cost.usable]
    places = {name: place for place, name in enumerate(modes)}
    # A bridge can run only if all modes it reads are available.
    readers = {name: set(cost.reads) for name, cost in answers.costs.items() if cost.reads and cost.usable}
    bridges = [name for name, reads in readers.items() if reads <= set(modes)]
    names = (*modes, *bridges)
    if prices is None:
        unit = answers.costs[modes[0]].flops
        prices = {name: answers.costs[name].flops / unit for name in names}
    return Members(
        names,
        tuple(frozenset(places[mode] for mode in answers.costs[name].reads) for name in names),
        tuple(prices[name] for name in names),
        frozenset(place for place, name in enumerate(names) if answers.costs[name].alone),
        effort,
    )


def _front(costs: Mapping[Combination, float], nll: Mapping[Combination, float], slack: float) -> list[Combination]:
    """By rising cost, combinations with an NLL below that of everything as cheap or cheaper, plus `slack`."""
    front: list[Combination] = []
    lowest = inf
    # Sums of the same prices in another order differ in the last bit: treat them as equal.
    for one in sorted(costs, key=lambda one: (round(costs[one], 9), nll[one], len(one), one)):
        if nll[one] < lowest + slack:
            front.append(one)
        lowest = min(lowest, nll[one])
    return front


def _by_gain(members: Members, combination: Combination, nll: Mapping[Combination, float]) -> list[str]:
    """The names of a combination: modes, then bridges, greedily ordered by gain.

    An elastic file may run only the first mode, or only the first few bridges.
    """
    ordered: list[int] = []
    for group in (
        [k for k in combination if k < members.networks],
        [k for k in combination if k >= members.networks],
    ):
        left = list(group)
        while left:
            # After an exhaustive search all subsets are known; otherwise unknown ones keep their order.
            best = min(left, key=lambda k: nll.get(tuple(sorted((*ordered, k))), inf))
            left.remove(best)
            ordered.append(best)
    return [members.names[k] for k in ordered]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: on small tables threads mostly wait for each other, especially on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
