"""The live table of stages: who is where, as much of it as the screen has room for."""

from __future__ import annotations

import io

from rich.console import Console

from modebridge.cli.cluster import stage_table
from modebridge.runs.on_ray import StageState


def shown(states: list[StageState], rows: int) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(stage_table(states, rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_stage_under_way_has_its_node_device_epoch_rate_and_time_left() -> None:
    state = StageState("curves 0-1", "running", "gpu-node-7", "cuda:2", 30, 100, 12345.6, 90.0)
    text = shown([state], 5)
    for part in ("curves 0-1", "running", "gpu-node-7", "cuda:2", "30/100", "12,346", "90 s"):
        assert part in text
    assert "0 of 1 stage done" in text


def test_a_small_screen_shows_what_is_under_way_first() -> None:
    states = [StageState(f"modes {k}", "done", "a", "cpu", 3, 3) for k in range(8)]
    states += [StageState("curves 0-1", "running", "b", "cpu"), StageState("curves 0-2"), StageState("curves 0-3")]
    text = shown(states, 2)
    assert "curves 0-1" in text
    assert "curves 0-2" in text
    assert "modes" not in text
    assert "8 of 11 stages done, 9 not shown" in text
