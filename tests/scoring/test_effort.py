"""Advice under a training budget, and about members that are used alone: compared with trying every set."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from modebridge.errors import ModebridgeError
from modebridge.scoring import Effort, LogitTable, advise
from modebridge.scoring.search import Members
from tests.scoring.test_cascade import answers

NAMES = ("mode-0", "mode-1", "mode-2", "I-0-1-small")
PARTS = {
    "mode-0": frozenset({"0"}),
    "mode-1": frozenset({"1"}),
    "mode-2": frozenset({"0", "1", "student"}),
    "I-0-1-small": frozenset({"0", "1", "curve", "bridge"}),
}
EPOCHS = {"0": 20.0, "1": 20.0, "student": 60.0, "curve": 40.0, "bridge": 10.0}


def tried(found: LogitTable, effort: Effort, budget: float, alone: str = "") -> tuple[str, ...]:
    """The best set by hand: every one that reads only itself, is trained within the limit, and is cheap enough."""
    sets = [some for count in range(1, 5) for some in combinations(NAMES, count)]
    sets = [some for some in sets if "I-0-1-small" not in some or "mode-0" in some]
    sets = [some for some in sets if effort.of(some) <= effort.most and (alone not in some or len(some) == 1)]
    sets = [some for some in sets if found.cost(some)[0] <= budget + 1e-9]
    return min(sets, key=lambda some: nll_of(found, some))


def nll_of(found: LogitTable, some: tuple[str, ...]) -> float:
    swapped = replace(found, test=found.valid, test_labels=found.valid_labels)
    return swapped.score(some).nll


@pytest.mark.parametrize("most", [20, 100, 110, 1000])
@pytest.mark.parametrize("budget", [1.2, 4.0])
@pytest.mark.parametrize("beam", [False, True])
def test_it_is_the_best_of_all_that_can_be_trained(most: float, budget: float, beam: bool) -> None:
    found, effort = answers(seed=3), Effort(PARTS, EPOCHS, most)
    # A search that may look at nearly nothing goes by its beam.
    advice = advise(found, budget, cascades=False, effort=effort, **({"most": 1} if beam else {}))
    assert set(advice.chosen.members) == set(tried(found, effort, budget))
    assert advice.chosen.training == effort.of(advice.chosen.members) <= most
    assert all(choice.training <= most for choice in advice.front)


def test_what_is_used_alone_is_in_no_ensemble() -> None:
    found = answers(seed=3)
    costs = {**found.costs, "mode-1": replace(found.costs["mode-1"], alone=True)}
    advice = advise(replace(found, costs=costs), 4.0)
    assert all(choice.members == ("mode-1",) or "mode-1" not in choice.members for choice in advice.front)
    plain = Effort(PARTS, EPOCHS)
    assert set(advise(replace(found, costs=costs), 4.0, cascades=False).chosen.members) == set(
        tried(found, plain, 4.0, alone="mode-1")
    )
    members = Members(("a", "b", "c"), (frozenset(),) * 3, (1.0,) * 3, frozenset({1}))
    assert [list(members.after(one)) for one in ((), (0,), (1,))] == [[0, 1, 2], [2], []]
    assert list(members.joining((1,))) == []


def test_what_cannot_be_trained_is_said() -> None:
    with pytest.raises(ModebridgeError, match="at least 20 epochs of one network, but got 19"):
        advise(answers(), 1.2, effort=Effort(PARTS, EPOCHS, 19))
    only = Effort(dict.fromkeys(NAMES, frozenset({"0"})) | {"mode-0": frozenset({"0", "1"})}, EPOCHS, 20)
    dear = {name: (3.0 if name != "mode-0" else 1.0) for name in NAMES}
    with pytest.raises(ModebridgeError, match=r"to cost at most 1\.2 networks, but the cheapest costs 3"):
        advise(answers(), 1.2, dear, effort=only)
