"""What members take to train."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from modebridge.errors import ModebridgeError
from modebridge.members import BASES, Artefact, Setting, artefacts_behind, parse_member
from modebridge.scoring import Effort

__all__ = ["effort_of"]


def effort_of(setting: Setting, names: Iterable[str], have: int = 0, most: float = inf) -> Effort:
    """The training cost of members, in epochs of one network, counted part by part.

    Bridges and students trained in one pass share their frozen networks; counting them one by one ignores that, so the
    result is slightly too high.

    Args:
        setting: the network and the recipe.
        names: names of the members.
        have: number of modes, from mode 0 on, that are already trained.
        most: maximum training, in epochs.
    """
    recipe = setting.recipe
    if not 0 <= have <= recipe.modes:
        raise ModebridgeError(
            f"Expected to have between 0 and {recipe.modes} of the run's modes, but got {have}; change it."
        )
    existing = {BASES[recipe.base](k) for k in range(have)}
    needed = {
        name: [one for one in artefacts_behind([parse_member(name)], recipe) if one not in existing] for name in names
    }
    parts: dict[str, Artefact] = {one.place: one for artefacts in needed.values() for one in artefacts}
    unit = 3 * setting.base_cost.flops
    epochs = {
        place: type(one).work([one], setting) * one.epochs(recipe) / unit if one.epochs(recipe) else 0.0
        for place, one in parts.items()
    }
    return Effort({name: frozenset(one.place for one in artefacts) for name, artefacts in needed.items()}, epochs, most)
