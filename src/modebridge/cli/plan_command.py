"""`modebridge plan`: estimate how long a run takes on several GPUs before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from modebridge import __version__
from modebridge.cli.options import RunOptions
from modebridge.cli.run_commands import chosen, looked_up
from modebridge.cli.show_commands import plain_table, span
from modebridge.cli.terminal import Screen, note, say
from modebridge.errors import ModebridgeError, plural
from modebridge.members import Setting
from modebridge.runs.estimate import rate_here
from modebridge.runs.forecast import Glance, planning_context
from modebridge.runs.given_modes import keys_of_given
from modebridge.runs.recipe_file import check_folder
from modebridge.runs.schedule import Task, longest_path, schedule, tasks_of, useful_devices
from modebridge.runs.throughput import measured_rates

__all__ = ["plan_run"]

MAX_GPUS = 10_000
"""More GPUs than stages do not help."""


def plan_run(options: RunOptions, gpus: int, tflops: float | None, *, per_stage: int | None, as_json: bool) -> None:
    """Count the work, simulate the schedule, and print it."""
    if not 1 <= gpus <= MAX_GPUS:
        raise ModebridgeError(f"Expected --gpus to be from 1 to {MAX_GPUS}, but got {gpus}; give the number of GPUs.")
    if tflops is not None and not 0 < tflops < 1e6:
        raise ModebridgeError(f"Expected --tflops to be a rate in TFLOP/s, but got {tflops:g}; try 300.")
    if per_stage is not None and per_stage < 1:
        raise ModebridgeError(f"Expected --per-stage to be at least 1, but got {per_stage}; leave it out for no limit.")
    recipe, seed = chosen(options)
    spec, _, folder = looked_up(recipe, seed, options)
    if folder is not None:
        check_folder(folder, recipe, seed)
    setting, problem = planning_context(spec, folder)
    if tflops is not None:  # GPUs of another machine
        setting.made_on = "cuda"
    setting.most = per_stage
    unit = "GPU" if setting.made_on == "cuda" else "core"
    rates, source = _rates(spec, tflops, bool(problem))
    note("Counting the work of each stage ...")
    store = Glance(folder)
    tasks = tasks_of(setting, store, keys_of_given(folder, store, recipe.modes, {}), rates)
    counts = sorted({*(2**k for k in range(20) if 2**k <= gpus), gpus})
    rows = [schedule(tasks, count) for count in counts]
    path_tasks = longest_path(tasks)
    enough = useful_devices(tasks)
    if as_json:
        Screen().print_data(
            {
                "recipe": recipe.name,
                "unit": unit,
                "rates": dict(rates),
                "stages": [asdict(task) for task in tasks],
                "longest_path": [task.title for task in path_tasks],
                "longest_seconds": sum(task.seconds for task in path_tasks),
                "enough": enough,
                "schedules": [{**asdict(row), "used": row.used} for row in rows],
            }
        )
        return
    say(f"modebridge {__version__}, plan of recipe {recipe.name}: {recipe.about}")
    say(f"Training rate of one {unit}: {source}")
    _show_stages(tasks)
    console = Screen()
    if not tasks:
        console.print("Nothing to do: all artifacts are up to date.")
        return
    table = plain_table(f"{unit}s", "wall time", f"busy {unit}-hours", "utilization", "speedup", text=())
    for row in rows:
        faster = rows[0].seconds / row.seconds if row.seconds else 1.0
        table.add_row(
            str(row.devices), _time(row.seconds), f"{row.busy / 3600:,.2f}", f"{row.used:.0%}", f"x{faster:.2f}"
        )
    console.print(table)
    longest = " -> ".join(task.title for task in path_tasks)
    console.print(f"Longest path: {_time(sum(task.seconds for task in path_tasks))}: {longest}.")
    console.print(f"More than {plural(enough, unit)} will not help (within 1 %).")
    console.print("Startup, compilation and data transfer are not included.")


def _rates(spec: Setting, tflops: float | None, unread: bool) -> tuple[Mapping[str, float], str]:
    if tflops is not None:
        return {"": tflops * 1e12 / 2}, f"{tflops:g} TFLOP/s, as given"
    if unread:
        note("Timing a few steps of a similar network ...")
        rate = rate_here(spec.recipe)
        return {"": rate}, f"{2 * rate / 1e12:.3g} TFLOP/s from a few steps of a similar network, as there is no data"
    note("Training a few batches to measure this machine ...")
    rates = measured_rates(spec)
    measured = ", ".join(f"{kind} {2 * rate / 1e12:.3g}" for kind, rate in rates.items() if kind)
    return rates, f"{measured} TFLOP/s, measured here by training a few batches"


def _show_stages(tasks: Sequence[Task]) -> None:
    table = plain_table("stages", "count", "each", "total", "wait for", text=(0, 4))
    kinds = dict.fromkeys(task.kind for task in tasks)
    titles = {task.title: task.kind for task in tasks}
    for kind in kinds:
        group = [task for task in tasks if task.kind == kind]
        needs = dict.fromkeys(titles[need] for task in group for need in task.needs)
        total = sum(task.seconds for task in group)
        table.add_row(kind, str(len(group)), _time(total / len(group)), _time(total), ", ".join(needs))
    Screen().print(table)


def _time(seconds: float) -> str:
    """A duration to compare with others, so hours are not rounded to days."""
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else span(seconds)
