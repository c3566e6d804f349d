"""Time functions in interleaved rounds, so that noise of the machine affects all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from modebridge.errors import ModebridgeError

__all__ = ["Spread", "Timing", "measure", "ratio", "spread_of"]

ROUNDS = 7
"""Turns per candidate: enough for quartiles of ratios."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """The times of one candidate.

    Args:
        seconds: time per call, over all calls.
        rounds: median of each turn, in order; turns with the same index are adjacent in time.
        calls: number of timed calls.
        fastest: shortest call, the most reliable number on a shared machine.
    """

    seconds: Spread
    rounds: tuple[float, ...]
    calls: int
    fastest: float


def measure(
    candidates: Mapping[str, Callable[[], object]],
    seconds: float = 2.0,
    *,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time candidates in turns.

    Every candidate first runs twice untimed (compilation, allocation). Then each round gives every candidate one turn:
    one untimed call, which loads its weights into the caches, then timed calls, at least one, until its time is up. Odd
    rounds visit the candidates in reverse order, so that a drift of the machine favours none.

    Args:
        candidates: functions by name; a call must return only when its work is done.
        seconds: time per candidate, over all rounds; slow candidates take longer, with one call per round.
        rounds: turns per candidate.
        clock: clock in seconds.

    Returns:
        The timing of each candidate, by name.

    >>> found = measure({"nothing": lambda: None}, seconds=0.001)
    >>> len(found["nothing"].rounds), found["nothing"].calls >= 7
    (7, True)
    """
    if not (math.isfinite(seconds) and seconds > 0) or rounds < 1:
        raise ModebridgeError(
            f"Expected seconds to be above 0 and rounds at least 1, but got {seconds} and {rounds}; give more time."
        )
    for call in candidates.values():
        for _ in range(2):
            call()
    turns: dict[str, list[list[float]]] = {name: [] for name in candidates}
    order = list(candidates)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            turns[name].append(_turn(candidates[name], seconds / rounds, clock))
    return {
        name: Timing(
            spread_of([time for turn in times for time in turn]),
            tuple(median(turn) for turn in times),
            sum(len(turn) for turn in times),
            min(min(turn) for turn in times),
        )
        for name, times in turns.items()
    }


def _turn(call: Callable[[], object], seconds: float, clock: Callable[[], float]) -> list[float]:
    call()
    times: list[float] = []
    end = clock() + seconds
    while not times or clock() < end:
        start = clock()
        call()
        times.append(clock() - start)
    return times


def ratio(timing: Timing, unit: Timing) -> Spread:
    """The time of one candidate relative to another, per round: what slows a round down slows both.

    >>> a, b = (Timing(Spread(0, 0, 0), rounds, 2, 0.0) for rounds in ((2.0, 40.0), (1.0, 20.0)))
    >>> ratio(a, b)
    Spread(median=2.0, low=2.0, high=2.0)
    """
    if len(timing.rounds) != len(unit.rounds):
        raise ModebridgeError(
            f"Expected two timings of the same rounds, but got {len(timing.rounds)} and {len(unit.rounds)}; "
            "measure both in one call."
        )
    return spread_of([a / b if b else math.nan for a, b in zip(timing.rounds, unit.rounds, strict=True)])


def spread_of(values: Sequence[float]) -> Spread:
    """Median and quartiles, with linear interpolation.

    >>> spread_of([1.0, 2.0, 3.0, 4.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    if not values:
        raise ModebridgeError("Expected at least one value, but got none; measure something first.")
    return Spread(*map(float, np.quantile(values, (0.5, 0.25, 0.75))))
