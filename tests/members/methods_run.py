"""One small run with the methods that are made of whole networks, without curves and bridges."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache

from modebridge import seeds
from modebridge.data import Loader, noisy_digits
from modebridge.members import ModeMember, parse_member
from modebridge.recipes import Recipe
from modebridge.runs import Run, RunFolder, begin
from modebridge.runs.plan import keep_facts
from modebridge.scoring import LogitTable
from tests.runs.small import tiny

SEED = 5
NAMES = ("swa-0",)


def recipe(epochs: int = 3) -> Recipe:
    return replace(tiny(), mode=replace(tiny().mode, epochs=epochs), methods=NAMES)


def batches(*names: str | int) -> Loader:
    """The training images of that run for a purpose, as its own code does not cut them."""
    train = noisy_digits(recipe().data.noise).part(0, 40)
    return Loader(train, 20, shuffle=True, seed=seeds.seed_for(SEED, *names, "batches"))


@cache
def finished() -> tuple[Run, LogitTable]:
    """The run, in a folder, and what its members say; made once per process of tests."""
    folder = RunFolder(_FOLDER.name)
    begin(folder, recipe(), SEED)
    run = Run(recipe(), seed=SEED, folder=folder)
    keep_facts(folder, run.setting.data.facts)
    return run, run.answers([ModeMember(0), ModeMember(1), *map(parse_member, NAMES)])


_FOLDER = tempfile.TemporaryDirectory()
