"""What must be trained for the members of a run, given that some of its modes are there already."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from modebridge.errors import ModebridgeError
from modebridge.evaluate import Effort
from modebridge.members import BASES, Artefact, Blueprint, ModeWeights, artefacts_behind, parse_member
from modebridge.runs.folder import RunFolder

__all__ = ["effort_of", "given_modes_of"]


def effort_of(blueprint: Blueprint, names: Iterable[str], have: int = 0, most: float = inf) -> Effort:
    """The training behind members, in epochs of one network, counted part by part.

    Bridges and students that are trained in one pass share their frozen networks; counted one by one they do not, so
    that this is a little more than the truth.

    Args:
        blueprint: the network and the recipe.
        names: of the members.
        have: modes 0 to have - 1 are trained already.
        most: what may be trained, in epochs.
    """
    recipe = blueprint.recipe
    if not 0 <= have <= recipe.modes:
        raise ModebridgeError(
            f"Expected to have between 0 and {recipe.modes} of the run's modes, but got {have}; change it."
        )
    # Where modes are distilled, those that are there are their teachers.
    there = {BASES["sgd" if recipe.base == "distilled" else recipe.base](k) for k in range(have)}
    behind = {
        name: [one for one in artefacts_behind([parse_member(name)], recipe) if one not in there] for name in names
    }
    parts: dict[str, Artefact] = {one.place: one for artefacts in behind.values() for one in artefacts}
    unit = 3 * blueprint.base_cost.flops
    epochs = {
        place: type(one).work([one], blueprint) * one.epochs(recipe) / unit if one.epochs(recipe) else 0.0
        for place, one in parts.items()
    }
    return Effort({name: frozenset(one.place for one in artefacts) for name, artefacts in behind.items()}, epochs, most)


def given_modes_of(folder: RunFolder, modes: int) -> int:
    """How many of the first modes the run was given: nobody has to train those."""
    given = [folder.peek(ModeWeights(k).place).get("from") == "elsewhere" for k in range(modes)]
    return given.index(False) if False in given else modes
