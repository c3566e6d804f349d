"""A run from data to results: modes, curves, bridges, what each said, scores."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from modebridge.bridges import Bridge
from modebridge.curves import Curve
from modebridge.data import Splits
from modebridge.errors import ModebridgeError
from modebridge.evaluate import Answers
from modebridge.modes import Mode
from modebridge.recipes.answering import answers_of
from modebridge.recipes.checking import check_recipe
from modebridge.recipes.config import Recipe
from modebridge.recipes.folder import RunFolder
from modebridge.recipes.illustrations import illustrate
from modebridge.recipes.members import members_of
from modebridge.recipes.run_data import RunData, facts_of
from modebridge.recipes.scoring import curve_warnings, main_rows
from modebridge.recipes.workshop import Workshop
from modebridge.report import Row
from modebridge.training import Engine
from modebridge.types import Progress

__all__ = ["RunResult", "engine_for", "make_workshop", "run_recipe"]


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind."""

    recipe: Recipe
    seed: int
    net: nn.Module
    splits: Splits
    modes: list[Mode]
    curves: Mapping[tuple[int, int], Curve]
    bridges: Mapping[str, Bridge]
    answers: Answers
    rows: list[Row]
    warnings: list[str]
    seconds: Mapping[str, float] = field(default_factory=dict)
    trained: Sequence[str] = ()
    """What this very run has trained; empty where everything was there."""


def engine_for(recipe: Recipe, device: str = "auto") -> Engine:
    """The engine that a recipe asks for, unless the user says otherwise.

    Args:
        recipe: "cpu" in it keeps small runs off a GPU, which would compile for longer than they train.
        device: "auto", "cpu", or "cuda".
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ModebridgeError(f"Expected device to be auto, cpu or cuda, but got '{device}'; choose one.")
    if device == "cpu" or (device == "auto" and recipe.device == "cpu"):
        return Engine()
    if device == "cuda" and not torch.cuda.is_available():
        return Engine(torch.device("cuda"))  # says what is wrong
    return Engine.best()


def make_workshop(
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: RunFolder | None = None,
    data: Path | str | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    given: Mapping[int, Mode] | None = None,
    boards: bool = False,
) -> Workshop:
    """A workshop for a recipe, its images read and split. The arguments are those of `run_recipe`."""
    check_recipe(recipe)
    engine = engine or engine_for(recipe)
    feeds = RunData(recipe, seed, data, engine.device)
    if facts_of(recipe) is None:
        check_recipe(recipe, feeds)
    return Workshop(recipe, seed, feeds, engine, folder, progress, given, boards=boards)


def run_recipe(
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: RunFolder | None = None,
    data: Path | str | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    given: Mapping[int, Mode] | None = None,
    boards: bool = False,
) -> RunResult:
    """Train everything that a recipe names and is not there yet, then score every combination on the test split.

    Args:
        recipe: the choices.
        seed: of every random choice; the same seed gives the same result bit for bit on the same machine.
        folder: where what is trained is kept; what is there is not trained again, and a run that was killed goes on.
        data: the folder of the data set's official files; see `RunData`.
        engine: where to train; None asks the recipe.
        progress: told of every epoch.
        given: modes that were trained elsewhere, by number.
        boards: whether to write TensorBoard's logs to RUN/tensorboard too.
    """
    workshop = make_workshop(
        recipe,
        seed=seed,
        folder=folder,
        data=data,
        engine=engine,
        progress=progress,
        given=given,
        boards=boards,
    )
    members = members_of(recipe)
    seconds: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        seconds[name] = time.perf_counter() - clock
        clock = time.perf_counter()

    modes = workshop.modes(range(recipe.modes))
    lap("modes")
    curves = workshop.curves(recipe.curves())
    lap("curves")
    bridges = workshop.bridges([member for member in members if member.is_bridge])
    lap("bridges")
    answers = answers_of(workshop, members)
    rows = main_rows(recipe, answers)
    lap("scores")
    if folder is not None:
        illustrate(workshop, answers)
        lap("figures")
    return RunResult(
        recipe,
        seed,
        workshop.net,
        workshop.feeds.splits,
        [modes[k] for k in range(recipe.modes)],
        curves,
        bridges,
        answers,
        rows,
        curve_warnings(recipe, answers),
        seconds,
        tuple(workshop.maker.trained),
    )
