"""Combinations of members by cost and calibrated validation NLL: all of them where that is affordable, else a beam."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge.ensembles import Mean
from modebridge.ensembles.temperature import BOUNDS, FLOOR
from modebridge.evaluate.effort import Effort

__all__ = ["Found", "Members", "search"]

Combination: TypeAlias = tuple[int, ...]
"""Places of members, rising: networks come before bridges."""

MOST = 300_000_000
"""How many probabilities a search may look at: combinations x images x classes; some seconds on one core."""
SAMPLE = 2_000_000
"""How many probabilities of one member are looked at; of larger splits every second, third, ... image is."""
CHUNK = 131_072
"""How many probabilities are worked on at once: they stay in a core's cache."""
WIDTH, ROUNDS, PATIENCE = 64, 12, 2
"""How many combinations of each number of networks a beam keeps; how many rounds it is expected to take, and for how
many it goes on without a gain."""
EPSILON = 1e-9
"""What a cost may exceed a budget by, being a sum of floats."""


@dataclass(frozen=True)
class Members:
    """What may be combined: networks first, then bridges.

    Args:
        names: of all of them.
        reads: the places of the networks that each one reads; none for a network.
        prices: what each one adds to the cost; above 0.
        alone: the places of those that are no part of an ensemble with others.
        effort: the training behind them, where that counts.
    """

    names: tuple[str, ...]
    reads: tuple[frozenset[int], ...]
    prices: tuple[float, ...]
    alone: frozenset[int] = frozenset()
    effort: Effort | None = None

    @property
    def networks(self) -> int:
        """How many are networks."""
        return sum(not reads for reads in self.reads)

    def after(self, combination: Combination) -> Iterator[int]:
        """The places after the last one that may join; so every combination is reached by one way.

        A bridge on a network that is no member would pay for a network whose answer is thrown away.
        """
        taken = set(combination)
        start = combination[-1] + 1 if combination else 0
        stop = len(self.names) if combination else self.networks
        return (k for k in range(start, stop) if self.reads[k] <= taken and self._may_join(combination, k))

    def joining(self, combination: Combination) -> Iterator[int]:
        """All places that may join."""
        taken = set(combination)
        places = (k for k in range(len(self.names)) if k not in taken and self.reads[k] <= taken)
        return (k for k in places if self._may_join(combination, k))

    def _may_join(self, combination: Combination, k: int) -> bool:
        if combination and not self.alone.isdisjoint((*combination, k)):
            return False
        return self.effort is None or self.effort.allows([self.names[place] for place in (*combination, k)])

    def cost(self, combination: Combination) -> float:
        """In networks."""
        return sum(self.prices[k] for k in combination)


@dataclass(frozen=True)
class Found:
    """What a search looked at.

    Args:
        nll: the calibrated NLL of each combination, right to about 1e-6.
        whole: every combination that costs at most this was looked at, on every image; infinity for all.
    """

    nll: Mapping[Combination, float]
    whole: float


def search(
    members: Members,
    logits: Sequence[Sequence[Tensor]],
    labels: Tensor,
    budget: float,
    most: int = MOST,
    mean: Mean = "probability",
) -> Found:
    """Look at every combination up to as many networks as `most` allows, and at the best ones beyond.

    Args:
        members: what may be combined.
        logits: (N, K) of each head of each member.
        labels: (N,).
        budget: up to here every combination is looked at before any beyond.
        most: combinations x images x classes.
        mean: how members become one.
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
        # A narrow beam rather than a long wait: a round scores at most width x networks x members combinations.
        width = min(WIDTH, max(1, allowed // (ROUNDS * members.networks * len(members.names))))
        for cap in (budget, inf) if whole < budget else (inf,):
            _beam(members, scorer, nll, cap, width)
    return Found(nll, whole if stride == 1 else 0.0)


def _all_within(members: Members, cap: float, most: int) -> list[Combination] | None:
    """Every combination that costs at most `cap`; None where they are more than `most`."""
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
    """Add what a beam looks at to `nll`: the best of each number of networks grow by one member at a time."""
    seen = set(nll)

    def score(combinations: Iterable[Combination]) -> dict[Combination, float]:
        fresh = scorer.nll([one for one in combinations if one not in nll])
        nll.update(fresh)
        return fresh

    singles = [(k,) for k in members.after(()) if members.prices[k] <= cap + EPSILON]
    score(singles)
    # What is known already is where the beam begins: the best of each size.
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
    """A few of each number of networks: what nothing as cheap beats, then what nothing of the rest does, and so on."""
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
        # (M, K, N): sums over classes then run along images, which is what vector units like. Of several heads the sum.
        self._table = torch.stack(
            [torch.stack([of_head(head.double(), dim=-1) for head in heads]).sum(dim=0).float().T for heads in logits]
        )
        self._voices = torch.tensor([len(heads) for heads in logits])
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
        voices = torch.tensor([int(self._voices[list(combination)].sum()) for combination in chunk])
        rows, columns = (
            torch.arange(len(chunk)).repeat_interleave(sizes),
            torch.tensor([k for one in chunk for k in one]),
        )
        chosen = torch.zeros(len(chunk), members)
        chosen[rows, columns] = 1 / voices[rows].float()
        means = (chosen @ self._table.view(members, -1)).view(-1, classes, images)
        logs = (means.softmax(dim=1) if self._logarithmic else means).add_(FLOOR).log_()
        # Against its largest class, so that no power underflows as a whole.
        logs -= logs.amax(dim=1, keepdim=True)
        of_labels = logs.gather(1, self._labels.expand(len(chunk), 1, images)).squeeze(1)
        return _lowest(logs, of_labels, start)


def _lowest(logs: Tensor, of_labels: Tensor, start: float) -> tuple[list[float], float]:
    r"""The NLL of B tables, each at its best temperature: Newton's method on 1/T within `fit_temperature`'s bounds.

    .. math:: f(\beta) = \mathrm{mean}_n [\log \sum_k e^{\beta l_{nk}} - \beta l_{n y_n}]

    is convex in beta = 1/T, with the mean and the variance of l under the tempered probabilities as derivatives. A step
    that leaves the bracket of the root of f' is replaced by its geometric middle. Tables that no temperature can be
    fitted on keep T = 1, by `fit_temperature`'s own rule.

    Args:
        logs: (B, K, N) log probabilities, each column's largest being 0.
        of_labels: (B, N) those of the labels.
        start: the first beta.

    Returns:
        B numbers, and a beta to start others from.
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
        slope, bend = (first - of_labels).double().mean(dim=1), second.double().mean(dim=1)
        low, high = torch.where(slope > 0, low, beta), torch.where(slope > 0, beta, high)
        newton = beta - slope / bend
        inside = (newton > low) & (newton < high)
        step = torch.where(inside, newton, (low * high).sqrt())
        done = ((step / beta).log().abs() < 1e-2) & inside | ((high / low).log() < 1e-4)
        if bool(done.all()):
            # What the last step would still gain, to second order: so the step need not be taken.
            value = value - torch.where(inside, 0.5 * slope.square() / bend, 0.0)
            break
        beta = step
    confidence = total.double().reciprocal().mean(dim=1)  # of the largest class, whose power is 1
    images = of_labels.shape[1]
    sure = (of_labels == 0).all(dim=1) | ((beta > 1) & (confidence > (images + 1) / (images + 2)))
    if bool(sure.any()):
        plain = logs[sure].exp().sum(dim=1).log().double().mean(dim=1) - of_labels[sure].double().mean(dim=1)
        value[sure] = plain
    return value.tolist(), float(beta.log().mean().exp())
