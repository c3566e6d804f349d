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
from modebridge.cli.terminal import Screen, first_process, here, note, program, progress_bars, say, warn
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError, near, plural
from modebridge.members import Setting, file_of_own_kinds
from modebridge.modes import Mode
from modebridge.recipes import Recipe, changed, check_recipe, read_recipe
from modebridge.report import best_cheap, plain_table, short_rows, study_table, terminal_table
from modebridge.runs import (
    Executor,
    Run,
    RunFolder,
    begin,
    recipe_in,
    run_recipe,
    training_of,
    write_page,
    write_results,
)
from modebridge.runs.plan import GIVEN, LEAK, check_folder, checkpoint_names, find_modes
from modebridge.runs.store import RECIPE
from modebridge.scoring import evaluate
from modebridge.studies import STUDIES, run_study, write_study
from modebridge.training import Engine
from modebridge.training.bridging import by_chance

TOY = (
    "(These digits of 8 x 8 pixels with noise are a toy that fits in the package: a support vector machine is right "
    "more often, 89.9 %. docs/results.md has CIFAR-10, CIFAR-100 and Tiny ImageNet.)"
)


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
    as_named: bool = False
    replace: bool = False


def chosen(options: RunOptions) -> tuple[Recipe, int, dict[int, Mode]]:
    """The recipe and seed: by name or file, else those of the run folder, else the demo's; and the modes given."""
    kept = None
    if options.recipe is None and options.out is not None and options.out.is_dir():
        kept = recipe_in(RunFolder(options.out, writes=False))
        if kept is not None:
            say(f"Using settings from {options.out / RECIPE}")
    original, seed = kept or read_recipe("digits" if options.recipe is None else options.recipe)
    seed = options.seed if options.seed is not None else seed or 0
    recipe = changed(original, options.settings or ())
    place = _place(options, recipe, seed)
    if options.modes is None and (place / GIVEN).is_file() and (last := recipe_in(RunFolder(place, writes=False))):
        again = changed(original, [f"modes={last[0].modes}", *(options.settings or ())])
        if again != recipe:
            say(f"Using the {again.modes} networks that {here(place)} was given by --modes.")
        recipe = again
    if file_of_own_kinds() and not recipe.members_file:
        recipe = replace(recipe, members_file=file_of_own_kinds())
    check_recipe(recipe)
    given = []
    if options.modes is not None:
        setting = Setting(recipe, options.seed or 0, None if options.data is None else str(options.data))
        given = find_modes(setting.net, options.modes)
        warn(*([LEAK] if setting.facts.cut else []))
        given = checked(setting, given, checkpoint_names(options.modes, len(given)), not options.as_named)
        recipe = changed(recipe, [f"modes={len(given)}"])
    return recipe, seed, dict(enumerate(given))


def checked(setting: Setting, modes: list[Mode], names: Sequence[str], best_first: bool) -> list[Mode]:
    """The modes, with the best on validation images first; warns about those that are far behind, or at chance."""
    note("Scoring the networks on validation images ...")
    valid = setting.data.valid()
    with warnings.catch_warnings(action="ignore"):  # of temperatures at their limit
        scores = [evaluate(Ensemble(setting.net, [mode]).calibrate(valid), valid) for mode in modes]
    chance = by_chance(setting.data.labels("valid").bincount().tolist())
    rates = dict(zip(names, (one.accuracy for one in scores), strict=True))
    low = [
        f"{name} ({rate:.0%})" for name, rate in rates.items() if rate <= chance < 1 or 2 * rate < max(rates.values())
    ]
    if low:
        warn(f"Far behind on validation images: {', '.join(low)}; check the file, and the order of classes.")
    if not best_first:
        return modes
    best = min(range(len(modes)), key=lambda k: scores[k].nll)
    found = f"calibrated NLL {scores[best].nll:.4f}, accuracy {scores[best].accuracy:.2%}"
    say(f"First network: {names[best]}, the best on validation images ({found}).")
    return [modes[best], *(mode for k, mode in enumerate(modes) if k != best)]


