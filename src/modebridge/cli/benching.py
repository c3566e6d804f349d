"""`modebridge bench`: measured latency and throughput, beside the FLOPs."""

from __future__ import annotations

import json
import logging
import math
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modebridge.cli.looking import _table, existing
from modebridge.cli.terminal import say, screen
from modebridge.deploy.contenders import Contender, Result, Way, race, race_file, usable_ways
from modebridge.deploy.file import Deployed
from modebridge.errors import ModebridgeError
from modebridge.recipes import find_recipe_of, read_recipe, write_whole
from modebridge.recipes.benching import contenders_for, surroundings

__all__ = ["bench"]

GOAL = 5.0
"""By how many points (hundredths of one network) time may exceed FLOPs."""


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
    as_json: bool,
) -> None:
    """Time what is asked for, and say it."""
    if (target is None) == (recipe is None):
        raise ModebridgeError(
            "Expected a run folder, an exported file or --recipe NAME, but got "
            f"{'none' if target is None else 'both'}; give one of them."
        )
    sizes = _sizes(batches)
    kind = _device(device)
    if bf16 and kind == "cpu":
        raise ModebridgeError("Expected --bf16 on a CUDA device, but got the CPU; leave it out.")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ModebridgeError(f"Expected --seconds to be above 0, but got {seconds}; 2 is a good start.")
    if threads is not None:
        if threads < 1:
            raise ModebridgeError(f"Expected --threads to be at least 1, but got {threads}; leave it out for all.")
        torch.set_num_threads(threads)
    about = surroundings(kind, bf16=bf16)
    if target is not None and target.is_file():
        if kind != "cpu":
            raise ModebridgeError("Expected exported files to be timed on the CPU, but got cuda; use --device cpu.")
        deployed = Deployed.load(target)
        _show(race_file(deployed, sizes, seconds=seconds), {"what": target.name, **about}, as_json, None)
        return
    chosen_recipe = find_recipe_of(existing(target))[0] if target is not None else read_recipe(str(recipe))[0]
    entered, image = contenders_for(chosen_recipe)
    name = f"networks of {target or 'recipe ' + str(recipe)}, weights drawn (time does not depend on them)"
    entered = _chosen(entered, only)
    chosen, lacking = usable_ways(kind, _split(ways) if ways else None)
    for sentence in lacking:
        say(sentence, style="yellow")
    results = _races(entered, image, chosen, sizes, kind, bf16, seconds)
    place = target / "bench" if target is not None else None
    _show(results, {"what": name, **about}, as_json, place)


def _races(
    entered: Sequence[Contender],
    image: Sequence[int],
    ways: Sequence[Way],
    sizes: Sequence[int],
    device: str,
    bf16: bool,
    seconds: float,
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
            )
    return results


def _show(results: Sequence[Result], about: Mapping[str, Any], as_json: bool, place: Path | None) -> None:
    record = {**about, "rows": [_row(result) for result in results]}
    if place is not None:
        stem = "-".join(
            ["cuda" if "cuda" in str(about["device"]) else "cpu", *(["bf16"] if about["precision"] == "bf16" else [])]
        )
        write_whole(place / f"{stem}.json", json.dumps(record, indent=1))
        write_whole(place / f"{stem}.md", _markdown(results, about))
    console = screen()
    if as_json:
        console.print_json(json.dumps(record))
        return
    for way, batch in dict.fromkeys((one.way, one.batch) for one in results):
        table = _table(f"{way}, batch {batch}", "ms", "quartiles", "images/s", "time", "quartiles", "FLOPs", "points")
        for one in results:
            if (one.way, one.batch) == (way, batch):
                table.add_row(*_cells(one))
        console.print(table)
        console.print(_about(about), style="dim", markup=False)
    for sentence in _goals(results):
        console.print(sentence, markup=False)
    if place is not None:
        console.print(f"Written: {place}", soft_wrap=True, markup=False)


def _cells(one: Result) -> list[str]:
    time, part = one.timing.seconds, one.ratio
    return [
        one.name,
        _ms(time.median),
        f"{_ms(time.low)}-{_ms(time.high)}",
        f"{one.images_per_second:,.0f}",
        f"x{part.median:.3f}",
        f"{part.low:.2f}-{part.high:.2f}",
        f"x{one.flops:.3f}",
        f"{one.over:+.1f}",
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _markdown(results: Sequence[Result], about: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for way, batch in dict.fromkeys((one.way, one.batch) for one in results):
        lines += [
            f"{way}, batch {batch}. {_about(about)}",
            "",
            "| members | ms | quartiles | images/s | time | quartiles | FLOPs | points over |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [f"| {' | '.join(_cells(one))} |" for one in results if (one.way, one.batch) == (way, batch)]
        lines.append("")
    return "\n".join([*lines, *_goals(results), ""])


def _about(about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {about[name]}" for name in ("torch", "onnxruntime", "modebridge") if about.get(name))
    threads = f"{about['threads']} thread{'s' if about['threads'] > 1 else ''}"
    return f"{about['what']}; {about['device']}, {threads}, {about['precision']}; {versions}; {about['made']}"


def _goals(results: Sequence[Result]) -> list[str]:
    """Whether the largest ensemble of one network and type I bridges keeps its promise, once a way and batch."""
    said: list[str] = []
    for way, batch in dict.fromkeys((one.way, one.batch) for one in results):
        bridged = [one for one in results if (one.way, one.batch) == (way, batch) and one.name.endswith(" I")]
        if bridged:
            one = bridged[-1]
            judged = "within" if one.over <= GOAL else "NOT within"
            said.append(
                f"{way}, batch {batch}: {one.name} takes x{one.ratio.median:.3f} the time at x{one.flops:.3f} the "
                f"FLOPs, {judged} {GOAL:g} points."
            )
    return said


def _row(one: Result) -> dict[str, Any]:
    time, part = one.timing.seconds, one.ratio
    return {
        "name": one.name,
        "way": one.way,
        "batch": one.batch,
        "seconds": {"median": time.median, "low": time.low, "high": time.high},
        "fastest": one.timing.fastest,
        "calls": one.timing.calls,
        "images_per_second": one.images_per_second,
        "ratio": {"median": part.median, "low": part.low, "high": part.high},
        "flops": None if math.isnan(one.flops) else one.flops,
    }


def _chosen(entered: Sequence[Contender], only: str | None) -> list[Contender]:
    """One network, the unit, and those that the user names."""
    if only is None:
        return list(entered)
    names = _split(only)
    known = [one.name for one in entered]
    for name in names:
        if name not in known:
            raise ModebridgeError(f"Expected --only to be of {', '.join(known)}, but got '{name}'; check the name.")
    return [one for k, one in enumerate(entered) if k == 0 or one.name in names]


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in _split(text)]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ModebridgeError(f"Expected --batch to be numbers from 1 as 1,8,64, but got '{text}'; give some.")
    return list(dict.fromkeys(sizes))


def _device(name: str) -> str:
    if name not in ("auto", "cpu", "cuda"):
        raise ModebridgeError(f"Expected --device to be auto, cpu or cuda, but got '{name}'; choose one.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ModebridgeError("Expected a CUDA device, but torch sees none on this machine; use --device cpu.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
