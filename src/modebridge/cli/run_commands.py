"""`modebridge run` and `study`: train what is missing, print the results, write them and the report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from modebridge import __version__
from modebridge.cli.cluster import Cluster
from modebridge.cli.options import RunOptions
from modebridge.cli.show_commands import plain_table, span
from modebridge.cli.terminal import Screen, first_process, note, progress_bars, say, silence_compiler
from modebridge.errors import ModebridgeError, near, plural
from modebridge.members import Setting, file_of_own_kinds
from modebridge.modes import Mode
from modebridge.recipes import Recipe, changed, check_recipe, read_recipe
from modebridge.report import as_dicts, markdown_table, study_table, summary, terminal_table
from modebridge.runs import (
    Run,
    RunFolder,
    RunResult,
    begin,
    gather,
    machine,
    recipe_to_go_on_with,
    run_recipe,
    setting_for,
    write_page,
)
from modebridge.runs.forecast import forecast
from modebridge.runs.given_modes import find_modes
from modebridge.runs.recipe_file import check_folder
from modebridge.studies import STUDIES, run_study, write_study
from modebridge.training import Engine, TensorBoard

__all__ = ["Cluster", "chosen", "default_folder", "looked_up", "run", "show_plan", "study"]


def chosen(options: RunOptions) -> tuple[Recipe, int]:
    """The recipe and seed to use: by name or file, else those of the run folder, else the demo's."""
    recipe, seed = options.recipe, options.seed
    kept = recipe_to_go_on_with(options.out) if recipe is None and options.out is not None else None
    if kept is not None:
        say(f"Using settings from {kept[2]}")
    named, recipe_seed = kept[:2] if kept is not None else read_recipe("digits" if recipe is None else recipe)
    named = changed(named, options.settings or ())
    if file_of_own_kinds() and not named.members_file:
        named = replace(named, members_file=file_of_own_kinds())
    check_recipe(named)
    return named, seed if seed is not None else recipe_seed or 0


def default_folder(recipe: Recipe, seed: int) -> Path:
    """The run folder if --out is not given."""
    return Path("runs") / (recipe.name if seed == 0 else f"{recipe.name}-seed{seed}")


def run(options: RunOptions, *, boards: bool, as_json: bool, cluster: Cluster) -> None:
    """Run a recipe: train what is missing, evaluate, print the table and write the report."""
    cluster.check()
    recipe, seed = chosen(options)
    if boards:
        TensorBoard.check()
    recipe, given = _with_modes(recipe, options)
    device = options.device
    # The cluster may have GPUs even if this machine has none.
    engine = _quiet(Setting(recipe, seed, device="auto" if cluster.on and device == "cuda" else device).engine)
    folder = RunFolder(options.out or default_folder(recipe, seed), writes=first_process())
    console = Screen()
    say(f"modebridge {__version__}, recipe {recipe.name}: {recipe.about}")
    say(f"Folder: {folder.path}")
    with _at_work(folder, recipe, seed, engine, alone=cluster.on is not None):
        start = time.perf_counter()
        with cluster.executor(recipe, device, folder) as executor, progress_bars(show=executor is None) as report:
            result = run_recipe(
                recipe,
                seed=seed,
                folder=folder,
                data=options.data,
                device=engine.device.type,
                progress=report,
                given=dict(enumerate(given)),
                boards=boards,
                executor=executor,
                notice=partial(say, style="yellow"),
            )
        record = _record(result, folder)
        page = folder.path / "report.html"
        if folder.writes:
            _write(result, record, folder)
        elif folder.read_only:
            say("The folder is read-only: results and report were not updated.", style="yellow")
    if not result.trained:
        say(f"Nothing to train: all artifacts are up to date ({time.perf_counter() - start:.1f} s).")
    if as_json:
        console.print_data(record)
        return
    for warning in record["warnings"]:
        console.print(f"Note: {warning}", style="yellow")
    title = (
        f"Test split, {len(result.answers.test_labels)} images, seed {seed}; NLL, ECE, Brier calibrated on validation"
    )
    console.print(terminal_table(result.rows, title))
    console.print(summary(result.rows, result.answers.guess_nll))
    if result.seconds:
        seconds = ", ".join(f"{stage} {time:.0f} s" for stage, time in result.seconds.items())
        cores = plural(torch.get_num_threads(), "core")
        console.print(f"Time: {seconds}; {engine.device.type}, {cores}, torch {torch.__version__}.")
    if page.is_file():
        console.print(f"Report: {page}", soft_wrap=True)


def _with_modes(recipe: Recipe, options: RunOptions) -> tuple[Recipe, list[Mode]]:
    """The recipe for the modes given with --modes, and these modes."""
    if options.modes is None:
        return recipe, []
    given = find_modes(setting_for(recipe, data=options.data).net, options.modes)
    return changed(recipe, [f"modes={len(given)}"]), given


def looked_up(recipe: Recipe, seed: int, options: RunOptions) -> tuple[Setting, Path, RunFolder | None]:
    """What to plan, the run folder's path, and the folder to read if it exists."""
    path = options.out or default_folder(recipe, seed)
    spec = Setting(recipe, seed, None if options.data is None else str(options.data), options.device)
    return spec, path, RunFolder(path, writes=False) if path.is_dir() else None


