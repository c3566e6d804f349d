"""Time ensembles and exported files in interleaved rounds, so that noise of the machine affects all of them alike."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from modebridge.deploy.deployed import DeployedEnsemble
from modebridge.deploy.export import export
from modebridge.deploy.runners import Branches
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError, near, plural
from modebridge.nets import CudaGraph
from modebridge.scoring import cost
from modebridge.seeds import generator

Backend: TypeAlias = Literal["eager", "compiled", "graphs", "onnx"]
BACKENDS: dict[str, tuple[Backend, ...]] = {
    "cpu": ("eager", "compiled", "onnx"),
    "cuda": ("eager", "compiled", "graphs"),
}
"""The backends of each device: eager, compiled blocks, compiled and captured in one CUDA graph, exported."""


class Spread(NamedTuple):
    """Median and quartiles, with linear interpolation.

    >>> Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(*map(float, np.quantile(values, (0.5, 0.25, 0.75))))


class Timing(NamedTuple):
    """The times of one candidate: per call over all calls, the median of each turn, and the shortest call."""

    seconds: Spread
    rounds: tuple[float, ...]
    calls: int
    fastest: float

    def relative_to(self, unit: Timing) -> Spread:
        """The time relative to that of another candidate, per round: what slows a round down slows both."""
        return Spread.of([a / b for a, b in zip(self.rounds, unit.rounds, strict=True)])


