"""Search combinations of members by cost and calibrated validation NLL: exhaustively if feasible, else with a beam."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge.ensembles import Mean
from modebridge.ensembles.temperature import BOUNDS, FLOOR
from modebridge.scoring.effort import Effort

__all__ = ["Members", "search"]

Combination: TypeAlias = tuple[int, ...]
"""Ascending indices of members; networks come before bridges."""

MOST = 300_000_000
"""Maximum number of probabilities in a search, combinations x images x classes: some seconds on one core."""
SAMPLE = 2_000_000
"""Maximum number of probabilities per member; larger splits use every second, third, ... image."""
CHUNK = 131_072
"""Probabilities processed at once, so that they stay in a core's cache."""
WIDTH, ROUNDS, PATIENCE = 64, 12, 2
"""Combinations that a beam keeps per number of networks, its expected number of rounds, and the rounds it continues
without improvement."""
EPSILON = 1e-9
"""Tolerance when comparing a cost, a sum of floats, with a budget."""


@dataclass(frozen=True)
class Members:
    """The members to combine: networks first, then bridges.

    Args:
        names: names of the members.
        reads: indices of the networks that each member reads; empty for a network.
        prices: cost that each member adds; above 0.
        alone: indices of members that cannot be combined with others.
        effort: the training they need, if it is limited.
    """

    names: tuple[str, ...]
    reads: tuple[frozenset[int], ...]
    prices: tuple[float, ...]
    alone: frozenset[int] = frozenset()
    effort: Effort | None = None

    @property
    def networks(self) -> int:
        """Number of networks."""
        return sum(not reads for reads in self.reads)

    def after(self, combination: Combination) -> Iterator[int]:
        """The indices after the last one that may join, so that every combination is reached in only one way.

        A bridge may not read a network that is not a member: its cost would be paid and its prediction discarded.
        """
        return self.joining(combination, combination[-1] + 1 if combination else 0)

    def joining(self, combination: Combination, start: int = 0) -> Iterator[int]:
        """All indices from `start` on that may join."""
        taken = set(combination)
        places = (k for k in range(start, len(self.names)) if k not in taken and self.reads[k] <= taken)
        return (k for k in places if self._may_join(combination, k))

    def _may_join(self, combination: Combination, k: int) -> bool:
        if combination and not self.alone.isdisjoint((*combination, k)):
            return False
        return self.effort is None or self.effort.allows([self.names[place] for place in (*combination, k)])

    def cost(self, combination: Combination) -> float:
        """The cost in networks."""
        return sum(self.prices[k] for k in combination)


