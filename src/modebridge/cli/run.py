"""`modebridge run` and `study`: train what is missing, print the results, write them and the report."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from modebridge import __version__
from modebridge.cli.terminal import Screen, first_process, note, progress_bars, say, warn
from modebridge.errors import ModebridgeError, near, plural
from modebridge.members import Setting, file_of_own_kinds
from modebridge.modes import Mode
from modebridge.recipes import Recipe, changed, check_recipe, read_recipe
from modebridge.report import plain_table, study_table, terminal_table
from modebridge.runs import (
    Executor,
    Run,
    RunFolder,
    begin,
    recipe_in,
    run_recipe,
    setting_for,
    write_page,
    write_results,
)
from modebridge.runs.plan import check_folder, find_modes
from modebridge.runs.store import RECIPE
from modebridge.studies import STUDIES, run_study, write_study
from modebridge.training import Engine


@dataclass(frozen=True)
class RunOptions:
    """What to run and where, as given on the command line: the options that `run`, `plan` and `study` share."""

    recipe: str | None = None
    out: Path | None = None
    settings: Sequence[str] | None = None
    seed: int | None = None
    data: Path | None = None
    device: str = "auto"
    modes: Path | None = None


def chosen(options: RunOptions) -> tuple[Recipe, int, dict[int, Mode]]:
    """The recipe and seed: by name or file, else those of the run folder, else the demo's; and the modes given."""
    kept = None
    if options.recipe is None and options.out is not None and options.out.is_dir():
        kept = recipe_in(RunFolder(options.out, writes=False))
        if kept is not None:
            say(f"Using settings from {options.out / RECIPE}")
    recipe, seed = kept or read_recipe("digits" if options.recipe is None else options.recipe)
    recipe = changed(recipe, options.settings or ())
    if file_of_own_kinds() and not recipe.members_file:
        recipe = replace(recipe, members_file=file_of_own_kinds())
    check_recipe(recipe)
    given = []
    if options.modes is not None:
        given = find_modes(setting_for(recipe, data=options.data).net, options.modes)
        recipe = changed(recipe, [f"modes={len(given)}"])
    return recipe, options.seed if options.seed is not None else seed or 0, dict(enumerate(given))


def _place(options: RunOptions, recipe: Recipe, seed: int) -> Path:
    """The run folder's path."""
    return options.out or Path("runs") / (recipe.name if seed == 0 else f"{recipe.name}-seed{seed}")


def run(options: RunOptions, on: str | None = None) -> None:
    """Run a recipe: train what is missing, evaluate, print the table and write the report."""
    if on is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ModebridgeError("Expected --on in a single process, but torchrun started several; use one or the other.")
    if on == "":
        raise ModebridgeError("Expected --on to name a cluster, but got an empty string; use ray, or an address.")
    recipe, seed, given = chosen(options)
    # The cluster may have GPUs even if this machine has none.
    device = "auto" if on is not None and options.device == "cuda" else options.device
    console = Screen()
    say(f"modebridge {__version__}, recipe {recipe.name}: {recipe.about}")
    with _at_work(options, recipe, seed, device) as (folder, engine):
        start = time.perf_counter()
        with _executor(on, recipe, options.device) as executor, progress_bars() as report:
            result = run_recipe(
                recipe,
                seed=seed,
                folder=folder,
                data=options.data,
                device=device,
                progress=report,
                given=given,
                executor=executor,
            )
        record = write_results(result, folder)
        page = folder.path / "report.html"
        if folder.read_only:
            warn("The folder is read-only: results and report were not updated.")
        mended = [f"{place} was damaged ({why}) and has been made again." for place, why in folder.mended.items()]
        warn(*mended, *folder.left_out())
    if not result.trained:
        say(f"Nothing to train: all artifacts are up to date ({time.perf_counter() - start:.1f} s).")
    if console.print_data(record):
        return
    for warning in record["warnings"]:
        console.print(f"Note: {warning}", style="yellow")
    title = f"Test split, {len(result.table.test_labels)} images, seed {seed}; NLL, ECE, Brier calibrated on validation"
    console.print(terminal_table(result.rows, title))
    console.print(record["summary"])
    if result.seconds:
        seconds = ", ".join(f"{stage} {time:.0f} s" for stage, time in result.seconds.items())
        cores = plural(torch.get_num_threads(), "core")
        console.print(f"Time: {seconds}; {engine.device.type}, {cores}, torch {torch.__version__}.")
    if page.is_file():
        console.print(f"Report: {page}", soft_wrap=True)


