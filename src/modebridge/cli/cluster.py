"""`modebridge run --on RAY`: its options, and a live table of all stages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table

from modebridge.cli.show_commands import plain_table, span
from modebridge.cli.terminal import Screen, say
from modebridge.errors import ModebridgeError, plural
from modebridge.recipes import Recipe
from modebridge.runs import RunFolder

if TYPE_CHECKING:
    from modebridge.runs.on_ray import OnRay, StageState

__all__ = ["Cluster", "stage_table"]


@dataclass(frozen=True)
class Cluster:
    """Where stages run, as given on the command line.

    Args:
        on: "ray" or an address; None for this process.
        gpus: GPUs per stage, may be a fraction.
        most: maximum number of artefacts per training stage.
        shared: a folder visible to all nodes.
    """

    on: str | None = None
    gpus: float | None = None
    most: int | None = None
    shared: Path | None = None

    def check(self) -> None:
        """Refuse options that contradict each other."""
        for option, value in {"--gpus-per-stage": self.gpus, "--per-stage": self.most, "--shared": self.shared}.items():
            if self.on is None and value is not None:
                raise ModebridgeError(
                    f"Expected {option} only with --on, but got {value} without it; add --on ray, or leave it out."
                )
        if self.on is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ModebridgeError(
                "Expected --on in a single process, but torchrun started several; use one or the other."
            )
        if self.on == "":
            raise ModebridgeError("Expected --on to name a cluster, but got an empty string; use ray, or an address.")

    @contextmanager
    def executor(self, recipe: Recipe, device: str, folder: RunFolder) -> Iterator[OnRay | None]:
        """The executor of the stages; None for this process."""
        if self.on is None:
            yield None
            return
        from modebridge.runs.on_ray import OnRay
        from modebridge.runs.ray_connection import LOCAL

        # On one machine, all workers see the run folder.
        shared = self.shared or (folder.path / ".work" if self.on == LOCAL else None)
        with (
            OnRay(
                self.on, recipe=recipe, device=device, gpus=self.gpus, most=self.most, shared=shared, every=folder.every
            ) as executor,
            _live_table(executor),
        ):
            say(f"Ray: {executor.about}")
            yield executor


@contextmanager
def _live_table(executor: OnRay) -> Iterator[None]:
    """Show the stages on stderr while they run; nothing in a pipe, which gets one line per kind of stage."""
    console = Screen(stderr=True)
    if not console.is_terminal:
        yield
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        executor.watch = lambda states: live.update(stage_table(states, max(4, console.height - 4)))
        yield


def stage_table(states: Sequence[StageState], rows: int) -> Table:
    """A table of the running stages, as many others as fit, and the number of hidden ones.

    Args:
        states: states of all stages, in the order of submission.
        rows: maximum number of rows.
    """
    order = {"running": 0, "failed": 1, "waiting": 2, "done": 3}
    first = sorted(range(len(states)), key=lambda k: (order[states[k].state], k))[:rows]
    shown = [states[k] for k in sorted(first)]
    table = plain_table("stage", "state", "node", "device", "epoch", "images/s", "left", text=(0, 1, 2, 3))
    for state in shown:
        table.add_row(
            state.title,
            state.state,
            state.node,
            state.device,
            f"{state.epoch}/{state.total}" if state.total else "",
            f"{state.rate:,.0f}" if state.rate and state.state == "running" else "",
            span(state.left) if state.left is not None and state.state == "running" else "",
        )
    done = sum(state.state == "done" for state in states)
    hidden = len(states) - len(shown)
    table.caption = f"{done} of {plural(len(states), 'stage')} done" + (f", {hidden} not shown" if hidden else "")
    return table
