"""What the parts of a recipe cost: its network and its bridges, each counted once, from shapes alone."""

from __future__ import annotations

from functools import cache

import torch

from modebridge.bridges import Kind, body_like, last_blocks_tap
from modebridge.errors import ModebridgeError, near
from modebridge.evaluate import Cost, feature_shapes, module_cost
from modebridge.nets import ResNet, ResNetSpec, spec_of
from modebridge.recipes.config import Recipe
from modebridge.recipes.members import Member

__all__ = ["classes_of", "kind_of_body", "part_cost", "spec_for"]

CLASSES = {"digits": 10, "cifar10": 10, "cifar100": 100, "tin200": 200, "in1k": 1000}


def classes_of(recipe: Recipe) -> int:
    """How many classes the recipe's data set has, without reading it."""
    if recipe.data.name not in CLASSES:
        raise ModebridgeError(
            f"Expected data.name to be a known data set, but got '{recipe.data.name[:80]}'; "
            f"{near(recipe.data.name, CLASSES)}."
        )
    return CLASSES[recipe.data.name]


def spec_for(recipe: Recipe) -> ResNetSpec:
    """The recipe's network for its data set's classes."""
    return spec_of(recipe.net, recipe.norm, classes_of(recipe))


def kind_of_body(member: Member) -> Kind:
    """The type of a bridge; a label control is built like type I."""
    return "II" if member.kind == "II" else "I"


@cache
def part_cost(spec: ResNetSpec, kind: Kind | None = None, slim: float = 1.0) -> Cost:
    """The cost of a base network, or of one of its bridges.

    Args:
        spec: of the base network.
        kind: of the bridge; None for the network itself.
        slim: what the bridge's widths are divided by.
    """
    with torch.device("meta"):  # drawing the weights of large networks takes seconds
        base = ResNet(spec)
        if kind is None:
            return module_cost(base, spec.image)
        tap = last_blocks_tap(spec)
        feature = feature_shapes(base, spec.image, [tap])[tap]
        return module_cost(body_like(spec, kind, slim), *[feature] * (2 if kind == "II" else 1))
