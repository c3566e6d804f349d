"""`modebridge bench`: measured latency and throughput next to FLOPs, in one table."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from modebridge.batches import map_inputs, size_of, take_rows
from modebridge.bridges import build_bridge
from modebridge.cli.terminal import Screen, listed, say, warn
from modebridge.deploy import DeployedEnsemble, export
from modebridge.ensembles import ALL, Ensemble
from modebridge.errors import ModebridgeError, install, plural
from modebridge.members import Setting, SmallNetwork, parse_member, row_plans
from modebridge.modes import Mode
from modebridge.recipes import check_recipe, read_recipe
from modebridge.report import plain_table
from modebridge.runs import existing, find_recipe_of, machine, setting_for
from modebridge.scoring import cost
from modebridge.seeds import generator
from modebridge.types import Inputs

SECONDS = 4.0
"""Time for all rows of one backend and batch size."""
ROUNDS = 20
"""Many short rounds: what slows the machine down for a moment slows all rows alike."""


class Candidate(NamedTuple):
    """Something to time, and its FLOPs relative to one network."""

    name: str
    run: Callable[[Any], object]
    flops: float


def bench_target(target: Path, batches: str, device: str) -> None:
    """Time a run folder, an exported file or a recipe, and print the table."""
    sizes, about, threads = _sizes(batches), machine(), torch.get_num_threads()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # not available on Windows
    if target.suffix in (".onnx", ".pt2"):
        if device == "cuda":
            raise ModebridgeError(f"Expected the CPU for '{target}', where files run, but got cuda; omit --device.")
        where, timed = "cpu", partial(time_file, DeployedEnsemble.load(target), sizes)
    else:
        folder = existing(target, writes=False) if target.is_dir() else None
        recipe = find_recipe_of(folder)[0] if folder is not None else read_recipe(str(target))[0]
        check_recipe(recipe)
        setting = replace(setting_for(recipe, folder=folder), device=device)
        where, timed = setting.engine.device.type, partial(time_setting, setting, sizes)
    if load > (cores := os.cpu_count() or 1):
        warn(
            f"The load average, {load:.1f}, is above {plural(cores, 'core')}, so times and ratios are not reliable; "
            "repeat this when the machine has less work."
        )
    rows = timed()
    console = Screen()
    record = {"what": str(target), **about, "device": where, "threads": threads, "load": load, "rows": rows}
    if console.print_data(record):
        return
    ratios = {"time": "relative_time", "cost": "relative_flops"}
    if rows[0]["relative_time"] is None:  # a file of one thing to time
        del ratios["time"]
    table = plain_table("", "backend", "batch", "ms", "images/s", *ratios, text=(0, 1))
    for row in rows:
        cells = [row["backend"], str(row["batch"]), f"{1e3 * row['seconds']:.3f}", f"{row['images_per_second']:,.0f}"]
        table.add_row(row["name"], *cells, *(f"x{row[name]:.3f}" for name in ratios.values()))
    console.print(table)
    relative = "time: the median over rounds of the ratio to one network, which need not be the ratio of the ms. "
    console.print(
        f"ms: the median of all rounds. {relative if 'time' in ratios else ''}"
        "cost: multiply-adds, in multiples of one network. "
        f"{about['machine']}; on {where}, {plural(threads, 'thread')}, load {load:.1f} before, torch {about['torch']}.",
        style="dim",
    )


def time_setting(setting: Setting, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Rows for the networks of a recipe in torch and, on a CPU, in ONNX Runtime if it is installed."""
    say("Building the networks and counting their FLOPs ...")
    device, example = setting.engine.device, setting.example
    built = [(name, one, cost(one, example).relative_flops) for name, one in ensembles_for(setting).items()]
    candidates = [Candidate(name, partial(_probabilities, one.to(device)), flops) for name, one, flops in built]
    rows = time_all("torch", candidates, map_inputs(lambda tensor: tensor.to(device), example), sizes)
    if device.type != "cpu":
        return rows
    if not (find_spec("onnxruntime") and find_spec("onnxscript")):
        say(f"Without ONNX Runtime, which is not installed: {install('onnx')}.")
        return rows
    with tempfile.TemporaryDirectory() as folder:
        for k, (name, one, flops) in enumerate(built):
            say(f"Exporting {name} for ONNX Runtime ...")
            path = export(one, Path(folder) / "candidate.onnx", example, outputs=()).path
            candidates[k] = Candidate(name, DeployedEnsemble.load(path, threads=torch.get_num_threads()), flops)
    return rows + time_all("onnx", candidates, example, sizes)


