"""Recipes: which network is trained on which data, and for how long."""

from collections.abc import Callable
from pathlib import Path

from modebridge.errors import ModebridgeError, near
from modebridge.recipes.checking import check_recipe
from modebridge.recipes.config import DataConfig, Recipe
from modebridge.recipes.demo import digits
from modebridge.recipes.network import Network, network_of
from modebridge.recipes.paper import cifar10, cifar10_short, cifar100, in1k, tin200, tin200_short
from modebridge.recipes.run_data import DataFacts, RunData, facts_of
from modebridge.recipes.settings import changed, differences, from_file, from_toml, to_toml
from modebridge.recipes.shifted_data import ShiftedData, known_others

__all__ = [
    "RECIPES",
    "DataConfig",
    "DataFacts",
    "Network",
    "Recipe",
    "RunData",
    "ShiftedData",
    "changed",
    "check_recipe",
    "differences",
    "facts_of",
    "find_recipe",
    "from_toml",
    "known_others",
    "network_of",
    "read_recipe",
    "to_toml",
]

RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    "cifar10-short": cifar10_short,
    "cifar10-short-bn": lambda: cifar10_short("bn"),
    "tin200-short": tin200_short,
    "tin200-short-bn": lambda: tin200_short("bn"),
    "cifar10": cifar10,
    "cifar10-bn": lambda: cifar10("bn"),
    "cifar100": cifar100,
    "cifar100-bn": lambda: cifar100("bn"),
    "tin200": tin200,
    "tin200-bn": lambda: tin200("bn"),
    "in1k": in1k,
    "in1k-bn": lambda: in1k("bn"),
}
"""All recipes by name, each as a function that returns one."""


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`."""
    if name not in RECIPES:
        raise ModebridgeError(f"Expected a known recipe, but got '{name}'; {near(name, RECIPES)}")
    return RECIPES[name]()


def read_recipe(name: str) -> tuple[Recipe, int | None]:
    """A recipe by name or from a user's file (.toml or .py), and its seed if the file has one.

    A .py file is a program, and is executed.
    """
    if name.endswith((".toml", ".py")):
        return from_file(Path(name))
    return find_recipe(name), None