def _place(options: RunOptions, recipe: Recipe, seed: int) -> Path:
    """The run folder's path."""
    if options.out is None and options.recipe and (Path(options.recipe) / RECIPE).is_file():
        return Path(options.recipe)
    if options.out is not None and options.out.is_file():
        raise ModebridgeError(f"Expected --out to be a folder, but '{options.out}' is a file; choose another name.")
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
    say(f"modebridge {__version__}, recipe {recipe.title}")
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
                replace=options.replace,
            )
        record, training = write_results(result, folder), training_of(folder, result.rows)
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
        if warning == LEAK and given:
            continue  # said before training
        console.print(f"Note: {warning}", style="yellow")
    console.print(
        f"{len(result.table.test_labels):,} test images, seed {seed}; NLL calibrated on validation images, cost in "
        f"multiply-adds{', training in epochs of one network' if training else ''}:"
    )
    console.print(terminal_table(short_rows(result.rows), training))
    console.print(record["summary"])
    if recipe.data.name == "digits":
        console.print(TOY)
    if result.trained:
        seconds = ", ".join(f"{stage} {time:.0f} s" for stage, time in result.seconds.items())
        cores = plural(torch.get_num_threads(), "core")
        console.print(f"Time: {seconds}; {engine.device.type}, {cores}, torch {torch.__version__}.", style="dim")
    if page.is_file():
        console.print(f"Page: {here(page)} (all {len(result.rows)} rows, and the figures)", soft_wrap=True)
    place, file, best = here(folder.path), f"{recipe.name}.onnx", best_cheap(result.rows)
    cascades = " --cascades" if best is not None and best.average_cost is not None else ""
    console.next_steps(
        (
            f"{program()} advise {place} --budget 1.2{cascades}",
            "which members to use, by validation images",
        ),
        None if cascades else (f"{program()} export {place} {file}", "what advise recommends, as one file"),
        (f"{program()} predict {file} --examples", "classify images with it")
        if recipe.data.name == "digits" and not cascades
        else None,
    )


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
    say(f"modebridge {__version__}, plan of recipe {recipe.title}")
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
    if (count := current.replaced()) and not options.replace:
        warn(f"Trained networks of this folder would be replaced ({count}), which a run refuses without --replace.")


def study(name: str, options: RunOptions, others: Sequence[str] = ()) -> None:
    """Run one study in a run folder."""
    if name not in STUDIES:
        raise ModebridgeError(f"Expected a known study, but got '{name}'; {near(name, STUDIES)}")
    recipe, seed, _ = chosen(options)
    say(f"modebridge {__version__}, study {name} of recipe {recipe.name}")
    with _at_work(options, recipe, seed, options.device, study=True) as (folder, _):
        with progress_bars() as report:
            current = Run(
                recipe,
                seed=seed,
                folder=folder,
                data=options.data,
                device=options.device,
                progress=report,
                replace=False,
            )
            part = run_study(name, current, others)
        if folder.writes:
            note("Writing tables and figures ...")
            place = write_study(part, folder)
            if (folder.path / "report.html").is_file():
                write_page(folder)
    console = Screen()
    if console.print_data([table.to_dict() for table in part.tables]):
        return
    for table in part.tables:
        console.print(study_table(table))
        for footnote in table.notes:
            console.print(footnote, style="dim")
    if folder.writes:
        console.print(f"Written: {here(place)} (Markdown, JSON, CSV, SVG)", soft_wrap=True)
        console.next_steps((f"{program()} report {here(folder.path)}", "the page of the run, with this study"))


@contextmanager
def _at_work(
    options: RunOptions, recipe: Recipe, seed: int, device: str, *, study: bool = False
) -> Iterator[tuple[RunFolder, Engine]]:
    """Lock the run folder, print what changed in it, and wait for all processes."""
    engine = Setting(recipe, seed, device=device).engine
    if engine.compile:  # hide the warnings of torch's compiler, which do not help users
        warnings.filterwarnings("ignore", module="torch")
        logging.getLogger("torch").setLevel(logging.ERROR)
    folder = RunFolder(_place(options, recipe, seed), writes=first_process())
    say(f"Folder: {here(folder.path)}")
    with folder.alone(lambda: warn("Another run is using this folder; waiting for it.")):
        try:
            warn(*begin(folder, recipe, seed, study=study))
            # All processes must see the folder in the same state.
            engine.processes.wait()
            yield folder, engine
        except BaseException as error:
            folder.undo()
            if isinstance(error, KeyboardInterrupt):
                kept = f"finished artifacts are kept in '{folder.path}'; run the same command to resume"
                error.args = (f"; {kept if folder.path.is_dir() else 'nothing had been trained yet'}",)
            raise