def _probabilities(ensemble: Ensemble, images: Inputs) -> Tensor:
    """On the CPU, as a caller wants them; on a GPU, that waits until they are there."""
    return ensemble.predict_proba(images).cpu()


def ensembles_for(setting: Setting) -> dict[str, Ensemble]:
    """One network, one network with the recipe's heads or else with its first bridge, and two networks.

    Their weights are random: time does not depend on them.
    """
    recipe, net = setting.recipe, setting.net
    modes = [Mode.from_module(setting.network.build(generator(0, "mode", k))) for k in range(2)]
    plans = {row.role: row for row in row_plans(recipe)}
    timed = {plans["one"].name: Ensemble(net, modes[:1])}
    if (row := plans.get("heads") or plans.get("bridge")) is not None:
        member = parse_member(row.members[-1])
        assert isinstance(member, SmallNetwork)
        sizing = member.sizing(setting, member.wide)
        bridge = build_bridge(net, setting.example, modes[:1], member.heads(recipe), name=member.name, seed=0, **sizing)
        timed[row.name] = Ensemble(net, modes[:1], [bridge])
    return {**timed, plans["two"].name: Ensemble(net, modes)}


def time_file(file: DeployedEnsemble, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Rows for a file; of a cascade for its first network alone and for all members, as its time depends on images."""
    names, flops = file.meta["members"], file.meta["cost"]["relative_flops"]
    candidates = [Candidate(" + ".join(names), file, flops)]
    if file.cascade:
        first = Candidate(f"{names[0]} alone", partial(file, threshold=0.0), 1.0)
        candidates = [first, candidates[0]._replace(run=partial(file, threshold=ALL))]
    example = torch.rand(2, *file.image_shape(), generator=generator(0, "images"))
    return time_all("onnx" if file.path.suffix == ".onnx" else "torch", candidates, example, sizes)


def time_all(
    backend: str, candidates: Sequence[Candidate], example: Inputs, sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Rows for batches of several sizes, made of the rows of an example; the first candidate is the unit of time."""
    rows = []
    for size in sizes:
        say(f"Timing {backend}, batch {size} ...")
        images = take_rows(example, torch.arange(size) % size_of(example))
        times = measure([partial(one.run, images) for one in candidates])
        for one, (seconds, relative) in zip(candidates, times, strict=True):
            row = {"name": one.name, "backend": backend, "batch": size, "seconds": seconds}
            row |= {"images_per_second": size / seconds, "relative_time": relative if len(candidates) > 1 else None}
            rows.append(row | {"relative_flops": one.flops})
    return rows


def measure(
    calls: Sequence[Callable[[], object]], seconds: float | None = None, clock: Callable[[], float] = time.perf_counter
) -> list[tuple[float, float]]:
    """The median time of every call, and relative to that of the first.

    Each runs once untimed, then all run in turns until the time is up, at least one round of one call each. What slows
    the machine down in a round slows all of them, so ratios are taken per round. Every other round is in reverse order.
    """
    for call in calls:
        call()
    seconds, order = SECONDS if seconds is None else seconds, list(range(len(calls)))
    rounds: list[dict[int, float]] = []
    end = clock() + seconds
    while not rounds or clock() < end:
        rounds.append({k: _turn(calls[k], seconds / ROUNDS / len(calls), clock) for k in order})
        order.reverse()
    return [(median(one[k] for one in rounds), median(one[k] / one[0] for one in rounds)) for k in range(len(calls))]


def _turn(call: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """The median time of calls until the time is up, at least of one."""
    times: list[float] = []
    end = clock() + seconds
    while not times or clock() < end:
        start = clock()
        call()
        times.append(clock() - start)
    return median(times)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in listed("--batch", text) or []]
    except ValueError:  # also the ModebridgeError for an empty list
        sizes = []
    if not sizes or not all(0 < size <= 10**6 for size in sizes):
        raise ModebridgeError(f"Expected --batch to list numbers from 1 to 1,000,000, but got '{text[:80]}'; try 1,64.")
    return sizes
