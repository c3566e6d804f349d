"""A model soup of aligned modes: one network whose weights are the mean of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import nn

from modebridge import trees
from modebridge.alignment import By
from modebridge.members.artefact import Artefact, ArtefactData, Making
from modebridge.members.context import Context
from modebridge.members.member import Member, Numbered
from modebridge.members.mode_member import AlignedMode, ModeMember, OneNetwork, weights_of
from modebridge.modes import Mode, check_statistics, refresh_statistics
from modebridge.recipes import Recipe
from modebridge.types import Batches

__all__ = ["SoupMember", "SoupWeights", "soup"]


def soup(net: nn.Module, modes: Sequence[Mode], train: Batches) -> Mode:
    """The mode whose parameters are the mean of those of several modes, (1 / M) sum of theta_m.

    Parameters that are equal in all modes stay bitwise equal. Batch norm statistics are re-estimated.

    Args:
        net: the network of the modes, on their device.
        modes: at least one mode.
        train: batches to estimate the statistics on.
    """
    first, *others = modes
    for other in others:
        check_statistics(net, first.buffers, other.buffers)
    params = [mode.params for mode in modes]
    mean = {**trees.combine([1 / len(modes)] * len(modes), params), **trees.common(params)}
    return Mode(mean, refresh_statistics(net, mean, first.buffers, train))


@dataclass(frozen=True)
class SoupWeights(Artefact):
    """The mean of the first modes, with units permuted to match those of mode 0.

    Args:
        count: number of modes.
    """

    count: int
    folder = "soups"
    stage = "soups"
    one_core = False

    @property
    def name(self) -> str:
        """The number of modes."""
        return str(self.count)

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Mode 0 and the others aligned to it, with the recipe's method or by activations."""
        by: By = "activations" if recipe.align == "none" else recipe.align
        return weights_of(0, recipe), *(AlignedMode(k, by) for k in range(1, self.count))

    def ingredients(self, context: Context) -> dict[str, object]:
        """The images to estimate statistics on."""
        return {"data": context.data.fed_as}

    @classmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, ArtefactData]:
        """Average them."""
        (artefact,) = group
        context = making.context
        places = [parent.place for parent in artefact.parents(context.recipe)]
        modes = [context.load_mode(making.parents[place]).to(context.engine.device) for place in places]
        images = context.engine.feed(context.data.statistics(cls.folder, artefact.name))
        return {artefact.name: ArtefactData(soup(context.placed(), modes, images).to("cpu").state)}


@dataclass(frozen=True)
class SoupMember(Numbered, OneNetwork):
    """The soup of the first modes.

    >>> SoupMember(4).name
    'soup-4'
    """

    count: int
    method = "soup"
    family = "model soup"
    pattern = r"soup-0*([2-9]|[1-9]\d+)"

    @property
    def title(self) -> str:
        """With the number of modes."""
        return f"soup of {self.count} aligned modes"

    @property
    def ancestors(self) -> tuple[Member, ...]:
        """The modes."""
        return tuple(ModeMember(k) for k in range(self.count))

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights."""
        return (SoupWeights(self.count),)

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """The soup of all modes."""
        return [cls(recipe.modes)]
