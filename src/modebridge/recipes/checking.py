"""Checks that the choices of a recipe fit together and fit its data, before anything is trained."""

from __future__ import annotations

import torch

from modebridge.batches import shapes_of, size_of
from modebridge.bridges import choose_body, last_blocks_tap
from modebridge.errors import ModebridgeError, first_line
from modebridge.nets import ResNetSpec, call, frozen_copy
from modebridge.recipes.config import Recipe
from modebridge.recipes.network import Network, check_reference, network_of
from modebridge.recipes.run_data import RunData, facts_of
from modebridge.recipes.user_code import seeded
from modebridge.types import Inputs

__all__ = ["check_recipe"]


def check_recipe(recipe: Recipe, data: RunData | None = None) -> None:
    """Raise an error if the network, images and bridges of a recipe do not fit together.

    Args:
        recipe: the choices.
        data: its data, if already read; None checks as much as possible without reading it.
    """
    check_reference(recipe.net)
    facts = data.facts if data is not None else facts_of(recipe)
    if facts is None:
        return
    network = network_of(recipe, facts)
    spec, side = network.spec, facts.image[-1] if facts.image else 0
    if recipe.data.pad > side:
        raise ModebridgeError(
            f"Expected data.pad to be at most the image side of {side} pixels, but got {recipe.data.pad}; lower it."
        )
    if spec is not None:
        _check_widths(recipe, spec)
    if spec is None or recipe.budget:
        _check_by_running(recipe, network, data.few() if data is not None else torch.zeros(2, *facts.image or ()))


def _check_widths(recipe: Recipe, spec: ResNetSpec) -> None:
    last_blocks_tap(spec)
    last = [planes for planes, _ in spec.blocks()[-3:]]
    for size in ("small", "medium"):
        slim = recipe.slim(size)
        # A bridge wider than the network makes no sense, but up to ten times as wide is allowed for experiments.
        if not 0.1 <= slim <= min(last):
            raise ModebridgeError(
                f"Expected {size} to be between 0.1 and {min(last)}, the narrowest width that it divides, but got "
                f"{slim:g}; 1 keeps the widths, 2 halves them."
            )


@torch.no_grad()
def _check_by_running(recipe: Recipe, network: Network, inputs: Inputs) -> None:
    """Run two images through the network, and through a bridge of each size."""
    net = frozen_copy(network.build(torch.Generator().manual_seed(0)))
    try:
        with seeded(0):  # networks that draw random numbers must not disturb the caller's generator
            logits = call(net, inputs)
    except ModebridgeError:
        raise
    except Exception as error:  # a user's module can raise anything
        raise ModebridgeError(
            f"Expected net '{recipe.net}' to run on the data's images, {shapes_of(inputs)}, but got "
            f"'{first_line(error)}'; set its options for such images, or use other images."
        ) from error
    if logits.shape != (size_of(inputs), network.classes):
        raise ModebridgeError(
            f"Expected net '{recipe.net}' to return logits of (batch, {network.classes}), one per class of the data, "
            f"but got {tuple(logits.shape)} for {size_of(inputs)} images; build it with {network.classes} classes."
        )
    for size in recipe.sizes:
        slim = recipe.slim(size)
        if not slim >= 0.1:
            raise ModebridgeError(
                f"Expected {size} to be at least 0.1, but got {slim:g}; 1 keeps the widths, 2 halves them."
            )
        budget = recipe.budget if size == "small" and recipe.budget else None
        choose_body(net, inputs, "I", slim=slim, budget=budget, name=f"{size} bridge")
