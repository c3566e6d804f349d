"""Benchmarks of one network, deep ensembles, networks on curves and bridged ensembles, in every way to run them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from modebridge.bridges import Bridge
from modebridge.deploy.deployed import Deployed
from modebridge.deploy.export import export
from modebridge.deploy.timing import Spread, Timing, measure, ratio
from modebridge.deploy.torch_runners import Branches, Vmapped, capture
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError, near, plural
from modebridge.modes import Mode
from modebridge.scoring import cost
from modebridge.seeds import generator

__all__ = ["WAYS", "Candidate", "Result", "Way", "contenders", "race_file", "time_all", "usable_ways"]

Way: TypeAlias = Literal["eager", "compiled", "graphs", "onnx"]
WAYS: dict[str, tuple[Way, ...]] = {"cpu": ("eager", "compiled", "onnx"), "cuda": ("eager", "compiled", "graphs")}
"""The ways to run on each device: eager, compiled blocks, compiled and captured in one CUDA graph, exported."""


@dataclass(frozen=True)
class Candidate:
    """Something to time.

    Args:
        name: name in tables.
        make: builds the ensemble; called once per way, so that not all are in memory at once.
        stacked: run its modes as one vmapped network.
        taps: where compiled regions are split; the same for all contenders, so that all are compiled alike.
    """

    name: str
    make: Callable[[], Ensemble]
    stacked: bool = False
    taps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """One row of a table.

    Args:
        name: name of the contender.
        way: how it ran.
        batch: batch size.
        timing: time per call.
        ratio: time relative to one network, run the same way in the same rounds.
        flops: counted FLOPs relative to one network.
    """

    name: str
    way: Way
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


def contenders(
    net: nn.Module,
    modes: Sequence[Mode],
    points: Sequence[Mode],
    type1: Sequence[Bridge],
    type2: Sequence[Bridge],
    headed: Mapping[str, Bridge] | None = None,
) -> list[Candidate]:
    """All ensembles of these parts, starting with DE-1, the unit of all ratios.

    Args:
        net: the base network.
        modes: at least one; DE-m takes the first m.
        points: networks on curves; their weights are computed in advance, so each costs as much as a mode.
        type1: bridges that read the first mode.
        type2: bridges that read the first two modes.
        headed: bridges with several heads that read the first mode, by the name of their row.
    """
    headed = headed or {}
    taps = tuple(sorted({tap for bridge in (*type1, *type2, *headed.values()) for tap in bridge.taps}))

    def contender(name: str, modes: Sequence[Mode], bridges: Sequence[Bridge] = (), stacked: bool = False) -> Candidate:
        return Candidate(name, partial(Ensemble, net, list(modes), list(bridges)), stacked, taps)

    entered = [contender("DE-1", modes[:1])]
    entered += [contender(_named(1, k, " I"), modes[:1], type1[:k]) for k in range(1, len(type1) + 1)]
    entered += [contender(name, modes[:1], [bridge]) for name, bridge in headed.items()]
    if points:
        entered.append(contender("DE-1 + midpoint", [modes[0], points[0]]))
    for m in range(2, len(modes) + 1):
        entered.append(contender(f"DE-{m}", modes[:m]))
        entered.append(contender(f"DE-{m} vmapped", modes[:m], stacked=True))
    if len(modes) > 1:
        entered += [contender(_named(2, k, " II"), modes[:2], type2[:k]) for k in range(1, len(type2) + 1)]
    return entered


def usable_ways(device: str, asked: Sequence[str] | None = None) -> tuple[list[Way], list[str]]:
    """The ways that work on this machine, and a message for each that does not.

    Args:
        device: "cpu" or "cuda".
        asked: the requested ways; one that does not work is then an error. None for all.
    """
    known = WAYS[device]
    for way in asked or ():
        if way not in known:
            raise ModebridgeError(f"Expected ways for device '{device}', but got '{way}'; {near(way, known)}")
    unusable: dict[Way, str] = {}
    if find_spec("onnxruntime") is None or find_spec("onnxscript") is None:
        unusable["onnx"] = (
            "Expected onnxruntime and onnxscript for the way 'onnx', but they are not installed; "
            "pip install 'modebridge[onnx]'."
        )
    if device == "cpu" and not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        unusable["compiled"] = "Expected a C++ compiler for compiled networks, but found none; install g++."
    wanted = [way for way in known if not asked or way in asked]
    missing = [unusable[way] for way in wanted if way in unusable]
    if asked and missing:
        raise ModebridgeError(missing[0])
    return [way for way in wanted if way not in unusable], missing


def time_all(
    entered: Sequence[Candidate],
    image_shape: Sequence[int],
    way: Way,
    batches: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seconds: float = 2.0,
    folder: Path | None = None,
    log: Callable[[str], None] = lambda text: None,
    shown: Shown = lambda results: None,
) -> list[Result]:
    """Time contenders in one way at several batch sizes; contenders that the way does not support are left out.

    Args:
        entered: contenders; the first is the unit of the ratios.
        image_shape: (C, H, W) of one image.
        way: how to run them.
        batches: batch sizes.
        device: device to run on; ONNX Runtime runs on the CPU.
        dtype: float32 or bfloat16.
        seconds: time per contender and batch size.
        folder: folder for temporary exported files; required for ONNX Runtime.
        log: called with a message before each step.
        shown: called with the results of each batch size as soon as they are complete.
    """
    device = torch.device(device)
    flops: dict[str, float] = {}
    runners: dict[str, Callable[[Tensor], object]] = {}
    for contender in entered:
        if contender.stacked and way == "onnx":
            continue
        log(f"{way}: {contender.name}")
        ensemble = contender.make()
        flops[contender.name] = cost(ensemble, image_shape).relative_flops
        if way == "onnx":
            runners[contender.name] = _exported(ensemble, contender.name, image_shape, folder)
        elif contender.stacked:
            runners[contender.name] = Vmapped(ensemble, device, dtype, compiled=way != "eager")
        else:
            splits = contender.taps
            runners[contender.name] = Branches(ensemble, device, dtype, compiled=way != "eager", splits=splits)
    results: list[Result] = []
    for batch in batches:
        images = torch.rand(batch, *image_shape, generator=generator(0, "images")).to(device, dtype)
        log(f"{way}: batch {batch}")
        calls = {name: _call(run, images, way) for name, run in runners.items()}
        results += _timed(calls, flops, way, batch, seconds, shown)
    return results


def _timed(
    calls: Mapping[str, Callable[[], object]],
    flops: Mapping[str, float],
    way: Way,
    batch: int,
    seconds: float,
    shown: Shown,
) -> list[Result]:
    """One result per call; the first call is the unit of the ratios."""
    times = measure(calls, seconds)
    unit = next(iter(times.values()))
    results = [Result(n, way, batch, timing, ratio(timing, unit), flops[n]) for n, timing in times.items()]
    shown(results)
    return results


def _call(run: Callable[[Tensor], object], images: Tensor, way: Way) -> Callable[[], object]:
    """The function that `measure` calls; it returns when the result is ready."""
    if way == "onnx":
        pixels = images.numpy()
        return lambda: run(pixels)  # type: ignore[arg-type]
    if way == "graphs":
        run = capture(run, images)  # type: ignore[arg-type]
    if images.device.type != "cuda":
        return lambda: run(images)

    def call() -> object:
        output = run(images)
        torch.cuda.synchronize(images.device)
        return output

    return call


def _exported(
    ensemble: Ensemble, name: str, image_shape: Sequence[int], folder: Path | None
) -> Callable[[Tensor], object]:
    """The file as a user would deploy it, without outputs that cost extra."""
    if folder is None:
        raise ModebridgeError("Expected a folder for exported files, but got none; pass folder=.")
    path = folder / f"{name.replace(' ', '')}.onnx"
    export(ensemble, path, example=torch.rand(1, *image_shape), uncertainty=False, elastic=False, progress=False)
    return Deployed.load(path, threads=torch.get_num_threads())


def race_file(
    deployed: Deployed, batches: Sequence[int], *, seconds: float = 2.0, shown: Shown = lambda results: None
) -> list[Result]:
    """Time an exported file with 0, 1, ..., all of its bridges; the unit of the ratios is the file without bridges.

    A file that is not elastic always runs all members and is its own unit.

    Args:
        deployed: the file.
        batches: batch sizes.
        seconds: time per number of bridges and batch size.
        shown: as in `time_all`.
    """
    meta = deployed.meta
    if meta["image"] is None:
        raise ModebridgeError(
            f"Expected a file that takes images, but '{deployed.path.name}' takes {', '.join(meta['inputs'])}; "
            "time Deployed on your own inputs in Python."
        )
    most, bases = int(meta["bridges"]), int(meta["bases"])
    counts: dict[str, int | None] = {_named(bases, most): None}
    flops = {_named(bases, most): 1.0}
    if meta["elastic"]:
        counts = {_named(bases, count): count for count in range(most + 1)}
        flops = {_named(bases, count): relative / bases for count, relative in enumerate(meta["cost"]["by_bridges"])}
    results: list[Result] = []
    for batch in batches:
        images = torch.rand(batch, *meta["image"], generator=generator(0, "images")).numpy()
        calls = {name: partial(deployed, images, bridges=count) for name, count in counts.items()}
        results += _timed(calls, flops, "onnx", batch, seconds, shown)
    return results


def _named(bases: int, bridges: int, kind: str = "") -> str:
    return f"DE-{bases}" + (f" + {plural(bridges, 'bridge')}{kind}" if bridges else "")
