"""Overhead and speedup of Ray on this machine, and the accuracy of `modebridge plan`.

python benchmarks/ray_scaling.py [overhead] [workers] [prediction]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from modebridge.errors import plural
from modebridge.members import ModeWeights, members_of
from modebridge.recipes import Recipe
from modebridge.recipes.demo import digits
from modebridge.runs import Run, RunFolder, engine_for, run_recipe
from modebridge.runs.executor import RunSpec, make_context
from modebridge.runs.logits import Logits
from modebridge.runs.on_ray import OnRay
from modebridge.runs.run import Memory
from modebridge.runs.schedule import schedule, tasks_of
from modebridge.runs.throughput import measured_rates

PAIRS = 3
"""How often the demo is run in each way."""


def log(text: str) -> None:
    print(f"[load {os.getloadavg()[0]:.1f}] {text}", flush=True)


def overhead() -> None:
    """The demo here and on a Ray that is up, in turn; other work on the machine moves a single pair by many seconds."""
    recipe = digits()
    pairs = []
    for _ in range(PAIRS):
        with tempfile.TemporaryDirectory() as place:
            start = time.perf_counter()
            here = run_recipe(recipe, folder=RunFolder(Path(place) / "here"))
            local = time.perf_counter() - start
            start = time.perf_counter()
            folder = RunFolder(Path(place) / "there")
            with OnRay(recipe=recipe, shared=folder.path / ".work") as executor:
                up = time.perf_counter() - start
                start = time.perf_counter()
                there = run_recipe(recipe, folder=folder, executor=executor)
                ray = time.perf_counter() - start
            same = all(torch.equal(here.answers.test[name], there.answers.test[name]) for name in here.answers.test)
        pairs.append((local, ray))
        log(f"demo in this process: {local:.1f} s; on Ray: {ray:.1f} s after it was up ({up:.1f} s); same bits: {same}")
    local, ray = (min(times) for times in zip(*pairs, strict=True))
    log(f"shortest of {PAIRS} each: {local:.1f} s and {ray:.1f} s: {ray - local:+.1f} s")


def workers() -> None:
    """Train eight small modes with one and with two workers that have already started."""
    recipe = replace(digits(), modes=8)
    times = []
    for count in (1, 2):
        with OnRay(recipe=recipe, cpus=count) as executor:
            _warm(executor, count)
            start = time.perf_counter()
            Run(recipe, executor=executor).make([ModeWeights(k) for k in range(8)])
            times.append(time.perf_counter() - start)
        log(f"eight modes, {plural(count, 'worker')}: {times[-1]:.1f} s")
    log(f"two workers against one: x{times[0] / times[1]:.2f}")


def prediction() -> None:
    """Predicted and measured time of a run with one and with two workers."""
    recipe = replace(digits(), modes=4)
    spec = RunSpec(recipe, device="cpu")
    context = make_context(spec, engine_for(recipe, "cpu"))
    for count in (1, 2):
        rates = measured_rates(spec)
        tasks = [task for task in tasks_of(context, Memory(), {}, rates) if task.kind not in ("profiles", "samples")]
        predicted = schedule(tasks, count).seconds
        with OnRay(recipe=recipe, cpus=count) as executor:
            _warm(executor, count)
            start = time.perf_counter()
            Run(recipe, executor=executor).make([Logits(member) for member in members_of(recipe)])
            taken = time.perf_counter() - start
        log(
            f"{plural(count, 'worker')}: predicted {predicted:.1f} s, took {taken:.1f} s ({predicted / taken - 1:+.0%})"
        )


def _warm(executor: OnRay, count: int) -> None:
    """Start the workers and let them import what they need."""
    recipe: Recipe = replace(digits(), mode=replace(digits().mode, epochs=1))
    Run(recipe, executor=executor).make([ModeWeights(k) for k in range(2 * count)])


if __name__ == "__main__":
    for name in sys.argv[1:] or ("overhead", "workers", "prediction"):
        {"overhead": overhead, "workers": workers, "prediction": prediction}[name]()
