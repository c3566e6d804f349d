"""One small run with every kind of member, made once per process of tests."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache

from modebridge.members import members_of
from modebridge.recipes import Recipe
from modebridge.runs import Run, RunFolder, begin
from modebridge.scoring import LogitTable
from tests.runs.small import tiny

SEED = 3
HEADS = ("heads-0-others-small", "heads-0-midpoints+labels-small", "heads-1-mean-small")
BASELINES = {"batch-ensemble-2": 2, "mimo-2": 2, "packed-4-x2": 4}
METHODS = ("heads", *HEADS[1:], "distilled", "students", "distilled-1", "paper")
METHODS += ("averaged", "swa", "batch-ensemble-2", "mimo", "packed")


def recipe(methods: tuple[str, ...] = (), **changes: object) -> Recipe:
    one = tiny()
    short = {stage: replace(getattr(one, stage), epochs=1) for stage in ("curve", "bridge")}
    return replace(one, modes=3, student_epochs=2, methods=methods, **short, **changes)  # type: ignore[arg-type]


@cache
def finished() -> tuple[Run, LogitTable]:
    """The run, in a folder, and what its members say."""
    folder = RunFolder(_FOLDER.name)
    begin(folder, recipe(METHODS), SEED)
    run = Run(recipe(METHODS), seed=SEED, folder=folder)
    return run, run.answers(members_of(run.recipe))


_FOLDER = tempfile.TemporaryDirectory()
