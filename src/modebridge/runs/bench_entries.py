"""What `modebridge bench` times of a recipe or a run folder, and where it was timed."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from modebridge.deploy.benchmark import Contender, random_contenders
from modebridge.members import Blueprint
from modebridge.runs.folder import machine

__all__ = ["contenders_for", "surroundings"]


def contenders_for(blueprint: Blueprint) -> tuple[list[Contender], tuple[int, ...]]:
    """The contenders of a recipe's network with weights that were drawn now, and the shape of its images.

    Four modes and three bridges, or as many as the recipe has.
    """
    recipe, network = blueprint.recipe, blueprint.network
    example = blueprint.example
    assert isinstance(example, torch.Tensor)
    size = recipe.sizes[0]
    entries = random_contenders(
        network.build, example, min(recipe.modes, 4), slim=recipe.slim(size), budget=blueprint.budget(size)
    )
    return entries, tuple(example.shape[1:])


def surroundings(device: str, *, bf16: bool = False) -> dict[str, Any]:
    """Machine, versions, threads, load and date: what a time means nothing without."""
    facts: dict[str, Any] = dict(machine())
    try:
        facts["onnxruntime"] = version("onnxruntime")
    except PackageNotFoundError:
        facts["onnxruntime"] = ""
    facts["device"] = f"cuda, {torch.cuda.get_device_name()}" if device == "cuda" else f"cpu, {_processor()}"
    precision = "bf16" if bf16 else "fp32"
    if device == "cuda" and not bf16 and torch.backends.cudnn.allow_tf32:
        precision = "fp32, convolutions in TF32"  # torch's default on GPUs that have it
    # What others did on this machine in the minute before; Windows does not say.
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {**facts, "threads": torch.get_num_threads(), "precision": precision, "load": load}


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