def search(
    members: Members,
    logits: Sequence[Sequence[Tensor]],
    labels: Tensor,
    budget: float,
    most: int = MOST,
    mean: Mean = "probability",
) -> tuple[dict[Combination, float], float]:
    """Score all combinations up to the cost that `most` allows, and the best ones beyond.

    Args:
        members: the members to combine.
        logits: logits (N, K) of each head of each member.
        labels: labels (N,).
        budget: combinations up to this cost are scored before any others.
        most: maximum number of combinations x images x classes.
        mean: how the members' probabilities are averaged.

    Returns:
        The calibrated NLL of each combination, accurate to about 1e-6; and the cost up to which all combinations were
        scored on all images, infinity for all.
    """
    stride = ceil(logits[0][0].numel() / SAMPLE)
    scorer = _Scorer([[head[::stride] for head in heads] for heads in logits], labels[::stride], mean)
    allowed = max(most // scorer.numbers, 1)
    whole = 0.0
    listed: list[Combination] | None = None
    for cap in (inf, *(cap for cap in range(members.networks, 1, -1) if cap > budget), budget):
        listed = _all_within(members, cap, allowed)
        if listed is not None:
            whole = float(cap)
            break
    nll = scorer.nll(listed or [])
    if whole < inf:
        # Narrow the beam to limit the time: a round scores at most width x networks x members combinations.
        width = min(WIDTH, max(1, allowed // (ROUNDS * members.networks * len(members.names))))
        for cap in (budget, inf) if whole < budget else (inf,):
            _beam(members, scorer, nll, cap, width)
    return nll, whole if stride == 1 else 0.0


def _all_within(members: Members, cap: float, most: int) -> list[Combination] | None:
    """All combinations that cost at most `cap`; None if there are more than `most`."""
    listed: list[Combination] = []
    waiting: list[tuple[Combination, float]] = [((), 0.0)]
    while waiting:
        combination, cost = waiting.pop()
        more = ((k, cost + members.prices[k]) for k in members.after(combination))
        waiting += [((*combination, k), costing) for k, costing in more if costing <= cap + EPSILON]
        if combination:
            listed.append(combination)
        if len(listed) + len(waiting) > most:
            return None
    return listed


def _beam(members: Members, scorer: _Scorer, nll: dict[Combination, float], cap: float, width: int) -> None:
    """Add the combinations of a beam search to `nll`: the best per number of networks grow by one member at a time."""
    seen = set(nll)

    def score(combinations: Iterable[Combination]) -> dict[Combination, float]:
        fresh = scorer.nll([one for one in combinations if one not in nll])
        nll.update(fresh)
        return fresh

    singles = [(k,) for k in members.after(()) if members.prices[k] <= cap + EPSILON]
    score(singles)
    # The beam starts from the best known combinations of each size.
    kept = _best(members, {one: nll[one] for one in {*singles, *seen} if members.cost(one) <= cap + EPSILON}, width)
    lowest = {count: min(nll[one] for one in ones) for count, ones in kept.items()}
    idle = dict.fromkeys(kept, 0)
    while kept:
        grown = {
            tuple(sorted((*one, k)))
            for ones in kept.values()
            for one in ones
            for k in members.joining(one)
            if members.cost(one) + members.prices[k] <= cap + EPSILON
        }
        kept = _best(members, score(grown), width)
        for count, ones in list(kept.items()):
            best = min(nll[one] for one in ones)
            idle[count] = 0 if best < lowest.get(count, inf) else idle.get(count, 0) + 1
            lowest[count] = min(best, lowest.get(count, inf))
            if idle[count] > PATIENCE:
                del kept[count]


def _best(members: Members, nll: Mapping[Combination, float], width: int) -> dict[int, list[Combination]]:
    """The best `width` per number of networks: the Pareto front, then the front of the rest, and so on."""
    groups: dict[int, list[Combination]] = {}
    for one in sorted(nll, key=lambda one: (round(members.cost(one), 9), nll[one], one)):
        groups.setdefault(sum(k < members.networks for k in one), []).append(one)
    for count, rest in groups.items():
        kept: list[Combination] = []
        while rest and len(kept) < width:
            front: list[Combination] = []
            behind: list[Combination] = []
            lowest = inf
            for one in rest:
                (front if nll[one] < lowest else behind).append(one)
                lowest = min(lowest, nll[one])
            kept, rest = kept + front[-(width - len(kept)) :], behind
        groups[count] = kept
    return groups


class _Scorer:
    """The calibrated NLL of many combinations at a time, in float32."""

    def __init__(self, logits: Sequence[Sequence[Tensor]], labels: Tensor, mean: Mean = "probability") -> None:
        self._logarithmic = mean == "logarithmic"
        of_head = torch.log_softmax if self._logarithmic else torch.softmax
        # (M, K, N): sums over classes then vectorise along images. Several heads are summed.
        self._table = torch.stack(
            [torch.stack([of_head(head.double(), dim=-1) for head in heads]).sum(dim=0).float().T for heads in logits]
        )
        self._heads = torch.tensor([len(heads) for heads in logits])
        self._labels = labels
        self.numbers = self._table[0].numel()

    def nll(self, combinations: Sequence[Combination]) -> dict[Combination, float]:
        lowest_nll: dict[Combination, float] = {}
        size = max(1, CHUNK // self.numbers)
        inverse = 1.0
        for start in range(0, len(combinations), size):
            chunk = combinations[start : start + size]
            scores, inverse = self._chunk(chunk, inverse)
            lowest_nll.update(zip(chunk, scores, strict=True))
        return lowest_nll

    def _chunk(self, chunk: Sequence[Combination], start: float) -> tuple[list[float], float]:
        members, classes, images = self._table.shape
        sizes = torch.tensor([len(combination) for combination in chunk])
        heads = torch.tensor([int(self._heads[list(combination)].sum()) for combination in chunk])
        rows, columns = (
            torch.arange(len(chunk)).repeat_interleave(sizes),
            torch.tensor([k for one in chunk for k in one]),
        )
        chosen = torch.zeros(len(chunk), members)
        chosen[rows, columns] = 1 / heads[rows].float()
        means = (chosen @ self._table.view(members, -1)).view(-1, classes, images)
        logs = (means.softmax(dim=1) if self._logarithmic else means).add_(FLOOR).log_()
        # Relative to the largest class, so that not all powers underflow.
        logs -= logs.amax(dim=1, keepdim=True)
        of_labels = logs.gather(1, self._labels.expand(len(chunk), 1, images)).squeeze(1)
        return _lowest(logs, of_labels, start)


def _lowest(logs: Tensor, of_labels: Tensor, start: float) -> tuple[list[float], float]:
    r"""The NLL of B tables, each at its best temperature, by Newton's method on 1/T within `fit_temperature`'s bounds.

    .. math:: f(\beta) = \mathrm{mean}_n [\log \sum_k e^{\beta l_{nk}} - \beta l_{n y_n}]

    is convex in beta = 1/T, with the mean and the variance of l under the tempered probabilities as derivatives. A step
    that leaves the bracket of the root of f' is replaced by its geometric mean. Tables on which no temperature can be
    fitted keep T = 1, by the rule of `fit_temperature`.

    Args:
        logs: log probabilities (B, K, N), shifted so that each column's maximum is 0.
        of_labels: log probabilities (B, N) of the labels.
        start: the initial beta.

    Returns:
        B values, and an initial beta for further tables.
    """
    beta = torch.full((len(logs),), start, dtype=torch.float64)
    low, high = torch.full_like(beta, 1 / BOUNDS[1]), torch.full_like(beta, 1 / BOUNDS[0])
    value, total = torch.full_like(beta, inf), of_labels
    for _ in range(60):
        power = (logs * beta.float().view(-1, 1, 1)).exp_()
        total = power.sum(dim=1)
        first = power.mul_(logs).sum(dim=1) / total
        second = power.mul_(logs).sum(dim=1) / total - first.square()
        value = total.log().double().mean(dim=1) - beta * of_labels.double().mean(dim=1)
        slope, curvature = (first - of_labels).double().mean(dim=1), second.double().mean(dim=1)
        low, high = torch.where(slope > 0, low, beta), torch.where(slope > 0, beta, high)
        newton = beta - slope / curvature
        inside = (newton > low) & (newton < high)
        step = torch.where(inside, newton, (low * high).sqrt())
        done = ((step / beta).log().abs() < 1e-2) & inside | ((high / low).log() < 1e-4)
        if bool(done.all()):
            # Subtract the gain of the last step, to second order, instead of taking it.
            value = value - torch.where(inside, 0.5 * slope.square() / curvature, 0.0)
            break
        beta = step
    confidence = total.double().reciprocal().mean(dim=1)  # of the largest class, whose power is 1
    images = of_labels.shape[1]
    unfitted = (of_labels == 0).all(dim=1) | ((beta > 1) & (confidence > (images + 1) / (images + 2)))
    if bool(unfitted.any()):
        plain = logs[unfitted].exp().sum(dim=1).log().double().mean(dim=1) - of_labels[unfitted].double().mean(dim=1)
        value[unfitted] = plain
    return value.tolist(), float(beta.log().mean().exp())
