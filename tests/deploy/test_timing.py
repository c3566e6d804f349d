"""Medians and quartiles against NumPy, and what a drifting machine must not do to a ratio."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modebridge import ModebridgeError
from modebridge.deploy.timing import Spread, Timing, measure, ratio, spread_of


class Machine:
    """A clock that only work moves, so that times are known exactly; it can get slower as it goes."""

    def __init__(self, slowing=0.0):
        self.now, self.slowing, self.order = 0.0, slowing, []

    def clock(self):
        return self.now

    def work(self, name, seconds):
        def call():
            self.order.append(name)
            self.now += seconds * (1.0 + self.slowing * self.now)

        return call


@pytest.mark.parametrize("values", [[3.0], [2.0, 1.0], [4.0, 1.0, 3.0, 2.0], list(np.random.default_rng(0).random(31))])
def test_spread_is_numpys(values):
    low, middle, high = np.percentile(values, [25, 50, 75])
    found = spread_of(values)
    assert (found.low, found.median, found.high) == pytest.approx((low, middle, high), rel=1e-12)


def test_spread_of_nothing_is_refused():
    with pytest.raises(ModebridgeError, match="at least one value"):
        spread_of([])


def test_known_times_come_out():
    machine = Machine()
    found = measure({"a": machine.work("a", 0.5), "b": machine.work("b", 2.0)}, 7.0, clock=machine.clock)
    assert found["a"].seconds == Spread(0.5, 0.5, 0.5)
    assert (found["a"].fastest, found["b"].fastest) == (0.5, 2.0)
    # 1 s a turn: two calls of half a second; a slow candidate still has one call in each of seven rounds.
    assert (found["a"].calls, found["b"].calls) == (14, 7)
    assert ratio(found["b"], found["a"]) == Spread(4.0, 4.0, 4.0)


def test_warming_up_is_not_timed():
    machine = Machine()
    first = iter([100.0, 10.0])

    def call():
        machine.now += next(first, 1.0)

    # Two slow calls while warming up, and none of the timed ones is.
    assert measure({"a": call}, 1.0, rounds=3, clock=machine.clock)["a"].seconds.high == 1.0


def test_turns_alternate_and_run_back():
    machine = Machine()
    measure({name: machine.work(name, 1.0) for name in "abc"}, 0.002, rounds=2, clock=machine.clock)
    # Twice each to warm up; then a turn is one call untimed and one timed.
    assert "".join(machine.order) == "aabbcc" + "aabbcc" + "ccbbaa"


def test_a_machine_that_slows_down_slows_both():
    machine = Machine(slowing=0.05)
    found = measure({"a": machine.work("a", 1.0), "b": machine.work("b", 1.5)}, 1.0, rounds=8, clock=machine.clock)
    assert found["a"].rounds[-1] > 5 * found["a"].rounds[0]
    assert ratio(found["b"], found["a"]).median == pytest.approx(1.5, rel=0.35)
    # Not interleaved, b would have met a machine many times slower.
    assert found["b"].seconds.median / found["a"].seconds.median < 3


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 3), (-1.0, 3), (math.nan, 3), (1.0, 0)])
def test_no_time_is_refused(seconds, rounds):
    with pytest.raises(ModebridgeError, match="seconds to be above 0"):
        measure({"a": lambda: None}, seconds, rounds=rounds)


def test_no_candidates():
    assert measure({}, 1.0) == {}


def test_ratio_needs_the_same_rounds():
    with pytest.raises(ModebridgeError, match="same rounds"):
        ratio(Timing(Spread(1, 1, 1), (1.0,), 1, 1.0), Timing(Spread(1, 1, 1), (1.0, 1.0), 2, 1.0))
