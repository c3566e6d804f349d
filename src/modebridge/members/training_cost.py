"""What it takes to train members, in a unit that everybody has a feeling for: epochs of one base network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modebridge.members.artefact import Artefact
from modebridge.members.context import Blueprint
from modebridge.members.member import Member
from modebridge.recipes import Recipe

__all__ = ["artefacts_behind", "base_epochs"]


def artefacts_behind(members: Iterable[Member], recipe: Recipe) -> list[Artefact]:
    """All that must be made for some members, each once: what they are loaded from, and what that is made from."""
    behind: dict[Artefact, None] = {}

    def add(artefact: Artefact) -> None:
        if artefact not in behind:
            behind[artefact] = None
            for parent in artefact.parents(recipe):
                add(parent)

    for member in members:
        for artefact in member.artefacts(recipe):
            add(artefact)
    return list(behind)


def base_epochs(members: Sequence[Member], blueprint: Blueprint) -> float:
    """The counted work of training some members and all that they are made from, one epoch of one network being 1.

    A backward pass counts as two forward passes; frozen networks that several share run once.
    """
    kinds: dict[type[Artefact], list[Artefact]] = {}
    for artefact in artefacts_behind(members, blueprint.recipe):
        kinds.setdefault(type(artefact), []).append(artefact)
    # Of one kind all are trained equally long.
    work = sum(
        kind.work(group, blueprint) * group[0].epochs(blueprint.recipe)
        for kind, group in kinds.items()
        if group[0].epochs(blueprint.recipe)
    )
    return work / (3 * blueprint.base_cost.flops)
