"""What `modebridge bench` times for a recipe or a run folder, and on which machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from modebridge.bridges import Bridge, Kind, build_bridge
from modebridge.deploy.bench import Candidate, ensemble_name
from modebridge.ensembles import Ensemble
from modebridge.members import HeadsMember, Setting
from modebridge.modes import Mode
from modebridge.runs.local import machine
from modebridge.seeds import generator, seed_for

__all__ = ["candidates_for", "surroundings"]


def candidates_for(setting: Setting) -> tuple[list[Candidate], tuple[int, ...]]:
    """Ensembles of a recipe's network, starting with DE-1, the unit of all ratios, and the shape of its images.

    Four modes and three bridges, or as many as the recipe has, and each of its bridges with several heads, named as in
    the results of a run. Their weights are random: time does not depend on them.
    """
    recipe, example = setting.recipe, setting.example
    assert isinstance(example, torch.Tensor)
    net = setting.network.build(generator(0, "net"))
    count = min(recipe.modes, 4)
    modes = [Mode.from_module(setting.network.build(generator(0, "mode", k))) for k in range(count)]

    def bridge(kind: Kind, name: str | int, size: str = recipe.sizes[0], heads: int = 1) -> Bridge:
        sizing, seed = setting.sizing(kind, size, heads, wide=heads > 1), seed_for(0, kind, name)
        return build_bridge(net, example, modes[: len(kind)], heads, name=f"{kind}-{name}", seed=seed, **sizing)

    ones = [bridge("I", k) for k in range(1, count)]
    twos = [bridge("II", 0)] if count > 1 else []
    headed = {
        # `--only` separates names by commas.
        row.name.replace(",", ""): bridge("I", row.name, member.size, heads)
        for row in HeadsMember.rows(recipe)
        for member in row.members
        if isinstance(member, HeadsMember) and (heads := member.heads(recipe))
    }
    taps = tuple(sorted({tap for one in (*ones, *twos, *headed.values()) for tap in one.taps}))

    def candidate(name: str, modes: Sequence[Mode], bridges: Sequence[Bridge] = ()) -> Candidate:
        return Candidate(name, partial(Ensemble, net, list(modes), list(bridges)), taps)

    found = [candidate(ensemble_name(1, k, " I"), modes[:1], ones[:k]) for k in range(count)]
    found += [candidate(name, modes[:1], [one]) for name, one in headed.items()]
    found += [candidate(ensemble_name(k, 0), modes[:k]) for k in range(2, count + 1)]
    found += [candidate(ensemble_name(2, 1, " II"), modes[:2], twos)] if twos else []
    return found, tuple(example.shape[1:])


def surroundings(device: str, *, bf16: bool = False) -> dict[str, Any]:
    """Machine, versions, threads, load and date, without which a measured time means little."""
    facts: dict[str, Any] = dict(machine())
    try:
        facts["onnxruntime"] = version("onnxruntime")
    except PackageNotFoundError:
        facts["onnxruntime"] = ""
    facts["device"] = f"cuda, {torch.cuda.get_device_name()}" if device == "cuda" else f"cpu, {_processor()}"
    precision = "bf16" if bf16 else "fp32"
    if device == "cuda" and not bf16 and torch.backends.cudnn.allow_tf32:
        precision = "fp32, convolutions in TF32"  # torch's default on GPUs that support it
    # The load of the last minute; not available on Windows.
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {**facts, "threads": torch.get_num_threads(), "precision": precision, "load": load}


def _processor() -> str:
    """The name of the processor, if the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
