"""The training cost of members, in an intuitive unit: epochs of one base network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modebridge.members.artefact import Artefact
from modebridge.members.member import Member
from modebridge.members.setting import Setting
from modebridge.recipes import Recipe

__all__ = ["artefacts_behind", "base_epochs", "trained_alike"]


def artefacts_behind(members: Iterable[Member], recipe: Recipe) -> list[Artefact]:
    """All artefacts needed for some members, each once: those they are loaded from, and the parents of those."""
    artefacts: dict[Artefact, None] = {}

    def add(artefact: Artefact) -> None:
        if artefact not in artefacts:
            artefacts[artefact] = None
            for parent in artefact.parents(recipe):
                add(parent)

    for member in members:
        for artefact in member.artefacts(recipe):
            add(artefact)
    return list(artefacts)


def base_epochs(members: Sequence[Member], setting: Setting) -> float:
    """The work of training some members and all that they depend on, in epochs of one network.

    A backward pass counts as two forward passes; frozen networks that several members share run once.
    """
    work = sum(kind.work(group, setting) * epochs for kind, epochs, group in trained_alike(members, setting.recipe))
    return work / (3 * setting.base_cost.flops)


def trained_alike(members: Iterable[Member], recipe: Recipe) -> list[tuple[type[Artefact], int, list[Artefact]]]:
    """All artefacts to train for some members, by kind and epochs: the cycles of a chain may differ in length."""
    groups: dict[tuple[type[Artefact], int], list[Artefact]] = {}
    for artefact in artefacts_behind(members, recipe):
        groups.setdefault((type(artefact), artefact.epochs(recipe)), []).append(artefact)
    return [(kind, epochs, group) for (kind, epochs), group in groups.items() if epochs]
