"""What a run looks like on a terminal."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from threading import Lock

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from modebridge import __version__
from modebridge.recipes import RunFolder, RunResult, find_recipe, run_recipe
from modebridge.report import as_dicts, markdown_table, summary, terminal_table

__all__ = ["show_run"]


def show_run(name: str, seed: int, out: Path | None) -> None:
    """Run a recipe with progress bars, then print its table and what it says."""
    recipe = find_recipe(name)
    folder = None if out is None else RunFolder(out)
    console = Console()
    console.print(f"modebridge {__version__}, recipe [bold]{recipe.name}[/]: {recipe.about}", highlight=False)
    with Progress(
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as bars:
        tasks: dict[str, TaskID] = {}
        lock = Lock()

        def progress(stage: str, done: int, total: int) -> None:
            with lock:
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=total)
                bars.update(tasks[stage], completed=done)

        result = run_recipe(recipe, seed=seed, folder=folder, progress=progress)
    for warning in result.warnings:
        console.print(f"Note: {warning}", style="yellow", highlight=False)
    title = f"Test split, {len(result.splits.test)} images, seed {seed}; NLL, ECE, Brier calibrated on validation"
    console.print(terminal_table(result.rows, title))
    console.print(summary(result.rows), highlight=False)
    seconds = ", ".join(f"{stage} {time:.0f} s" for stage, time in result.seconds.items())
    console.print(
        f"Time: {seconds}; {torch.get_num_threads()} cores, torch {torch.__version__}.", style="dim", highlight=False
    )
    if out is not None:
        _write(result, out)
        console.print(f"Written: {out / 'results.json'}, {out / 'results.md'}", highlight=False)


def _write(result: RunResult, out: Path) -> None:
    data = {
        "recipe": result.recipe.name,
        "seed": result.seed,
        "rows": as_dicts(result.rows),
        "warnings": result.warnings,
        "seconds": result.seconds,
        "versions": {"modebridge": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "cores": torch.get_num_threads(),
    }
    (out / "results.json").write_text(json.dumps(data, indent=1))
    text = [markdown_table(result.rows), *result.warnings, summary(result.rows)]
    (out / "results.md").write_text("\n\n".join(text) + "\n")