def _executor(on: str | None, recipe: Recipe, device: str) -> AbstractContextManager[Executor | None]:
    """The executor of the stages; None for this process."""
    if on is None:
        return nullcontext()
    from modebridge.runs.ray import OnRay

    executor = OnRay(on, recipe=recipe, device=device)
    say(f"Ray: {executor.about}")
    return executor


def show_plan(options: RunOptions) -> None:
    """Show what a run would do: what exists, what is missing, in which order."""
    recipe, seed, given = chosen(options)
    path = _place(options, recipe, seed)
    folder = RunFolder(path, writes=False) if path.is_dir() else None
    say(f"modebridge {__version__}, plan of recipe {recipe.name}: {recipe.about}")
    say(f"Folder: {path}{'' if folder is not None else ' (does not exist yet)'}")
    if folder is not None:
        check_folder(folder, recipe, seed)
    current = Run(recipe, seed=seed, folder=folder, data=options.data, device=options.device, given=given)
    steps, console = current.plan(), Screen()
    if folder is not None:
        warn(*folder.left_out())
    if console.print_data(steps):
        return
    table = plain_table("step", "done", "missing", "epochs", "which", text=(0, 4))
    for step in steps:
        missing = [name for group in step["missing"] for name in group]
        which = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
        table.add_row(step["name"], str(len(step["there"])), str(len(missing)), str(step["epochs"] or ""), which)
    console.print(table)
    if not any(step["missing"] for step in steps):
        console.print("Nothing to train.")


def study(name: str, options: RunOptions, others: Sequence[str] = ()) -> None:
    """Run one study in a run folder."""
    if name not in STUDIES:
        raise ModebridgeError(f"Expected a known study, but got '{name}'; {near(name, STUDIES)}")
    recipe, seed, _ = chosen(options)
    say(f"modebridge {__version__}, study {name} of recipe {recipe.name}")
    with _at_work(options, recipe, seed, options.device) as (folder, _):
        with progress_bars() as report:
            current = Run(recipe, seed=seed, folder=folder, data=options.data, device=options.device, progress=report)
            part = run_study(name, current, others)
        if folder.writes:
            note("Writing tables and figures ...")
            place = write_study(part, folder)
            if (folder.path / "report.html").is_file():
                write_page(folder)
    console = Screen()
    if console.print_data([table.as_dict() for table in part.tables]):
        return
    for table in part.tables:
        console.print(study_table(table, spread=console.width >= 110))
        for footnote in table.notes:
            console.print(footnote, style="dim")
    if folder.writes:
        console.print(f"Written: {place}", soft_wrap=True)


@contextmanager
def _at_work(options: RunOptions, recipe: Recipe, seed: int, device: str) -> Iterator[tuple[RunFolder, Engine]]:
    """Lock the run folder, print what changed in it, and wait for all processes."""
    engine = Setting(recipe, seed, device=device).engine
    if engine.compile:  # hide the warnings of torch's compiler, which do not help users
        warnings.filterwarnings("ignore", module="torch")
        logging.getLogger("torch").setLevel(logging.ERROR)
    folder = RunFolder(_place(options, recipe, seed), writes=first_process())
    say(f"Folder: {folder.path}")
    with folder.alone(lambda: warn("Another run is using this folder; waiting for it.")):
        try:
            warn(*begin(folder, recipe, seed))
            # All processes must see the folder in the same state.
            engine.processes.wait()
            yield folder, engine
        except BaseException as error:
            folder.undo()
            if isinstance(error, KeyboardInterrupt):
                kept = f"finished artifacts are kept in '{folder.path}'; run the same command to resume"
                error.args = (f"; {kept if folder.path.is_dir() else 'nothing had been trained yet'}",)
            raise