def measure(
    candidates: Mapping[str, Callable[[], object]],
    seconds: float = 2.0,
    *,
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time candidates in turns; a call must return only when its work is done.

    Every candidate first runs twice untimed (compilation, allocation). Then each round gives every candidate one turn:
    one untimed call, which loads its weights into the caches, then timed calls, at least one, until its time is up. Odd
    rounds visit the candidates in reverse order, so that a drift of the machine favors none. `seconds` is the time per
    candidate over all rounds; slow ones take longer, with one call per round.

    >>> found = measure({"nothing": lambda: None}, seconds=0.001)
    >>> len(found["nothing"].rounds), found["nothing"].calls >= 7
    (7, True)
    """
    for call in candidates.values():
        for _ in range(2):
            call()
    turns: dict[str, list[list[float]]] = {name: [] for name in candidates}
    order = list(candidates)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            turns[name].append(_turn(candidates[name], seconds / rounds, clock))
    found = {}
    for name, rows in turns.items():
        times = [time for turn in rows for time in turn]
        found[name] = Timing(Spread.of(times), tuple(median(turn) for turn in rows), len(times), min(times))
    return found


def _turn(call: Callable[[], object], seconds: float, clock: Callable[[], float]) -> list[float]:
    call()
    times: list[float] = []
    end = clock() + seconds
    while not times or clock() < end:
        start = clock()
        call()
        times.append(clock() - start)
    return times


@dataclass(frozen=True)
class Candidate:
    """Something to time: built once per backend, so that not all are in memory at once.

    Compiled regions are split at `taps`, the same for all candidates, so that all are compiled alike.
    """

    name: str
    make: Callable[[], Ensemble]
    taps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """One row of a table: a candidate with its timing, and its FLOPs relative to one network.

    `ratio` is the time relative to one network, run the same way in the same rounds.
    """

    name: str
    backend: Backend
    batch: int
    timing: Timing
    ratio: Spread
    flops: float

    @property
    def images_per_second(self) -> float:
        """Throughput at the median time."""
        return self.batch / self.timing.seconds.median

    @property
    def over(self) -> float:
        """How far relative time exceeds relative FLOPs, in percentage points of one network."""
        return 100 * (self.ratio.median - self.flops)


Shown: TypeAlias = Callable[[list[Result]], None]
"""Called with the results of each batch size as soon as they are complete."""


def usable_backends(device: str, asked: Sequence[str] | None = None) -> tuple[list[Backend], list[str]]:
    """The backends that work on this machine, and a message for each that does not; an error if it was asked for."""
    known = BACKENDS[device]
    for name in asked or ():
        if name not in known:
            raise ModebridgeError(f"Expected backends for device '{device}', but got '{name}'; {near(name, known)}")
    unusable: dict[Backend, str] = {}
    if find_spec("onnxruntime") is None or find_spec("onnxscript") is None:
        unusable["onnx"] = (
            "Expected onnxruntime and onnxscript for the backend 'onnx', but they are not installed; "
            "pip install 'modebridge[onnx]'."
        )
    if device == "cpu" and not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        unusable["compiled"] = "Expected a C++ compiler for compiled networks, but found none; install g++."
    wanted = [name for name in known if not asked or name in asked]
    missing = [unusable[name] for name in wanted if name in unusable]
    if asked and missing:
        raise ModebridgeError(missing[0])
    return [name for name in wanted if name not in unusable], missing


def time_all(
    candidates: Sequence[Candidate],
    image_shape: Sequence[int],
    backend: Backend,
    batches: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seconds: float = 2.0,
    log: Callable[[str], None] = lambda text: None,
    shown: Shown = lambda results: None,
) -> list[Result]:
    """Time candidates with one backend at several batch sizes; the first is the unit of the ratios.

    `seconds` is the time per candidate and batch size; `log` is called with a message before each step.
    """
    flops: dict[str, float] = {}
    runners: dict[str, Callable[[Tensor], object]] = {}
    for one in candidates:
        log(f"{backend}: {one.name}")
        ensemble = one.make()
        flops[one.name] = cost(ensemble, image_shape).relative_flops
        if backend == "onnx":
            runners[one.name] = _exported(ensemble, image_shape)
        else:
            runners[one.name] = Branches(ensemble, device, dtype, compiled=backend != "eager", splits=one.taps)

    def calls(images: Tensor) -> dict[str, Callable[[], object]]:
        log(f"{backend}: batch {len(images)}")
        return {name: _call(run, images.to(device, dtype), backend) for name, run in runners.items()}

    return _timed(calls, flops, backend, batches, image_shape, seconds, shown)


def _timed(
    calls: Callable[[Tensor], Mapping[str, Callable[[], object]]],
    flops: Mapping[str, float],
    backend: Backend,
    batches: Sequence[int],
    image_shape: Sequence[int],
    seconds: float,
    shown: Shown,
) -> list[Result]:
    """One result per call and batch size; the first call is the unit of the ratios."""
    results: list[Result] = []
    for batch in batches:
        times = measure(calls(torch.rand(batch, *image_shape, generator=generator(0, "images"))), seconds)
        unit = next(iter(times.values()))
        some = [Result(n, backend, batch, timing, timing.relative_to(unit), flops[n]) for n, timing in times.items()]
        shown(some)
        results += some
    return results


def _call(run: Callable[[Tensor], Any], images: Tensor, backend: Backend) -> Callable[[], object]:
    """The function that `measure` calls; it returns when the result is ready."""
    if images.device.type != "cuda":
        return partial(run, images)
    if backend == "graphs":
        # A copy: the time of a call includes that of moving its images there.
        static = images.clone()
        work: Callable[[], object] = partial(CudaGraph(partial(run, static), [static], images.device), [images])
    else:
        work = partial(run, images)

    def call() -> object:
        output = work()
        torch.cuda.synchronize(images.device)
        return output

    return call


def _exported(ensemble: Ensemble, image_shape: Sequence[int]) -> Callable[[Tensor], object]:
    """A file that always runs all members, without outputs that cost extra."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "candidate.onnx"
        export(ensemble, path, torch.rand(1, *image_shape), plain=True, outputs=())
        return DeployedEnsemble.load(path, threads=torch.get_num_threads())


def time_file(
    file: DeployedEnsemble, batches: Sequence[int], *, seconds: float = 2.0, shown: Shown = lambda results: None
) -> list[Result]:
    """Time an exported file with 0, 1, ..., all of its bridges; the unit of the ratios is the file without bridges.

    A plain file always runs all members and is its own unit.
    """
    meta, shape = file.meta, file.image_shape()
    numbers = range(meta["bridges"] + 1) if meta["elastic"] else [meta["bridges"]]
    names = {count: f"DE-{meta['bases']}" + (f" + {plural(count, 'bridge')}" if count else "") for count in numbers}
    costs = meta["cost"]["by_bridges"]
    flops = {name: costs[count] / costs[numbers[0]] for count, name in names.items()}

    def calls(images: Tensor) -> dict[str, Callable[[], object]]:
        ask = partial(file, images.numpy())
        return {name: partial(ask, bridges=count) if meta["elastic"] else ask for count, name in names.items()}

    return _timed(calls, flops, "onnx", batches, shape, seconds, shown)
