"""`modebridge bench`: measured latency and throughput next to FLOPs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modebridge.cli.bench_tables import about_line, goals, markdown, row_of, table_of
from modebridge.cli.show_commands import existing, span
from modebridge.cli.terminal import Screen, listed, note, say, silence_compiler
from modebridge.deploy.benchmark import Candidate, Result, race_file, time_all, usable_ways
from modebridge.deploy.deployed import Deployed
from modebridge.errors import ModebridgeError, near, plural
from modebridge.recipes import check_recipe, read_recipe
from modebridge.runs import RunFolder, find_recipe_of, setting_for
from modebridge.runs.bench_entries import contenders_for, surroundings

__all__ = ["bench"]

BUSY = 0.25
"""Load per core before the start above which the machine counts as busy."""
DAY = 86400.0
MAX_BATCH = 10**6
MAX_THREADS = 4096


def bench(
    target: Path | None,
    *,
    recipe: str | None,
    batches: str,
    device: str,
    ways: str | None,
    only: str | None,
    seconds: float,
    threads: int | None,
    bf16: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Time a run folder, an exported file or a recipe; print each table as soon as it is complete."""
    if (target is None) == (recipe is None):
        raise ModebridgeError(
            "Expected a run folder, an exported file or --recipe NAME, but got "
            f"{'none' if target is None else 'both'}; give one of them."
        )
    sizes = _sizes(batches)
    device_type = _device(device)
    if bf16 and device_type == "cpu":
        raise ModebridgeError("Expected a CUDA device for --bf16, but got the CPU; leave it out.")
    if not 0 < seconds <= DAY:
        raise ModebridgeError(f"Expected --seconds to be above 0 and at most {DAY:g}, but got {seconds}; try 2.")
    if threads is not None:
        if not 1 <= threads <= MAX_THREADS:
            raise ModebridgeError(
                f"Expected --threads to be from 1 to {MAX_THREADS}, but got {threads}; leave it out for the default."
            )
        torch.set_num_threads(threads)
    names = listed("--only", only)
    chosen, missing = usable_ways(device_type, listed("--ways", ways))
    about = surroundings(device_type, bf16=bf16)
    _warn_if_busy(about["load"])
    if target is not None and target.is_file():
        if device_type != "cpu":
            raise ModebridgeError("Expected --device cpu for an exported file, but got cuda; use --device cpu.")
        if ways is not None or only is not None:
            raise ModebridgeError(
                f"Expected --ways and --only with a run folder or recipe, but got the file '{target}', which can only "
                "run as a whole; leave them out."
            )
        deployed = Deployed.load(target)
        about = {"what": target.name, **about}
        rows = int(deployed.meta["bridges"]) + 1 if deployed.meta["elastic"] else 1
        progress = _Progress(about, [rows] * len(sizes), seconds, quiet=as_json)
        _end(race_file(deployed, sizes, seconds=seconds, shown=progress), about, as_json)
        return
    folder = existing(target) if target is not None else None
    chosen_recipe = find_recipe_of(folder)[0] if folder is not None else read_recipe(str(recipe))[0]
    check_recipe(chosen_recipe)
    note("Building the networks and counting their FLOPs ...")
    entered, image = contenders_for(setting_for(chosen_recipe, folder=folder))
    about = {
        "what": f"networks of {target or 'recipe ' + str(recipe)}, random weights (time does not depend on them)",
        **about,
    }
    entered = _chosen(entered, names)
    for sentence in missing:
        say(sentence, style="yellow")
    rows_of = [sum(not (one.stacked and way == "onnx") for one in entered) for way in chosen for _ in sizes]
    name = f"bench/{device_type}{'-bf16' if bf16 else ''}"
    if folder is not None and not folder.writes:
        say(f"'{folder.path}' is read-only: the tables are printed but not saved.", style="yellow")
        folder = None
    if folder is not None and not overwrite:
        _keep_fuller(folder, f"{name}.json", sum(rows_of))
    progress = _Progress(about, rows_of, seconds, quiet=as_json)
    if set(chosen) & {"compiled", "graphs"}:
        silence_compiler()
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as scratch:
        for way in chosen:
            results += time_all(
                entered,
                image,
                way,
                sizes,
                device=device_type,
                dtype=torch.bfloat16 if bf16 else torch.float32,
                seconds=seconds,
                folder=Path(scratch),
                log=say,
                shown=progress,
            )
    _end(results, about, as_json, folder, name)


