"""Choices, not algorithms: what is trained on what, for how long, and the run that makes it so."""

from collections.abc import Callable
from pathlib import Path

from modebridge.errors import ModebridgeError, near
from modebridge.recipes.answering import answers_of
from modebridge.recipes.checking import check_recipe
from modebridge.recipes.config import DataConfig, Recipe
from modebridge.recipes.digits import digits
from modebridge.recipes.folder import RunFolder, machine
from modebridge.recipes.gathering import gather, write_page
from modebridge.recipes.kept import begin, find_recipe_of, recipe_to_go_on_with
from modebridge.recipes.members import Member, bridge, members_of, mode, point
from modebridge.recipes.paper import cifar10, cifar10_short, cifar100, in1k, tin200, tin200_short
from modebridge.recipes.pipeline import RunResult, engine_for, make_workshop, run_recipe
from modebridge.recipes.reading import missing_members, read_answers
from modebridge.recipes.scoring import curve_warnings, main_rows
from modebridge.recipes.settings import changed, from_file, from_toml, to_toml
from modebridge.recipes.workshop import Workshop
from modebridge.types import Progress

__all__ = [
    "RECIPES",
    "DataConfig",
    "Member",
    "Progress",
    "Recipe",
    "RunFolder",
    "RunResult",
    "Workshop",
    "answers_of",
    "begin",
    "bridge",
    "changed",
    "check_recipe",
    "curve_warnings",
    "engine_for",
    "find_recipe",
    "find_recipe_of",
    "from_toml",
    "gather",
    "machine",
    "main_rows",
    "make_workshop",
    "members_of",
    "missing_members",
    "mode",
    "point",
    "read_answers",
    "read_recipe",
    "recipe_to_go_on_with",
    "run_recipe",
    "to_toml",
    "write_page",
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
"""Every recipe by name; each is a function that returns one."""


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`."""
    if name not in RECIPES:
        raise ModebridgeError(f"Expected a known recipe, but got '{name}'; {near(name, RECIPES)}.")
    return RECIPES[name]()


def read_recipe(name: str) -> tuple[Recipe, int | None]:
    """A recipe by name or from a user's file (.toml or .py), and the seed where the file has one.

    A .py file is a program, and is executed.
    """
    if name.endswith((".toml", ".py")):
        return from_file(Path(name))
    return find_recipe(name), None
