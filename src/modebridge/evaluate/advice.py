"""What should I use? The best combination of modes and bridges under a budget, from validation data alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from modebridge.ensembles import scale
from modebridge.errors import ModebridgeError
from modebridge.evaluate.answers import Answers
from modebridge.evaluate.scores import accuracy, nll

__all__ = ["Advice", "Choice", "advise"]

Price = Callable[[Sequence[str]], float]


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
        chosen: the best combination within the budget.
        front: combinations that nothing cheaper beats, by rising cost, beyond the budget too.
        looked_at: how many combinations were scored.
    """

    chosen: Choice
    front: tuple[Choice, ...]
    looked_at: int


def advise(answers: Answers, budget: float, price: Price | None = None) -> Advice:
    """Choose members by greedy selection on the validation split; the test split is never looked at.

    From every single mode that the budget allows, the member that lowers the calibrated validation NLL most is added,
    again and again, while the cost allows it; then once more without a budget, for the front.

    Args:
        answers: what modes and bridges said; networks on curves, which only teach, are left out.
        budget: in networks; 1.2 is one network and a fifth.
        price: the cost of a combination; None counts relative FLOPs.
    """
    modes = [name for name, cost in answers.costs.items() if not cost.reads and not name.startswith("curve-")]
    bridges = [name for name, cost in answers.costs.items() if cost.reads]
    price = price or (lambda members: answers.cost(members)[0])
    if not budget >= min(price([name]) for name in modes):
        raise ModebridgeError(f"Expected a budget of at least one network, but got {budget:g}; 1.2 is a usual one.")
    known: dict[frozenset[str], Choice] = {}

    def look(members: Sequence[str]) -> Choice:
        key = frozenset(members)
        if key not in known:
            plain = answers.probabilities(members, "valid")
            tempered = scale(plain, answers.temperature(members))
            labels = answers.valid_labels
            known[key] = Choice(tuple(members), price(members), nll(tempered, labels), accuracy(plain, labels))
        return known[key]

    def climb(start: Choice, most: float) -> Choice:
        best = start
        while True:
            # A bridge on a mode that is no member would pay for a network whose answer is thrown away.
            ready = [b for b in bridges if set(answers.costs[b].reads) <= set(best.members)]
            options = [look([*best.members, name]) for name in [*modes, *ready] if name not in best.members]
            options = [choice for choice in options if choice.cost <= most + 1e-9 and choice.nll < best.nll]
            if not options:
                return best
            best = min(options, key=lambda choice: choice.nll)

    singles = sorted((look([name]) for name in modes), key=lambda choice: choice.nll)
    climb(singles[0], float("inf"))
    for start in singles:
        if start.cost <= budget + 1e-9:
            climb(start, budget)
    affordable = [choice for choice in known.values() if choice.cost <= budget + 1e-9]
    front: list[Choice] = []
    for choice in sorted(known.values(), key=lambda choice: (choice.cost, choice.nll)):
        if not front or choice.nll < front[-1].nll:
            front.append(choice)
    return Advice(min(affordable, key=lambda choice: (choice.nll, choice.cost)), tuple(front), len(known))
