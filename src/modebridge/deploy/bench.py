"""Benchmarks of one network, deep ensembles and bridged ensembles, in every way to run them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from modebridge.deploy.deployed import DeployedEnsemble
from modebridge.deploy.export import export
from modebridge.deploy.runners import Branches, capture
from modebridge.deploy.timing import Spread, Timing, measure, ratio
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError, near, plural
from modebridge.scoring import cost
from modebridge.seeds import generator

__all__ = ["BACKENDS", "Backend", "Candidate", "Result", "ensemble_name", "time_all", "time_file", "usable_backends"]

Backend: TypeAlias = Literal["eager", "compiled", "graphs", "onnx"]
BACKENDS: dict[str, tuple[Backend, ...]] = {
    "cpu": ("eager", "compiled", "onnx"),
    "cuda": ("eager", "compiled", "graphs"),
}
"""The backends of each device: eager, compiled blocks, compiled and captured in one CUDA graph, exported."""


@dataclass(frozen=True)
class Candidate:
    """Something to time.

    Args:
        name: name in tables.
        make: builds the ensemble; called once per backend, so that not all are in memory at once.
        taps: where compiled regions are split; the same for all candidates, so that all are compiled alike.
    """

    name: str
    make: Callable[[], Ensemble]
    taps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """One row of a table.

    Args:
        name: name of the candidate.
        backend: how it ran.
        batch: batch size.
        timing: time per call.
        ratio: time relative to one network, run the same way in the same rounds.
        flops: counted FLOPs relative to one network.
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
    """The backends that work on this machine, and a message for each that does not.

    Args:
        device: "cpu" or "cuda".
        asked: the requested backends; one that does not work is then an error. None for all.
    """
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
    """Time candidates with one backend at several batch sizes.

    Args:
        candidates: the first is the unit of the ratios.
        image_shape: (C, H, W) of one image.
        backend: how to run them.
        batches: batch sizes.
        device: device to run on; ONNX Runtime runs on the CPU.
        dtype: float32 or bfloat16.
        seconds: time per candidate and batch size.
        log: called with a message before each step.
        shown: called with the results of each batch size as soon as they are complete.
    """
    device = torch.device(device)
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
    results: list[Result] = []
    for batch in batches:
        images = torch.rand(batch, *image_shape, generator=generator(0, "images")).to(device, dtype)
        log(f"{backend}: batch {batch}")
        calls = {name: _call(run, images, backend) for name, run in runners.items()}
        results += _timed(calls, flops, backend, batch, seconds, shown)
    return results


def _timed(
    calls: Mapping[str, Callable[[], object]],
    flops: Mapping[str, float],
    backend: Backend,
    batch: int,
    seconds: float,
    shown: Shown,
) -> list[Result]:
    """One result per call; the first call is the unit of the ratios."""
    times = measure(calls, seconds)
    unit = next(iter(times.values()))
    results = [Result(n, backend, batch, timing, ratio(timing, unit), flops[n]) for n, timing in times.items()]
    shown(results)
    return results


def _call(run: Callable[[Tensor], object], images: Tensor, backend: Backend) -> Callable[[], object]:
    """The function that `measure` calls; it returns when the result is ready."""
    if backend == "graphs":
        run = capture(run, images)  # type: ignore[arg-type]
    if images.device.type != "cuda":
        return lambda: run(images)

    def call() -> object:
        output = run(images)
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

    Args:
        file: the file.
        batches: batch sizes.
        seconds: time per number of bridges and batch size.
        shown: as in `time_all`.
    """
    meta, shape = file.meta, file.image_shape()
    most, bases = int(meta["bridges"]), int(meta["bases"])
    counts: dict[str, int | None] = {ensemble_name(bases, most): None}
    flops = {ensemble_name(bases, most): 1.0}
    if meta["elastic"]:
        counts = {ensemble_name(bases, count): count for count in range(most + 1)}
        flops = dict(zip(counts, (relative / bases for relative in meta["cost"]["by_bridges"]), strict=True))
    results: list[Result] = []
    for batch in batches:
        images = torch.rand(batch, *shape, generator=generator(0, "images")).numpy()
        calls = {name: partial(file, images, bridges=count) for name, count in counts.items()}
        results += _timed(calls, flops, "onnx", batch, seconds, shown)
    return results


def ensemble_name(bases: int, bridges: int, kind: str = "") -> str:
    """The name of an ensemble in tables.

    >>> ensemble_name(1, 3, " I")
    'DE-1 + 3 bridges I'
    """
    return f"DE-{bases}" + (f" + {plural(bridges, 'bridge')}{kind}" if bridges else "")
