"""What Ray costs and brings on this machine: the demo with and without it; eight small modes by one worker and by two;
the wall time that `modebridge plan` predicts for both.

    python benchmarks/ray_scaling.py [overhead] [workers] [prediction]
"""  # noqa: D205

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from modebridge.members import ModeWeights, members_of
from modebridge.recipes import Recipe
from modebridge.recipes.demo import digits
from modebridge.runs import Run, RunFolder, engine_for, run_recipe
from modebridge.runs.executor import RunSpec, make_context
from modebridge.runs.logits import Logits
from modebridge.runs.memory import Memory
from modebridge.runs.on_ray import OnRay
from modebridge.runs.schedule import schedule, tasks_of
from modebridge.runs.throughput import measured_rates

PAIRS = 3
"""How often the demo is run in each way."""


def say(text: str) -> None:
    print(f"[load {os.getloadavg()[0]:.1f}] {text}", flush=True)


def overhead() -> None:
    """The demo here and on a Ray that is up, in turn; other work on the machine moves a single pair by many seconds."""
    recipe = digits()
    pairs = []
    for _ in range(PAIRS):
        with tempfile.TemporaryDirectory() as place:
            begin = time.perf_counter()
            here = run_recipe(recipe, folder=RunFolder(Path(place) / "here"))
            local = time.perf_counter() - begin
            begin = time.perf_counter()
            folder = RunFolder(Path(place) / "there")
            with OnRay(recipe=recipe, shared=folder.path / ".work") as executor:
                up = time.perf_counter() - begin
                begin = time.perf_counter()
                there = run_recipe(recipe, folder=folder, executor=executor)
                ray = time.perf_counter() - begin
            same = all(torch.equal(here.answers.test[name], there.answers.test[name]) for name in here.answers.test)
        pairs.append((local, ray))
        say(f"demo in this process: {local:.1f} s; on Ray: {ray:.1f} s after it was up ({up:.1f} s); same bits: {same}")
    local, ray = (min(times) for times in zip(*pairs, strict=True))
    say(f"shortest of {PAIRS} each: {local:.1f} s and {ray:.1f} s: {ray - local:+.1f} s")


def workers() -> None:
    """Stages per second of one worker and of two, on eight small modes; workers have started before."""
    recipe = replace(digits(), modes=8)
    times = []
    for count in (1, 2):
        with OnRay(recipe=recipe, cpus=count) as executor:
            _warm(executor, count)
            begin = time.perf_counter()
            Run(recipe, executor=executor).make([ModeWeights(k) for k in range(8)])
            times.append(time.perf_counter() - begin)
        say(f"eight modes, {count} worker{'s' if count > 1 else ''}: {times[-1]:.1f} s")
    say(f"two workers against one: x{times[0] / times[1]:.2f}")


def prediction() -> None:
    """What the plan says about a run with one worker and with two, and what it takes."""
    recipe = replace(digits(), modes=4)
    spec = RunSpec(recipe, device="cpu")
    context = make_context(spec, engine_for(recipe, "cpu"))
    for count in (1, 2):
        rates = measured_rates(spec)
        tasks = [task for task in tasks_of(context, Memory(), {}, rates) if task.kind not in ("profiles", "samples")]
        predicted = schedule(tasks, count).seconds
        with OnRay(recipe=recipe, cpus=count) as executor:
            _warm(executor, count)
            begin = time.perf_counter()
            Run(recipe, executor=executor).make([Logits(member) for member in members_of(recipe)])
            taken = time.perf_counter() - begin
        say(f"{count} workers: predicted {predicted:.1f} s, took {taken:.1f} s ({predicted / taken - 1:+.0%})")


def _warm(executor: OnRay, count: int) -> None:
    """Let the workers import what they need."""
    recipe: Recipe = replace(digits(), mode=replace(digits().mode, epochs=1))
    Run(recipe, executor=executor).make([ModeWeights(k) for k in range(2 * count)])


if __name__ == "__main__":
    for name in sys.argv[1:] or ("overhead", "workers", "prediction"):
        {"overhead": overhead, "workers": workers, "prediction": prediction}[name]()
