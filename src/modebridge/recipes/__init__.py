"""Recipes: which network is trained on which data, and for how long."""

from modebridge.recipes.data import DataFacts as DataFacts, RunData as RunData, facts_of as facts_of
from modebridge.recipes.network import Network as Network, check_recipe as check_recipe, network_of as network_of
from modebridge.recipes.paper import RECIPES as RECIPES, find_recipe as find_recipe, read_recipe as read_recipe
from modebridge.recipes.recipe import (
    DataConfig as DataConfig,
    Recipe as Recipe,
    StageConfig as StageConfig,
    changed as changed,
    differences as differences,
    from_toml as from_toml,
    to_toml as to_toml,
)
from modebridge.recipes.shifted import ShiftedData as ShiftedData, known_others as known_others
