"""What `modebridge bench` times for a recipe or a run folder, and on which machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from modebridge.bridges import Bridge, build_bridge
from modebridge.deploy.benchmark import Candidate, contenders
from modebridge.members import HeadsMember, Setting
from modebridge.modes import Mode
from modebridge.runs.local import machine
from modebridge.seeds import generator, seed_for

__all__ = ["contenders_for", "random_contenders", "surroundings"]


def contenders_for(setting: Setting) -> tuple[list[Candidate], tuple[int, ...]]:
    """The contenders for a recipe's network with newly initialised weights, and the shape of its images.

    Four modes and three bridges, or as many as the recipe has, and each of its bridges with several heads, named as in
    the results of a run.
    """
    recipe, network = setting.recipe, setting.network
    example = setting.example
    assert isinstance(example, torch.Tensor)
    size = recipe.sizes[0]
    entries = random_contenders(
        network.build,
        example,
        min(recipe.modes, 4),
        slim=recipe.slim(size),
        budget=recipe.budget_of(size),
        headed={
            # `--only` separates names by commas.
            row.name.replace(",", ""): {
                "heads": heads,
                **setting.sizing("I", member.size, heads, wide=True),
            }
            for row in HeadsMember.rows(recipe)
            for member in row.members
            if isinstance(member, HeadsMember) and (heads := member.heads(recipe))
        },
    )
    return entries, tuple(example.shape[1:])


def random_contenders(
    build: Callable[[torch.Generator], nn.Module],
    images: Tensor,
    modes: int = 4,
    *,
    slim: float = 2.0,
    budget: float | None = None,
    headed: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Candidate]:
    """The contenders for a network with random, untrained weights: these take the same time.

    Args:
        build: returns the network, with weights drawn from the generator.
        images: one or two images, to find shapes.
        modes: number of networks; there is one type I bridge for each curve from the first to another.
        slim: divisor of the widths of bridges.
        budget: maximum share of the network's FLOPs for a bridge, used instead of `slim`.
        headed: further bridges on the first network, with several heads: options of `build_bridge` by name.
    """
    net = build(generator(0, "net"))

    def drawn(*names: str | int) -> Mode:
        return Mode.from_module(build(generator(0, *names)))

    nets = [drawn("mode", k) for k in range(modes)]

    def bridge(kind: Literal["I", "II"], reads: Sequence[Mode], name: str | int, **options: Any) -> Bridge:
        options = {"slim": slim, "budget": budget, **options}
        heads = options.pop("heads", 1)
        return build_bridge(net, images, reads, heads, name=f"{kind}-{name}", seed=seed_for(0, kind, name), **options)

    return contenders(
        net,
        nets,
        [drawn("point")],
        [bridge("I", nets[:1], k) for k in range(1, modes)],
        [bridge("II", nets[:2], 0)] if modes > 1 else [],
        {name: bridge("I", nets[:1], name, **options) for name, options in (headed or {}).items()},
    )


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
