"""The main table of a run, and whether its curves are fit to be bridged, from what the members said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from modebridge.ensembles import scale
from modebridge.errors import ModebridgeError
from modebridge.evaluate import (
    Answers,
    Combined,
    accuracy,
    dee,
    interval_of,
    judge_curve,
    resampled_means,
    surprisals,
)
from modebridge.recipes.config import Recipe
from modebridge.recipes.members import Member, bridge, mode, point
from modebridge.report import Row, row_of

__all__ = ["curve_warnings", "main_rows"]


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
    needed = [*(f"DE-{m}" for m in range(1, recipe.modes + 1)), "DE-1 + 1 bridge I"]
    lacking = [name for name in needed if name not in by_name]
    if lacking:
        raise ModebridgeError(
            f"Expected a finished run, but it has no members for {lacking[0]}; finish it: modebridge run --out FOLDER."
        )
    reference = [by_name[f"DE-{m}"].nll for m in range(1, recipe.modes + 1)]
    more = _compared(by_name, answers)
    return [row_of(name, found, dee(found.nll, reference), note, **more[name]) for name, note, found in scored]


def _compared(combined: Mapping[str, Combined], answers: Answers) -> dict[str, dict[str, Any]]:
    """Each row against DE-1, image by image, and against the way from there to DE-2."""
    labels = answers.test_labels
    surprise = {
        name: surprisals(scale(answers.probabilities(one.members), one.temperature), labels)
        for name, one in combined.items()
    }
    names = list(surprise)
    gains = resampled_means(torch.stack([surprise["DE-1"] - surprise[name] for name in names], dim=1))
    gap = gains[:, names.index("DE-2")]
    frequency = labels.bincount().double() / len(labels)
    guess = float(-torch.special.xlogy(frequency, frequency).sum())
    more: dict[str, dict[str, Any]] = {name: {"guess_nll": guess} for name in names}
    for name, gain in zip(names, gains.T, strict=True):
        if name != "DE-1":
            more[name]["gain_interval"] = interval_of(gain)
        if name.startswith("DE-1 + ") and interval_of(gap)[0] > 0:
            more[name]["closed_interval"] = interval_of(gain / gap)
    return more


def _named(name: str, size: str, recipe: Recipe) -> str:
    return name if size == recipe.sizes[0] else f"{name}, {size}"


def _type_one(k: int, others: Sequence[int], size: str) -> list[Member]:
    return [mode(0), *(bridge("I", 0, j, size) for j in others[:k])]


def curve_warnings(recipe: Recipe, answers: Answers) -> list[str]:
    """Curves that are not low-loss on the validation split, each in a sentence: they cannot be bridged with profit."""
    said: list[str] = []
    labels = answers.valid_labels
    for i, j in recipe.curves():
        if point(i, j).name not in answers.valid:
            continue
        right = [accuracy(answers.probabilities([m.name], "valid"), labels) for m in (mode(i), point(i, j), mode(j))]
        check = judge_curve(right[1], (right[0] + right[2]) / 2, len(labels))
        if not check.low_loss:
            said.append(f"Curve {i}-{j}: {check.sentence}")
    return said
