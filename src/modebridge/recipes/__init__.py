"""Choices, not algorithms: what is trained on what, for how long."""

from collections.abc import Callable

from modebridge.errors import ModebridgeError, near
from modebridge.recipes.config import DataConfig, Recipe
from modebridge.recipes.digits import digits
from modebridge.recipes.folder import RunFolder
from modebridge.recipes.pipeline import RunResult, run_recipe

__all__ = ["RECIPES", "DataConfig", "Recipe", "RunFolder", "RunResult", "find_recipe", "run_recipe"]

RECIPES: dict[str, Callable[[], Recipe]] = {"digits": digits}
"""Every recipe by name; each is a function that returns one."""


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`."""
    if name not in RECIPES:
        raise ModebridgeError(f"Expected a known recipe, but got '{name}'; {near(name, RECIPES)}.")
    return RECIPES[name]()
