"""Recipes: which network is trained on which data, and for how long."""

from modebridge.recipes.data import DataFacts, RunData, facts_of
from modebridge.recipes.network import Network, check_recipe, network_of
from modebridge.recipes.paper import RECIPES, find_recipe, read_recipe
from modebridge.recipes.recipe import DataConfig, Recipe, StageConfig, changed, differences, from_toml, to_toml
from modebridge.recipes.shifted import ShiftedData, known_others

__all__ = [
    "RECIPES",
    "DataConfig",
    "DataFacts",
    "Network",
    "Recipe",
    "RunData",
    "ShiftedData",
    "StageConfig",
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
