"""The demo's recipe, small enough for a test, and one finished run of it."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from modebridge.recipes import Recipe, find_recipe
from modebridge.runs import RunFolder, begin, run_recipe


def small() -> Recipe:
    recipe = find_recipe("digits")
    return replace(
        recipe,
        modes=3,
        methods=("paper",),
        data=replace(recipe.data, train=60, valid=60, test=200, batch_size=30),
        mode=replace(recipe.mode, epochs=2),
        curve=replace(recipe.curve, epochs=1),
        bridge=replace(recipe.bridge, epochs=1),
    )


def tiny() -> Recipe:
    """Two modes and their bridges, as fast as can be: where the folder counts, not the scores."""
    recipe = small()
    data = replace(recipe.data, train=40, valid=30, test=60, batch_size=20)
    return replace(recipe, modes=2, data=data, mode=replace(recipe.mode, epochs=1))


def bits(path: Path) -> dict[str, str]:
    """A hash of the tensors of every artefact of a run folder."""
    folder = RunFolder(path)
    return {place: str(folder.meta(place)["bits"]) for place in folder.places()}


def finished(place: Path) -> RunFolder:
    """A copy, at `place`, of a finished run of the small recipe; it is made once per process of tests."""
    shutil.copytree(_made().name, place, dirs_exist_ok=True)
    return RunFolder(place)


@cache
def _made() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    begin(RunFolder(folder.name), small(), 0)
    run_recipe(small(), folder=RunFolder(folder.name))
    return folder
