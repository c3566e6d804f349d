"""A small recipe whose stages take long enough to be killed in, and what it is compared by."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import torch

from modebridge.members import ArtefactData, Node, Parents, Setting
from modebridge.recipes import Recipe
from modebridge.runs import RunFolder, local
from modebridge.training import TrainConfig
from tests.runs.small import tiny

ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "modebridge[cluster]"')


@contextmanager
def ray_here(address: str = "local", **options: object) -> Iterator[None]:
    """A Ray whose workers save their work all the time; `OnRay` uses it."""

    def save_often() -> None:  # in here, since a worker that starts knows no tests: it is sent whole
        local.EVERY = 0.05

    hook = {"worker_process_setup_hook": save_often}
    ray.init(address, log_to_driver=False, logging_level="error", runtime_env=hook, **options)
    try:
        yield
    finally:
        ray.shutdown()


def lasting(modes: int = 2, epochs: int = 40) -> Recipe:
    """As tiny as can be, but modes and curves are trained for some seconds."""
    recipe = tiny()
    stages = {"mode": replace(recipe.mode, epochs=epochs), "curve": replace(recipe.curve, epochs=epochs // 4)}
    return replace(recipe, modes=modes, **stages)


def epochs(path: Path) -> dict[str, list[int]]:
    """The numbers of the epochs that were recorded, by artefact."""
    folder = RunFolder(path)
    return {place: [epoch["number"] for epoch in folder.meta(place).get("epochs", ())] for place in folder.places()}


class Killer(threading.Thread):
    """Kills, with -9, a worker of a stage that has saved itself in the folder `work`."""

    def __init__(self, work: Path, title: str) -> None:
        super().__init__(daemon=True)
        self._work, self._title = work, title
        self.killed: list[str] = []
        self.start()

    def run(self) -> None:
        while not self.killed:
            time.sleep(0.02)
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error, IndexError):
                    name = process.cmdline()[0]
                    files = self._work.glob(f"{name.removeprefix('ray::').replace(' ', '-')}-*")
                    saved = name.startswith(f"ray::{self._title}") and any(not file.suffix for file in files)
                    if saved and not self.killed:  # two workers may be ready at the same look
                        process.kill()
                        self.killed.append(name)


@dataclass(frozen=True)
class Lump(Node):
    """Something to be made without training."""

    number: int
    behaviour: str = ""
    """Or "raise" to fail, "slow" to take two seconds."""
    needs: tuple[Lump, ...] = ()
    folder = "lumps"
    stage = "lumps"

    @property
    def name(self) -> str:
        return str(self.number)

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        return self.needs

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {}

    @classmethod
    def make(
        cls, group: Sequence[Lump], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        (lump,) = group
        if lump.behaviour == "raise":
            raise RuntimeError("the disk of this node is on fire\nand more")
        if lump.behaviour == "slow":
            time.sleep(2)
        return {lump.name: ArtefactData({"x": torch.full((3,), float(lump.number))})}
