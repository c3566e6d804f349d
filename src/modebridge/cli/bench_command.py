"""`modebridge bench`: measured latency and throughput, beside the FLOPs."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modebridge.cli.bench_tables import about_line, goals, markdown, row_of, table_of
from modebridge.cli.show_commands import existing, span
from modebridge.cli.terminal import listed, say, screen
from modebridge.deploy.benchmark import Contender, Result, Way, race, race_file, usable_ways
from modebridge.deploy.deployed import Deployed
from modebridge.errors import ModebridgeError
from modebridge.recipes import check_recipe, read_recipe
from modebridge.runs import RunFolder, blueprint_for, find_recipe_of
from modebridge.runs.bench_entries import contenders_for, surroundings

__all__ = ["bench"]

BUSY = 0.25
"""The load a core, before the start, from which the machine counts as busy."""
DAY = 86400.0
LARGEST = 10**6
"""Images a call."""
THREADS = 4096


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
    """Time what is asked for, and show each table as soon as it is there."""
    if (target is None) == (recipe is None):
        raise ModebridgeError(
            "Expected a run folder, an exported file or --recipe NAME, but got "
            f"{'none' if target is None else 'both'}; give one of them."
        )
    sizes = _sizes(batches)
    device_type = _device(device)
    if bf16 and device_type == "cpu":
        raise ModebridgeError("Expected --bf16 on a CUDA device, but got the CPU; leave it out.")
    if not 0 < seconds <= DAY:
        raise ModebridgeError(f"Expected --seconds to be above 0 and at most a day, but got {seconds}; try 2.")
    if threads is not None:
        if not 1 <= threads <= THREADS:
            raise ModebridgeError(
                f"Expected --threads to be between 1 and {THREADS}, but got {threads}; leave it out for all."
            )
        torch.set_num_threads(threads)
    names = listed("--only", only)
    chosen, lacking = usable_ways(device_type, listed("--ways", ways))
    about = surroundings(device_type, bf16=bf16)
    _warn_if_busy(about["load"])
    if target is not None and target.is_file():
        if device_type != "cpu":
            raise ModebridgeError("Expected exported files to be timed on the CPU, but got cuda; use --device cpu.")
        if ways is not None or only is not None:
            raise ModebridgeError(
                f"Expected --ways and --only with the networks of a run folder or recipe, but got the file '{target}', "
                "which runs whole and in one way; leave them out."
            )
        deployed = Deployed.load(target)
        about = {"what": target.name, **about}
        rows = int(deployed.meta["bridges"]) + 1 if deployed.meta["elastic"] else 1
        progress = _Progress(about, [rows] * len(sizes), seconds, quiet=as_json)
        _end(race_file(deployed, sizes, seconds=seconds, shown=progress), about, as_json, None)
        return
    folder = existing(target) if target is not None else None
    chosen_recipe = find_recipe_of(folder)[0] if folder is not None else read_recipe(str(recipe))[0]
    check_recipe(chosen_recipe)
    entered, image = contenders_for(blueprint_for(chosen_recipe, folder=folder))
    about = {
        "what": f"networks of {target or 'recipe ' + str(recipe)}, weights drawn (time does not depend on them)",
        **about,
    }
    entered = _chosen(entered, names)
    for sentence in lacking:
        say(sentence, style="yellow")
    rows_of = [sum(not (one.stacked and way == "onnx") for one in entered) for way in chosen for _ in sizes]
    place = _Place(folder, f"bench/{device_type}{'-bf16' if bf16 else ''}") if folder is not None else None
    if folder is not None and not folder.writes:
        say(f"'{folder.path}' is read-only: the tables are shown and not written.", style="yellow")
        place = None
    if place is not None and not overwrite:
        _keep_fuller(place, sum(rows_of))
    progress = _Progress(about, rows_of, seconds, quiet=as_json)
    _end(_races(entered, image, chosen, sizes, device_type, bf16, seconds, progress), about, as_json, place)


def _warn_if_busy(load: float | None) -> None:
    cores = os.cpu_count() or 1
    if load is not None and load > BUSY * cores:
        say(
            f"The machine is busy: a load of {load:.1f} on {cores} cores before the start. Ratios of rows that ran "
            "side by side still mean something, times do not.",
            style="yellow",
        )


@dataclass(frozen=True)
class _Place:
    """Where the times of a run folder go: the name of the file in it, without its ending."""

    folder: RunFolder
    name: str


def _keep_fuller(place: _Place, rows: int) -> None:
    """Refuse to put a small table in the place of a large one, or of a damaged one, before anything is timed."""
    name = f"{place.name}.json"
    file, record = place.folder.path / name, place.folder.files.record(name)
    if name in place.folder.damage:
        raise ModebridgeError(
            f"Expected '{file}' to be whole, but it is damaged ({place.folder.damage[name]}); add --overwrite to "
            "replace it, or leave it alone with --recipe."
        )
    try:
        there = len(record["rows"])
    except (KeyError, TypeError):
        return
    if there > rows:
        raise ModebridgeError(
            f"Expected '{file}' to be replaced by no fewer rows, but it holds {there} and this would write {rows}; "
            "add --overwrite, or leave the file alone with --recipe."
        )


class _Progress:
    """Prints each table when it is there, and how long the rest will take.

    Args:
        about: where it is timed.
        rows: of each table, in order.
        seconds: that each row is given; what compiling and slow rows take beyond is learnt from the tables done.
        quiet: tables are not printed, for --json.
    """

    def __init__(self, about: Mapping[str, Any], rows: Sequence[int], seconds: float, *, quiet: bool) -> None:
        self._about, self._rows, self._quiet = about, list(rows), quiet
        self._begin, self._done = time.perf_counter(), 0
        tables = f"{len(rows)} table{'s' if len(rows) > 1 else ''}"
        say(f"{sum(rows)} rows in {tables}, at least {span(sum(rows) * seconds)}; compiling comes on top.")

    def __call__(self, results: Sequence[Result]) -> None:
        if not self._quiet:
            console = screen()
            console.print(table_of(results))
            console.print(about_line(self._about), style="dim")
        self._done += 1
        rest, done = sum(self._rows[self._done :]), sum(self._rows[: self._done])
        if rest:
            left = (time.perf_counter() - self._begin) / done * rest
            say(f"{self._done} of {len(self._rows)} tables, about {span(left)} left.")


def _races(
    entered: Sequence[Contender],
    image: Sequence[int],
    ways: Sequence[Way],
    sizes: Sequence[int],
    device: str,
    bf16: bool,
    seconds: float,
    shown: Callable[[list[Result]], None],
) -> list[Result]:
    if set(ways) & {"compiled", "graphs"}:
        # The compiler's remarks are for its authors.
        warnings.filterwarnings("ignore", module="torch")
        logging.getLogger("torch").setLevel(logging.ERROR)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as scratch:
        for way in ways:
            results += race(
                entered,
                image,
                way,
                sizes,
                device=device,
                dtype=torch.bfloat16 if bf16 else torch.float32,
                seconds=seconds,
                folder=Path(scratch),
                told=say,
                shown=shown,
            )
    return results


def _end(results: Sequence[Result], about: Mapping[str, Any], as_json: bool, place: _Place | None) -> None:
    """Write what is to be written; the tables have been shown."""
    record = {**about, "rows": [row_of(result) for result in results]}
    if place is not None:
        texts = {".json": json.dumps(record, indent=1), ".md": markdown(results, about)}
        place.folder.files.write({place.name + ending: text for ending, text in texts.items()})
    console = screen()
    if as_json:
        console.print_data(record)
        return
    for sentence in goals(results):
        console.print(sentence)
    if place is not None:
        console.print(f"Written: {(place.folder.path / place.name).parent}", soft_wrap=True)


def _chosen(entered: Sequence[Contender], names: Sequence[str] | None) -> list[Contender]:
    """One network, the unit, and those that the user names."""
    if names is None:
        return list(entered)
    known = [one.name for one in entered]
    for name in names:
        if name not in known:
            raise ModebridgeError(f"Expected --only to be of {', '.join(known)}, but got '{name}'; check the name.")
    return [one for k, one in enumerate(entered) if k == 0 or one.name in names]


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in listed("--batch", text) or []]
    except ValueError:  # ours, where there is nothing, is one too
        sizes = []
    if not sizes or min(sizes) < 1 or max(sizes) > LARGEST:
        raise ModebridgeError(
            f"Expected --batch to be numbers from 1 to {LARGEST:,} as 1,8,64, but got '{text[:80]}'; give some."
        )
    return list(dict.fromkeys(sizes))


def _device(name: str) -> str:
    if name not in ("auto", "cpu", "cuda"):
        raise ModebridgeError(f"Expected --device to be auto, cpu or cuda, but got '{name}'; choose one.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ModebridgeError("Expected a CUDA device, but torch sees none on this machine; use --device cpu.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