def show_plan(options: RunOptions, *, as_json: bool) -> None:
    """Show what a run would do: what exists, what is missing, in which order, and about how long it takes."""
    recipe, seed = chosen(options)
    recipe, given = _with_modes(recipe, options)
    spec, path, folder = looked_up(recipe, seed, options)
    say(f"modebridge {__version__}, plan of recipe {recipe.name}: {recipe.about}")
    say(f"Folder: {path}{'' if folder is not None else ' (does not exist yet)'}")
    if folder is not None:
        check_folder(folder, recipe, seed)
    note("Counting the work of each step ...")
    steps, notices = forecast(spec, folder, {k: mode.id for k, mode in enumerate(given)})
    console = Screen()
    for sentence in notices:
        say(sentence, style="yellow")
    if as_json:
        console.print_data([asdict(step) for step in steps])
        return
    table = plain_table("step", "done", "missing", "epochs", "about", "which", text=(0, 5))
    for step in steps:
        missing = [name for group in step.missing for name in group]
        seconds = "" if not missing else "?" if step.seconds is None else span(step.seconds)
        which = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
        table.add_row(step.name, str(len(step.there)), str(len(missing)), str(step.epochs or ""), seconds, which)
    console.print(table)
    total = sum(step.seconds or 0.0 for step in steps)
    console.print(
        f"Training takes about {span(total)} on this machine, estimated from counted work and a few timed steps; "
        "compilation, data loading and evaluation are not included."
        if total
        else "Nothing to train."
        if not any(step.missing for step in steps)
        else "Nothing to train; what is missing is computed from what exists."
    )
    if folder is not None:
        console.print("Weights were not checked: `run` verifies them and recreates damaged ones.")


def study(name: str, options: RunOptions, *, as_json: bool, others: Sequence[str] = ()) -> None:
    """Run one study in a run folder."""
    if name not in STUDIES:
        raise ModebridgeError(f"Expected a known study, but got '{name}'; {near(name, STUDIES)}")
    recipe, seed = chosen(options)
    engine = _quiet(Setting(recipe, seed, device=options.device).engine)
    folder = RunFolder(options.out or default_folder(recipe, seed), writes=first_process())
    say(f"modebridge {__version__}, study {name} of recipe {recipe.name}; folder: {folder.path}")
    with _at_work(folder, recipe, seed, engine):
        with progress_bars() as report:
            current = Run(recipe, seed=seed, folder=folder, data=options.data, device=options.device, progress=report)
            part = run_study(name, current, others)
        if folder.writes:
            note("Writing tables and figures ...")
            place = write_study(part, folder)
            if (folder.path / "report.html").is_file():
                write_page(folder)
    console = Screen()
    if as_json:
        console.print_data([table.as_dict() for table in part.tables])
        return
    for table in part.tables:
        console.print(study_table(table, spread=console.width >= 110))
        for footnote in table.notes:
            console.print(footnote, style="dim")
    if folder.writes:
        console.print(f"Written: {place}", soft_wrap=True)


@contextmanager
def _at_work(folder: RunFolder, recipe: Recipe, seed: int, engine: Engine, *, alone: bool = False) -> Iterator[None]:
    """Lock the folder, print what changed in it, and wait for all processes; if `alone`, another run is an error."""

    def waiting() -> None:
        if alone:
            raise ModebridgeError(
                f"Expected no other run to use '{folder.path}', but there is one; wait for it, or choose another "
                "folder with --out."
            )
        say("Another run is using this folder; waiting for it.", style="yellow")

    with folder.alone(waiting):
        try:
            for sentence in begin(folder, recipe, seed):
                say(sentence, style="yellow")
            # All processes must see the folder in the same state.
            engine.processes.wait()
            yield
        except KeyboardInterrupt:
            folder.undo()
            raise KeyboardInterrupt(
                f"; finished artifacts are kept in '{folder.path}'; run the same command to resume"
                if folder.path.is_dir()
                else "; nothing had been trained yet"
            ) from None
        except BaseException:
            folder.undo()
            raise


def _quiet(engine: Engine) -> Engine:
    if engine.compile:
        silence_compiler()
    return engine


def _record(result: RunResult, folder: RunFolder) -> dict[str, Any]:
    return {
        "recipe": result.recipe.name,
        "seed": result.seed,
        "rows": as_dicts(result.rows),
        "warnings": [*result.warnings, *folder.left_out()],
        "summary": summary(result.rows, result.answers.guess_nll),
        "trained": list(result.trained),
        "seconds": dict(result.seconds) if result.trained else folder.files.record("results.json").get("seconds", {}),
        **machine(),
    }


def _write(result: RunResult, record: Mapping[str, Any], folder: RunFolder) -> None:
    text = [markdown_table(result.rows), *record["warnings"], summary(result.rows, result.answers.guess_nll)]
    folder.files.write({"results.md": "\n\n".join(text) + "\n"})
    before, now = folder.files.record("results.json"), json.loads(json.dumps(record))
    shown = ("recipe", "seed", "rows", "warnings", "summary")
    # If nothing changed, keep the recorded time and machine.
    if record["trained"] or any(before.get(key) != now[key] for key in shown):
        folder.files.write({"results.json": json.dumps(record, indent=1)})
    write_page(folder, gather(folder, result.rows))
    folder.tidy()
