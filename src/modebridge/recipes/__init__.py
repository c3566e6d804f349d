"""Recipes: which network is trained on which data, and for how long."""

from modebridge.recipes.data import RunData
from modebridge.recipes.network import Network, check_recipe, network_of
from modebridge.recipes.paper import RECIPES, find_recipe, read_recipe
from modebridge.recipes.recipe import DataConfig, Recipe, StageConfig
from modebridge.recipes.shifted import ShiftedData, known_others
from modebridge.recipes.splits import DataFacts, facts_of
from modebridge.recipes.text import changed, differences, from_toml, keys_of, to_toml

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
    "keys_of",
    "known_others",
    "network_of",
    "read_recipe",
    "to_toml",
]
