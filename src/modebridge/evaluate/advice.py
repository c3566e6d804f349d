"""What should I use? The best combination of modes and bridges under a budget, from validation data alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf

import torch

from modebridge.ensembles import scale
from modebridge.errors import ModebridgeError
from modebridge.evaluate.answers import Answers
from modebridge.evaluate.scores import accuracy, nll
from modebridge.evaluate.search import CHUNK, EPSILON, MOST, Combination, Members, search

__all__ = ["Advice", "Choice", "advise"]

NEAR, TIES = 1e-5, 200
"""How near to the front the search's figure must be for a combination to be scored again in float64; how many."""


@dataclass(frozen=True)
class Choice:
    """A combination, what it costs in networks, and its scores on the validation split."""

    members: tuple[str, ...]
    cost: float
    nll: float
    accuracy: float


@dataclass(frozen=True)
class Advice:
    """What to use.

    Args:
        chosen: the best combination within the budget; its modes, then its bridges, each in the order of what they add.
        front: combinations that nothing as cheap or cheaper beats, by rising cost, beyond the budget too.
        looked_at: how many combinations were scored.
        whole: every combination that costs at most this was looked at, so that choice and front are the true ones up to
            there; infinity where all were.
    """

    chosen: Choice
    front: tuple[Choice, ...]
    looked_at: int
    whole: float


def advise(answers: Answers, budget: float, prices: Mapping[str, float] | None = None, *, most: int = MOST) -> Advice:
    """Choose members by their calibrated NLL on the validation split; the test split is never looked at.

    A combination is some modes and some bridges that read no others; so its cost is the sum of its members'. All are
    looked at where they are not too many; else all that cost up to so many networks (the budget at least, if possible)
    and, beyond, what a beam search finds.

    Args:
        answers: what modes and bridges said; networks on curves, which only teach, are left out.
        budget: in networks; 1.2 is one network and a fifth.
        prices: what each member adds to the cost, in networks; None takes relative FLOPs.
        most: combinations x images x classes that may be looked at.
    """
    members = _members(answers, prices)
    if not budget >= min(members.prices[: members.networks]):
        raise ModebridgeError(f"Expected a budget of at least one network, but got {budget:g}; 1.2 is a usual one.")
    small = answers.heads(members.names[0], "valid")[0].numel() <= CHUNK
    with _one_thread() if small else nullcontext():
        return _advice(answers, members, budget, most)


def _advice(answers: Answers, members: Members, budget: float, most: int) -> Advice:
    logits = [answers.heads(name, "valid") for name in members.names]
    searched = search(members, logits, answers.valid_labels, budget, most)
    costs = {one: members.cost(one) for one in searched.nll}
    # The search's last digits are float32's: what lies about its front is scored as every table scores it.
    near = [*_front(costs, searched.nll, 0.0), *_front(costs, searched.nll, NEAR)[:TIES]]
    scored = {one: _choice(answers, _by_gain(members, one, searched.nll), costs[one]) for one in dict.fromkeys(near)}
    front = _front({one: costs[one] for one in scored}, {one: choice.nll for one, choice in scored.items()}, 0.0)
    chosen = next(one for one in reversed(front) if costs[one] <= budget + EPSILON)
    return Advice(scored[chosen], tuple(scored[one] for one in front), len(searched.nll), searched.whole)


def _members(answers: Answers, prices: Mapping[str, float] | None) -> Members:
    modes = [name for name, cost in answers.costs.items() if not cost.reads and cost.usable]
    places = {name: place for place, name in enumerate(modes)}
    # A bridge whose modes are not all there cannot be run.
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
    )


def _front(costs: Mapping[Combination, float], nll: Mapping[Combination, float], slack: float) -> list[Combination]:
    """By rising cost, what has a lower NLL than everything as cheap or cheaper, or one higher by up to `slack`."""
    front: list[Combination] = []
    lowest = inf
    # Sums of the same prices in another order differ in the last bit: they are one cost.
    for one in sorted(costs, key=lambda one: (round(costs[one], 9), nll[one], len(one), one)):
        if nll[one] < lowest + slack:
            front.append(one)
        lowest = min(lowest, nll[one])
    return front


def _by_gain(members: Members, combination: Combination, nll: Mapping[Combination, float]) -> list[str]:
    """The names of a combination: modes, then bridges, each time the one that helps most.

    An elastic file asks the first mode alone, or the first few bridges.
    """
    ordered: list[int] = []
    for group in (
        [k for k in combination if k < members.networks],
        [k for k in combination if k >= members.networks],
    ):
        left = list(group)
        while left:
            # Where all were looked at the smaller ones are known too; elsewhere the order of unknown ones is kept.
            best = min(left, key=lambda k: nll.get(tuple(sorted((*ordered, k))), inf))
            left.remove(best)
            ordered.append(best)
    return [members.names[k] for k in ordered]


def _choice(answers: Answers, names: Sequence[str], cost: float) -> Choice:
    plain, labels = answers.probabilities(names, "valid"), answers.valid_labels
    tempered = scale(plain, answers.temperature(names))
    return Choice(tuple(names), cost, nll(tempered, labels), accuracy(plain, labels))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads would only wait for each other on small tables, most of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
