"""`modebridge bench`: measured latency and throughput next to FLOPs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from modebridge.cli.bench_entries import candidates_for, surroundings
from modebridge.cli.show import existing, plain_table, span
from modebridge.cli.terminal import Screen, listed, note, say, silence_compiler
from modebridge.deploy.bench import Candidate, Result, time_all, time_file, usable_backends
from modebridge.deploy.deployed import DeployedEnsemble
from modebridge.errors import ModebridgeError, near, plural
from modebridge.recipes import check_recipe, read_recipe
from modebridge.runs import RunFolder, find_recipe_of, setting_for

__all__ = ["bench"]

BUSY = 0.25
"""Load per core before the start above which the machine counts as busy."""
GOAL = 5.0
"""How far relative time may exceed relative FLOPs, in percentage points of one network."""
COLUMNS = ("ms", "quartiles", "images/s", "time", "quartiles", "FLOPs", "points over")
MAX_BATCH = 10**6


def bench(
    target: str,
    *,
    batches: str,
    device: str,
    backends: str | None,
    only: str | None,
    seconds: float,
    bf16: bool,
    as_json: bool,
) -> None:
    """Time a run folder, an exported file or a recipe; print each table as soon as it is complete."""
    sizes = _sizes(batches)
    device_type = _device(device)
    if bf16 and device_type == "cpu":
        raise ModebridgeError("Expected a CUDA device for --bf16, but got the CPU; leave it out.")
    if not 0 < seconds < float("inf"):
        raise ModebridgeError(f"Expected --seconds to be above 0, but got {seconds}; try 2.")
    names = listed("--only", only)
    chosen, missing = usable_backends(device_type, listed("--backends", backends))
    about = surroundings(device_type, bf16=bf16)
    _warn_if_busy(about["load"])
    place = Path(target).expanduser()
    if place.suffix in (".onnx", ".pt2"):
        if device_type != "cpu" or backends or only:
            raise ModebridgeError(
                f"Expected --device cpu without --backends and --only for '{place}', which can only run as a whole on "
                "the CPU, but got others; leave them out."
            )
        file = DeployedEnsemble.load(place)
        about = {"what": place.name, **about}
        rows = int(file.meta["bridges"]) + 1 if file.meta["elastic"] else 1
        progress = _Progress(about, [rows] * len(sizes), seconds, quiet=as_json)
        _end(time_file(file, sizes, seconds=seconds, shown=progress), about, as_json)
        return
    folder = existing(place) if place.is_dir() else None
    recipe = find_recipe_of(folder)[0] if folder is not None else read_recipe(target)[0]
    check_recipe(recipe)
    note("Building the networks and counting their FLOPs ...")
    candidates, image = candidates_for(setting_for(recipe, folder=folder))
    candidates = _chosen(candidates, names)
    about = {"what": f"networks of {target}, random weights (time does not depend on them)", **about}
    for sentence in missing:
        say(sentence, style="yellow")
    if folder is not None and not folder.writes:
        say(f"'{folder.path}' is read-only: the tables are printed but not saved.", style="yellow")
        folder = None
    progress = _Progress(about, [len(candidates)] * len(chosen) * len(sizes), seconds, quiet=as_json)
    if set(chosen) & {"compiled", "graphs"}:
        silence_compiler()
    dtype = torch.bfloat16 if bf16 else torch.float32
    results: list[Result] = []
    for backend in chosen:
        options: Any = {"device": device_type, "dtype": dtype, "seconds": seconds}
        results += time_all(candidates, image, backend, sizes, **options, log=say, shown=progress)
    # Some rows do not replace all rows.
    _end(results, about, as_json, None if only else folder, f"bench/{device_type}{'-bf16' if bf16 else ''}")


def _warn_if_busy(load: float | None) -> None:
    cores = os.cpu_count() or 1
    if load is not None and load > BUSY * cores:
        say(
            f"The machine is busy: load {load:.1f} on {plural(cores, 'core')} before the start. Ratios between rows "
            "are still meaningful, absolute times are not.",
            style="yellow",
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
            console.print(_table(results))
            console.print(_about_line(self._about), style="dim")
        self._done += 1
        rest, done = sum(self._rows[self._done :]), sum(self._rows[: self._done])
        if rest:
            left = (time.perf_counter() - self._begin) / done * rest
            say(f"{self._done} of {plural(len(self._rows), 'table')} done, about {span(left)} left.")


def _end(
    results: Sequence[Result], about: Mapping[str, Any], as_json: bool, folder: RunFolder | None = None, name: str = ""
) -> None:
    """Save the results in a run folder, as files of this name; the tables have already been printed."""
    record = {**about, "rows": [_row(result) for result in results]}
    if folder is not None:
        folder.write_record(f"{name}.json", record)
        folder.write(f"{name}.md", _markdown(results, about))
    console = Screen()
    if as_json:
        console.print_data(record)
        return
    for sentence in _goals(results):
        console.print(sentence)
    if folder is not None:
        console.print(f"Written: {(folder.path / name).parent}", soft_wrap=True)


def _row(one: Result) -> dict[str, Any]:
    return {
        "name": one.name,
        "backend": one.backend,
        "batch": one.batch,
        "seconds": asdict(one.timing.seconds),
        "fastest": one.timing.fastest,
        "calls": one.timing.calls,
        "images_per_second": one.images_per_second,
        "ratio": asdict(one.ratio),
        "flops": one.flops,
    }


def _table(results: Sequence[Result]) -> Table:
    """The table for one backend and one batch size."""
    table = plain_table(f"{results[0].backend}, batch {results[0].batch}", *COLUMNS)
    for result in results:
        table.add_row(*_cells(result))
    return table


def _cells(one: Result) -> list[str]:
    took, part = one.timing.seconds, one.ratio
    return [
        one.name,
        _ms(took.median),
        f"{_ms(took.low)}-{_ms(took.high)}",
        f"{one.images_per_second:,.0f}",
        f"x{part.median:.3f}",
        f"{part.low:.2f}-{part.high:.2f}",
        f"x{one.flops:.3f}",
        f"{one.over:+.1f}",
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _markdown(results: Sequence[Result], about: Mapping[str, Any]) -> str:
    """All tables, and whether the goal is met."""
    lines: list[str] = []
    for backend, batch in dict.fromkeys((one.backend, one.batch) for one in results):
        lines += [f"{backend}, batch {batch}. {_about_line(about)}", "", f"| members | {' | '.join(COLUMNS)} |"]
        lines.append(f"|---|{'---:|' * len(COLUMNS)}")
        chosen = [one for one in results if (one.backend, one.batch) == (backend, batch)]
        lines += [*(f"| {' | '.join(_cells(one))} |" for one in chosen), ""]
    return "\n".join([*lines, *_goals(results), ""])


def _about_line(about: Mapping[str, Any]) -> str:
    """Machine, settings and versions in one line."""
    versions = ", ".join(f"{name} {about[name]}" for name in ("torch", "onnxruntime", "modebridge") if about.get(name))
    threads = plural(about["threads"], "thread")
    load = "" if about["load"] is None else f", load {about['load']:.2f} before"
    return f"{about['what']}; {about['device']}, {threads}{load}, {about['precision']}; {versions}; {about['made']}"


def _goals(results: Sequence[Result]) -> list[str]:
    """Whether the largest ensemble of one network and type I bridges meets the goal, per backend and batch size."""
    last = {(one.backend, one.batch): one for one in results if one.name.endswith(" I")}
    return [
        f"{one.backend}, batch {one.batch}: {one.name} takes x{one.ratio.median:.3f} the time at x{one.flops:.3f} the "
        f"FLOPs, {'within' if one.over <= GOAL else 'NOT within'} {GOAL:g} points."
        for one in last.values()
    ]


def _chosen(candidates: Sequence[Candidate], names: Sequence[str] | None) -> list[Candidate]:
    """One network, which is the unit, and the named rows."""
    if names is None:
        return list(candidates)
    known = [one.name for one in candidates]
    for name in names:
        if name not in known:
            raise ModebridgeError(f"Expected --only to name rows of the table, but got '{name}'; {near(name, known)}")
    return [one for k, one in enumerate(candidates) if k == 0 or one.name in names]


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
