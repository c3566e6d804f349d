"""Whether the choices of a recipe fit each other and its data set: found out before anything is read or trained."""

from __future__ import annotations

from modebridge.bridges import last_blocks_tap
from modebridge.errors import ModebridgeError, near
from modebridge.nets.resnet import SPECS
from modebridge.recipes.config import Recipe
from modebridge.recipes.costs import spec_for

__all__ = ["check_recipe"]

IMAGES = {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
"""The shape of the images of sets that come in one; others are brought to the network's own."""


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe whose network, images and bridges do not go together."""
    if recipe.net not in SPECS:
        raise ModebridgeError(
            f"Expected net to be a known network, but got '{recipe.net[:80]}'; {near(recipe.net[:80], SPECS)}."
        )
    spec = spec_for(recipe)
    image = IMAGES.get(recipe.data.name, spec.image)
    if image[0] != spec.image[0]:
        raise ModebridgeError(
            f"Expected net to take images of {image[0]} channels, as {recipe.data.name} has, but {recipe.net} takes "
            f"{spec.image[0]}; choose another net."
        )
    if recipe.data.pad > image[-1]:
        raise ModebridgeError(
            f"Expected data.pad to be at most the {image[-1]} pixels of an image's side, but got {recipe.data.pad}; "
            "lower it."
        )
    last_blocks_tap(spec)
    last = [planes for planes, _ in spec.blocks()[-3:]]
    for size in ("small", "medium"):
        slim = recipe.slim(size)
        # A bridge wider than the network that it saves is no bridge; ten times as wide is for who wants to see that.
        if not 0.1 <= slim <= min(last):
            raise ModebridgeError(
                f"Expected {size} to be between 0.1 and {min(last)}, the narrowest width that it divides, but got "
                f"{slim:g}; 1 leaves widths as they are, 2 halves them."
            )
