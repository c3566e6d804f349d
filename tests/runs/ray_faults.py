"""A small recipe whose stages take long enough to be killed in, and what it is compared by."""

from __future__ import annotations

import contextlib
import os
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
    return replace(
        recipe, modes=modes, mode=replace(recipe.mode, epochs=epochs), curve=replace(recipe.curve, epochs=epochs // 4)
    )


def epochs(path: Path) -> dict[str, list[int]]:
    """The numbers of the epochs that were recorded, by artefact."""
    folder = RunFolder(path)
    return {place: [epoch["number"] for epoch in folder.meta(place).get("epochs", ())] for place in folder.places()}


def workers(title: str) -> list[psutil.Process]:
    """The processes of this process's own Ray that are at work on a stage."""
    found = []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{title}"):
                found.append(process)
        except psutil.Error:
            continue
    return found


class Killer(threading.Thread):
    """Kills, with -9, workers of stages that have saved themselves in the folder `work`: each a moment after that."""

    def __init__(self, work: Path, title: str, times: int = 1) -> None:
        super().__init__(daemon=True)
        self._work, self._title, self._times = work, title, times
        self.killed: list[str] = []
        self.start()

    def run(self) -> None:
        seen: set[int] = set()
        while len(self.killed) < self._times:
            time.sleep(0.02)
            for victim in workers(self._title):
                with contextlib.suppress(psutil.Error, IndexError):
                    name = victim.cmdline()[0].removeprefix("ray::")
                    files = self._work.glob(f"{name.replace(' ', '-')}-*")
                    saved = [file.stat().st_mtime for file in files if not file.suffix]
                    # Saved by this very worker, not by the one before it.
                    ready = victim.pid not in seen and max(saved, default=0.0) > victim.create_time() + 1
                    if ready and len(self.killed) < self._times:  # two workers may be ready at the same look
                        seen.add(victim.pid)
                        victim.kill()
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
