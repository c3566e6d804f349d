"""A run from data to results: modes, curves, bridges, what each said, scores."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from modebridge.bridges import Bridge
from modebridge.curves import Curve
from modebridge.data import Splits
from modebridge.errors import ModebridgeError
from modebridge.evaluate import Answers, accuracy, dee, is_low_loss
from modebridge.modes import Mode
from modebridge.nets import ResNet
from modebridge.recipes.answering import answers_of
from modebridge.recipes.config import Recipe
from modebridge.recipes.feeds import Feeds, load_splits
from modebridge.recipes.folder import RunFolder, write_whole
from modebridge.recipes.members import Member, bridge, members_of, mode, point
from modebridge.recipes.settings import differences, from_toml, to_toml
from modebridge.recipes.workshop import Progress, Workshop
from modebridge.report import Row, row_of
from modebridge.training import Engine

__all__ = ["RunResult", "begin", "engine_for", "main_rows", "make_workshop", "run_recipe"]


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind."""

    recipe: Recipe
    seed: int
    net: ResNet
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


def begin(folder: RunFolder, recipe: Recipe, seed: int) -> list[str]:
    """Write down what a folder is made with; refuse a folder of something else.

    Returns:
        What has changed since the last run in it, in words.
    """
    file = folder.path / "recipe.toml"
    changes: list[str] = []
    if file.is_file():
        before, seed_before = from_toml(file.read_text(), str(file))
        if (before.name, seed_before) != (recipe.name, seed):
            raise ModebridgeError(
                f"Expected '{folder.path}' to be a folder for recipe {recipe.name}, seed {seed}, but it holds "
                f"{before.name}, seed {seed_before}; choose another with --out."
            )
        changes = differences(before, recipe)
    if folder.writes and (changes or not file.is_file()):
        write_whole(file, to_toml(recipe, seed))
    return changes


def make_workshop(
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: RunFolder | None = None,
    data: Path | str | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    given: Mapping[int, Mode] | None = None,
) -> Workshop:
    """A workshop for a recipe, its images read and split. The arguments are those of `run_recipe`."""
    engine = engine or engine_for(recipe)
    splits = load_splits(recipe.data, data)
    from modebridge.nets import spec_of

    size = spec_of(recipe.net, recipe.norm, splits.train.classes).image[-1]
    feeds = Feeds(splits, recipe.data, seed, size, engine.device)
    return Workshop(recipe, seed, feeds, engine, folder, progress, given)


def run_recipe(
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: RunFolder | None = None,
    data: Path | str | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    given: Mapping[int, Mode] | None = None,
) -> RunResult:
    """Train everything that a recipe names and is not there yet, then score every combination on the test split.

    Args:
        recipe: the choices.
        seed: of every random choice; the same seed gives the same result bit for bit on the same machine.
        folder: where what is trained is kept; what is there is not trained again, and a run that was killed goes on.
        data: the folder of the data set's official files; see `load_splits`.
        engine: where to train; None asks the recipe.
        progress: told of every epoch.
        given: modes that were trained elsewhere, by number.
    """
    workshop = make_workshop(recipe, seed=seed, folder=folder, data=data, engine=engine, progress=progress, given=given)
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
        tuple(workshop.trained),
    )


def main_rows(recipe: Recipe, answers: Answers) -> list[Row]:
    """The table of a run: deep ensembles, bridges on one and on two modes, and what the bridges imitate."""
    names = set(answers.test)
    size = recipe.sizes[0]
    others = [j for i, j in recipe.curves() if i == 0]
    first = others[0]
    plans: list[tuple[str, list[Member], str]] = [("DE-1", [mode(0)], "one network")]
    for one in recipe.sizes:
        plans += [
            (_named(f"DE-1 + {k} bridge{'s' if k > 1 else ''} I", one, recipe), _type_one(k, others, one), "")
            for k in range(1, len(others) + 1)
        ]
    control = "the same bridge trained on labels, without a curve"
    plans.append(("DE-1 + 1 label control", [mode(0), bridge("labels", 0, first, size)], control))
    plans.append(("DE-2", [mode(0), mode(first)], ""))
    plans += [
        (_named("DE-2 + 1 bridge II", one, recipe), [mode(0), mode(first), bridge("II", 0, first, one)], "")
        for one in recipe.sizes
    ]
    for m in range(3, recipe.modes + 1):
        ends = list(range(m))
        plans.append((f"DE-{m}", [mode(k) for k in ends], ""))
        for one in recipe.sizes:
            twos = [bridge("II", i, j, one) for i in ends for j in ends if i < j]
            plans.append((_named(f"DE-{m} + {len(twos)} bridges II", one, recipe), [*map(mode, ends), *twos], ""))
    middle = point(0, first)
    plans.append(("DE-1 + midpoint", [mode(0), middle], "the network that the first bridge imitates"))
    plans.append(("DE-2 + midpoint", [mode(0), mode(first), middle], "the network that the bridges imitate"))
    whole = [(name, [m.name for m in members], note) for name, members, note in plans]
    scored = [
        (name, note, answers.score(members, intervals=True)) for name, members, note in whole if set(members) <= names
    ]
    by_name = {name: combined for name, _, combined in scored}
    reference = [by_name[f"DE-{m}"].nll for m in range(1, recipe.modes + 1)]
    return [row_of(name, combined, dee(combined.nll, reference), note) for name, note, combined in scored]


def _named(name: str, size: str, recipe: Recipe) -> str:
    return name if size == recipe.sizes[0] else f"{name}, {size}"


def _type_one(k: int, others: Sequence[int], size: str) -> list[Member]:
    return [mode(0), *(bridge("I", 0, j, size) for j in others[:k])]


def curve_warnings(recipe: Recipe, answers: Answers) -> list[str]:
    """Curves that are not low-loss on the validation split, each in a sentence: they cannot be bridged with profit."""
    said: list[str] = []
    labels = answers.valid_labels
    for i, j in recipe.curves():
        right = [accuracy(answers.probabilities([m.name], "valid"), labels) for m in (mode(i), point(i, j), mode(j))]
        ends = (right[0] + right[2]) / 2
        if not is_low_loss(right[1], ends, len(labels)):
            said.append(
                f"Curve {i}-{j}: The curve is not low-loss: at r = 0.5 its validation accuracy is {right[1]:.1%}, "
                f"{100 * (ends - right[1]):.1f} points below the mean of its ends, {ends:.1%}; train the curve longer, "
                "since a bridge learns no better than this."
            )
    return said
