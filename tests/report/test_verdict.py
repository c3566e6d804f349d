"""The verdict: what helped, how many networks it is worth, and nothing where there is nothing to say."""

from __future__ import annotations

from typing import Any

import pytest

from modebridge.report import short_rows, verdict
from modebridge.scoring import Row
from tests.report.test_tables import row

GUESS = 2.3
"""The NLL of guessing among ten classes."""


def outcome(*networks: float, gain: tuple[float, float] = (0.01, 0.2), **ours: Any) -> list[Row]:
    """Rows of one, two, ... networks, and of others by role: NLL, and possibly cost and the intervals of the gain."""
    words = ("one network", "two networks", "three networks")
    rows = [
        row(words[k], nll, flops=k + 1.0, family="networks", role=("one", "two", "")[k], intervals={"gain": gain})
        for k, nll in enumerate(networks)
    ]
    names = {"heads": "one network + 3 heads", "distilled": "distilled network", "bridge": "one network + 1 bridge"}
    names |= {"control": "one network + 1 bridge on labels", "": "cascade of three networks"}
    for role, given in ours.items():
        nll, flops, own = given if isinstance(given, tuple) else (given, 1.04, (0.01, 0.2))
        role = role.removesuffix("other")
        bounds = {"gain": own, "closed": (0.36, 0.884)}
        rows.append(row(names[role], nll, flops=flops, family=role or "cascade", role=role, intervals=bounds))
    return rows


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            outcome(0.476, 0.383, 0.355, heads=0.355),
            "One network with 3 heads takes 4 % more multiply-adds and is about as good as three networks: NLL 0.355, "
            "one 0.476, three 0.355. Nothing else here that costs less than two networks is better.",
        ),
        (
            outcome(0.476, 0.383, heads=0.37, distilled=(0.325, 1.0, (0.1, 0.2))),
            "is about as good as two networks: NLL 0.370, one 0.476, two 0.383. The lowest NLL for less than the "
            "cost of two: distilled network, 0.325 at x1.00.",
        ),
        (
            outcome(0.4, 0.3, heads=0.35),
            "closes 50 % (95 % interval 36 to 88) of the gap between one network and two: NLL 0.350, one 0.400, two",
        ),
        (
            outcome(0.4, 0.3, gain=(0.05, 0.1), heads=(0.2, 1.1, (0.11, 0.3))),
            "10 % more multiply-adds and is better than two",
        ),
        (
            outcome(0.4, 0.3, bridge=0.35, control=0.34, other=(0.32, 1.86, (0.01, 0.2))),
            "two 0.300; the control, one network + 1 bridge on labels, has 0.340 at no more cost. The lowest NLL "
            "for less than the cost of two: cascade of three networks, 0.320 at x1.86.",
        ),
        (outcome(0.4, 0.3, bridge=0.35, control=(0.34, 1.05, (0.01, 0.2))), "two 0.300. The lowest NLL for less"),
        (outcome(0.4, 0.3, 0.2, heads=0.25), "is about as good as two networks: NLL 0.250, one 0.400, two 0.300."),
        (outcome(0.4, 0.3, bridge=0.35), "with 1 bridge takes 4 % more multiply-adds and closes 50 % (95 % interval"),
        (
            outcome(0.4, 0.3, distilled=(0.3, 1.0, (0.1, 0.2))),
            "Distilled network costs no more and is about as good as",
        ),
        (
            outcome(0.4, 0.3, heads=(0.39, 1.04, (-0.01, 0.03))),
            "is not clearly better than one network: NLL 0.390, one",
        ),
        (outcome(0.4, 0.3, heads=(0.45, 1.04, (-0.1, -0.03))), "is worse than one network: NLL 0.450, one"),
        (outcome(0.4, 0.3), "Two networks take the NLL from 0.400 to 0.300, at twice the cost. Nothing else was made."),
        (
            outcome(0.4, 0.39, gain=(-0.01, 0.03), heads=(0.395, 1.04, (-0.01, 0.02))),
            "Two networks are not clearly better than one here: NLL 0.390 and 0.400. Nothing else helped either; use",
        ),
        (
            outcome(0.4, 0.41, gain=(-0.03, 0.01), heads=0.35),
            "not clearly better than one here: NLL 0.410 and 0.400. What helped most for less than the cost of two is "
            "one network + 3 heads: NLL 0.350 at x1.04.",
        ),
        (outcome(2.25, 2.2, heads=2.1), "One network is hardly better than guessing: its NLL is 2.250, that of"),
    ],
)
def test_what_is_said(rows: list[Row], words: str) -> None:
    said = verdict(rows, GUESS)
    assert words in said
    assert said.count(". ") <= 1, "two sentences"
    assert (
        verdict(rows, GUESS, [0.4, 0.3, 0.35])
        == f"{said} The first network is the worst of the 3, which flatters the rest: the best one alone has 0.300."
    )
    assert verdict(rows, GUESS, [0.3, 0.2, 0.4]) == said


def test_the_rows_that_are_shown_first() -> None:
    rows = outcome(0.4, 0.3, 0.2, heads=0.35, bridge=0.37)
    assert [one.role for one in short_rows(rows)] == ["one", "two", "heads"]
    assert [one.role for one in short_rows(outcome(0.4, 0.3, bridge=0.37))] == ["one", "two", "bridge"]
    rows = outcome(0.4, 0.3, bridge=0.35, control=0.34, other=0.32)
    assert short_rows(rows) == rows, "what the verdict names is shown"
    rows = outcome(0.4, 0.3, 0.2, heads=0.2)
    assert short_rows(rows) == rows, "also the networks that it compares with"
