"""What the parts of a recipe cost: its network and its bridges, each counted once, from shapes alone."""

from __future__ import annotations

from functools import cache

import torch

from modebridge.bridges import Kind, body_like, last_blocks_tap
from modebridge.errors import ModebridgeError
from modebridge.evaluate import Cost, feature_shapes, module_cost
from modebridge.nets import SPECS, ResNet, ResNetSpec
from modebridge.recipes.config import Recipe
from modebridge.recipes.members import Member
from modebridge.recipes.network import check_reference, network_of
from modebridge.recipes.run_data import facts_of

__all__ = ["kind_of_body", "part_cost", "spec_for"]


def spec_for(recipe: Recipe) -> ResNetSpec:
    """The recipe's network for its data set's classes, where both are the paper's."""
    facts = facts_of(recipe)
    spec = network_of(recipe, facts).spec if facts is not None and recipe.net in SPECS else None
    if spec is None:
        check_reference(recipe.net)
        raise ModebridgeError(
            f"Expected one of the paper's networks on a named data set, but got net '{recipe.net}' on "
            f"'{recipe.data.name}'; choose of both."
        )
    return spec


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
