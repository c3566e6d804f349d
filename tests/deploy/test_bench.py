"""Times are what they are, whatever the machine does; every candidate is timed, and a table has all of its rows."""

from __future__ import annotations

import pytest
import torch

from modebridge import ModebridgeError
from modebridge.deploy import bench
from modebridge.deploy.bench import Candidate, Spread, measure, time_all, time_file, usable_backends
from tests.deploy.scenes import ensemble

CANDIDATES = [
    Candidate("DE-1", lambda: ensemble(bases=1, ones=0, twos=0)),
    Candidate("DE-1 + 1 bridge I", lambda: ensemble(bases=1, ones=1, twos=0)),
    Candidate("DE-2", lambda: ensemble(bases=2, ones=0, twos=0)),
]


def test_a_table_has_every_row():
    heard, shown = [], []
    found = time_all(
        CANDIDATES,
        (1, 8, 8),
        "eager",
        [1, 3],
        seconds=0.01,
        log=heard.append,
        shown=lambda rows: shown.append(len(rows)),
    )
    assert [(one.name, one.batch) for one in found] == [(one.name, batch) for batch in (1, 3) for one in CANDIDATES]
    one, bridge, two = found[:3]
    assert one.ratio.median == one.flops == 1.0
    assert (two.flops, 1.0 < bridge.flops < 1.5) == (2.0, True)
    for line in found:
        assert line.timing.calls >= 7
        assert line.images_per_second == pytest.approx(line.batch / line.timing.seconds.median)
        assert line.over == pytest.approx(100 * (line.ratio.median - line.flops))
    assert heard == [*(f"eager: {one.name}" for one in CANDIDATES), "eager: batch 1", "eager: batch 3"]
    assert shown == [3, 3]


@pytest.mark.slow
def test_onnx_runtime():
    found = time_all(CANDIDATES[:2], (1, 8, 8), "onnx", [2], seconds=0.01)
    assert [(one.name, one.backend) for one in found] == [("DE-1", "onnx"), ("DE-1 + 1 bridge I", "onnx")]


def test_a_file_is_timed_by_its_bridges(cascade, package):
    found = time_file(cascade, [1, 2], seconds=0.01)
    names = ["DE-2", "DE-2 + 1 bridge", "DE-2 + 2 bridges", "DE-2 + 3 bridges"]
    assert [(one.name, one.batch) for one in found] == [(name, batch) for batch in (1, 2) for name in names]
    assert found[0].flops == found[0].ratio.median == 1.0
    assert 1.0 < found[1].flops < found[2].flops < found[3].flops < 1.5
    assert [(one.name, one.flops) for one in time_file(package, [1], seconds=0.01)] == [("DE-2 + 3 bridges", 1.0)]


def test_backends(monkeypatch):
    assert usable_backends("cpu", ["onnx", "eager"]) == (["eager", "onnx"], [])
    words = "Expected backends for device 'cpu', but got 'graphs'; choose one of eager, compiled, onnx"
    with pytest.raises(ModebridgeError, match=words):
        usable_backends("cpu", ["graphs"])
    monkeypatch.setattr(bench.shutil, "which", lambda name: None)
    names, lacking = usable_backends("cpu")
    assert "compiled" not in names
    assert any("C++ compiler" in sentence for sentence in lacking)
    with pytest.raises(ModebridgeError, match="C\\+\\+ compiler"):
        usable_backends("cpu", ["compiled"])
    assert "compiled" in usable_backends("cuda")[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_graphs():
    found = time_all(CANDIDATES, (1, 8, 8), "graphs", [2], device="cuda", seconds=0.01)
    assert len(found) == 3


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


def test_known_times_come_out():
    machine = Machine()
    found = measure({"a": machine.work("a", 0.5), "b": machine.work("b", 2.0)}, 7.0, clock=machine.clock)
    assert found["a"].seconds == Spread(0.5, 0.5, 0.5)
    assert (found["a"].fastest, found["b"].fastest) == (0.5, 2.0)
    # 1 s a turn: two calls of half a second; a slow candidate still has one call in each of seven rounds.
    assert (found["a"].calls, found["b"].calls) == (14, 7)
    assert found["b"].relative_to(found["a"]) == Spread(4.0, 4.0, 4.0)


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
    assert found["b"].relative_to(found["a"]).median == pytest.approx(1.5, rel=0.35)
    # Not interleaved, b would have met a machine many times slower.
    assert found["b"].seconds.median / found["a"].seconds.median < 3
