"""The demo's recipe, small enough for a test."""

from __future__ import annotations

from dataclasses import replace

from modebridge.recipes import Recipe
from modebridge.recipes.digits import digits


def small() -> Recipe:
    recipe = digits()
    return replace(
        recipe,
        modes=3,
        data=replace(recipe.data, train=60, valid=60, batch_size=30),
        mode=replace(recipe.mode, epochs=2),
        curve=replace(recipe.curve, epochs=1),
        bridge=replace(recipe.bridge, epochs=1),
    )