def _warn_if_busy(load: float | None) -> None:
    cores = os.cpu_count() or 1
    if load is not None and load > BUSY * cores:
        say(
            f"The machine is busy: load {load:.1f} on {plural(cores, 'core')} before the start. Ratios between rows "
            "are still meaningful, absolute times are not.",
            style="yellow",
        )


def _keep_fuller(folder: RunFolder, name: str, rows: int) -> None:
    """Refuse to replace a larger or damaged table, before anything is timed."""
    file, record = folder.path / name, folder.record(name)
    if name in folder.damage:
        raise ModebridgeError(
            f"Expected '{file}' to be intact, but it is damaged ({folder.damage[name]}); add --overwrite to "
            "replace it, or use --recipe, which saves nothing."
        )
    try:
        existing_rows = len(record["rows"])
    except (KeyError, TypeError):
        return
    if existing_rows > rows:
        raise ModebridgeError(
            f"Expected '{file}' to be replaced by at least as many rows, but it has {existing_rows} and the new table "
            f"would have {rows}; add --overwrite, or use --recipe, which saves nothing."
        )


class _Progress:
    """Prints each table as soon as it is complete, unless `quiet`, and the estimated remaining time.

    `rows` is the number of rows of each table. What compilation and slow rows add is learned from finished tables.
    """

    def __init__(self, about: Mapping[str, Any], rows: Sequence[int], seconds: float, *, quiet: bool) -> None:
        self._about, self._rows, self._quiet = about, list(rows), quiet
        self._begin, self._done = time.perf_counter(), 0
        size = f"{plural(sum(rows), 'row')} in {plural(len(rows), 'table')}"
        say(f"{size}, at least {span(sum(rows) * seconds)}, plus compilation.")

    def __call__(self, results: Sequence[Result]) -> None:
        if not self._quiet:
            console = Screen()
            console.print(table_of(results))
            console.print(about_line(self._about), style="dim")
        self._done += 1
        rest, done = sum(self._rows[self._done :]), sum(self._rows[: self._done])
        if rest:
            left = (time.perf_counter() - self._begin) / done * rest
            say(f"{self._done} of {plural(len(self._rows), 'table')} done, about {span(left)} left.")


def _end(
    results: Sequence[Result], about: Mapping[str, Any], as_json: bool, folder: RunFolder | None = None, name: str = ""
) -> None:
    """Save the results in a run folder, as files of this name; the tables have already been printed."""
    record = {**about, "rows": [row_of(result) for result in results]}
    if folder is not None:
        folder.write_record(f"{name}.json", record)
        folder.write(f"{name}.md", markdown(results, about))
    console = Screen()
    if as_json:
        console.print_data(record)
        return
    for sentence in goals(results):
        console.print(sentence)
    if folder is not None:
        console.print(f"Written: {(folder.path / name).parent}", soft_wrap=True)


def _chosen(entered: Sequence[Candidate], names: Sequence[str] | None) -> list[Candidate]:
    """One network, which is the unit, and the named rows."""
    if names is None:
        return list(entered)
    known = [one.name for one in entered]
    for name in names:
        if name not in known:
            raise ModebridgeError(f"Expected --only to name rows of the table, but got '{name}'; {near(name, known)}")
    return [one for k, one in enumerate(entered) if k == 0 or one.name in names]


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in listed("--batch", text) or []]
    except ValueError:  # also the ModebridgeError for an empty list
        sizes = []
    if not sizes or min(sizes) < 1 or max(sizes) > MAX_BATCH:
        raise ModebridgeError(
            f"Expected --batch to list numbers from 1 to {MAX_BATCH:,}, but got '{text[:80]}'; try 1,8,64."
        )
    return list(dict.fromkeys(sizes))


def _device(name: str) -> str:
    if name not in ("auto", "cpu", "cuda"):
        raise ModebridgeError(f"Expected --device to be auto, cpu or cuda, but got '{name}'; choose one.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ModebridgeError("Expected a CUDA device, but torch finds none on this machine; use --device cpu.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
