"""Modes: independently trained networks, as they are or renumbered to match mode 0."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from modebridge import seeds
from modebridge.evaluate import MemberCost, align
from modebridge.members.artefact import Artefact, Made, Making, Tensors
from modebridge.members.context import Blueprint, Context
from modebridge.members.member import Member, RowPlan
from modebridge.members.predictor import NetworkPredictor
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.training import fit_modes

__all__ = ["AlignedMode", "ModeMember", "ModeWeights", "weights_of"]

CASCADES = {2: 1.15, 3: 1.5}
"""The cascades of the results table: modes and average cost. What other costs buy is drawn as a line."""


@dataclass(frozen=True)
class ModeWeights(Artefact):
    """A network trained from its own random start."""

    number: int
    folder = "modes"
    stage = "modes"
    trained = True

    @property
    def name(self) -> str:
        """Its number."""
        return str(self.number)

    def ingredients(self, context: Context) -> dict[str, object]:
        """Data, network, seed and training."""
        return {
            "data": context.data.fed_as,
            "net": context.network.key,
            "seed": context.seed_of("mode", self.number),
            "training": str(context.recipe.mode),
        }

    def epochs(self, recipe: Recipe) -> int:
        """As the recipe says."""
        return recipe.mode.epochs

    def together(self, context: Context) -> int:
        """Several on a GPU."""
        return context.together

    @classmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, Made]:
        """Train them."""
        context = making.context
        numbers = [artefact.number for artefact in group]
        trained = fit_modes(
            [context.network.build(seeds.generator(context.seed, "mode", k)) for k in numbers],
            [context.data.train("mode", k) for k in numbers],
            config=context.recipe.mode,
            seeds=[context.seed_of("mode", k) for k in numbers],
            valid=context.data.valid(),
            engine=context.engine,
            checkpoints=making.checkpoints,
            report=making.report,
        )
        return {artefact.name: Made(mode.state) for artefact, mode in zip(group, trained, strict=True)}

    @classmethod
    def work(cls, group: Sequence[Self], blueprint: Blueprint) -> float:
        """A forward and a backward pass of each; the latter counts as two of the former."""
        return 3 * blueprint.base_cost.flops * len(group)


@dataclass(frozen=True)
class AlignedMode(Artefact):
    """A mode whose units are renumbered to match those of mode 0; the same function, another point in weight space."""

    number: int
    folder = "aligned"
    stage = "modes"
    trained = True
    one_core = False

    @property
    def name(self) -> str:
        """The number of the mode."""
        return str(self.number)

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Mode 0 and the mode itself."""
        return ModeWeights(0), ModeWeights(self.number)

    def ingredients(self, context: Context) -> dict[str, object]:
        """The way of matching, and the images for it."""
        return {"by": context.recipe.align, "data": context.data.learned_from}

    @classmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, Made]:
        """Match units, and note what that brought."""
        context, parents = making.context, making.parents
        assert context.recipe.align != "none"
        device = context.engine.device
        made: dict[str, Made] = {}
        for artefact in group:
            reference, mode = (
                load_mode(context, parents[parent.place]).to(device) for parent in artefact.parents(context.recipe)
            )
            images = context.engine.feed(context.data.plain_train(10_000))
            result = align(context.placed(), reference, mode, images, by=context.recipe.align)
            metadata = {
                "difference": result.difference,
                "quality": [result.quality_before, result.quality_after],
                "barrier": [result.barrier_before, result.barrier_after],
                "summary": str(result),
            }
            made[artefact.name] = Made(result.mode.to("cpu").state, metadata)
        return made


def weights_of(number: int, recipe: Recipe) -> Artefact:
    """Where the weights of a mode are kept that a run predicts with and draws curves between."""
    return ModeWeights(number) if number == 0 or recipe.align == "none" else AlignedMode(number)


def load_mode(blueprint: Blueprint, tensors: Tensors) -> Mode:
    """A mode from its tensors."""
    return Mode.from_state_dict(blueprint.net, tensors)


@dataclass(frozen=True)
class ModeMember(Member):
    """A whole network.

    >>> ModeMember(2).name
    'mode-2'
    """

    number: int
    family = "deep ensemble"

    @property
    def name(self) -> str:
        """With its number."""
        return f"mode-{self.number}"

    def belongs(self, recipe: Recipe) -> bool:
        """Where the recipe has so many."""
        return self.number < recipe.modes

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights."""
        return (weights_of(self.number, recipe),)

    def load(self, blueprint: Blueprint, tensors: Mapping[str, Tensors]) -> NetworkPredictor:
        """The network."""
        return NetworkPredictor(
            self.name, load_mode(blueprint, tensors[weights_of(self.number, blueprint.recipe).place])
        )

    def cost(self, blueprint: Blueprint) -> MemberCost:
        """One network."""
        return MemberCost(blueprint.base_cost.flops, blueprint.base_cost.params)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "mode-2"."""
        form = re.fullmatch(r"mode-(\d+)", name)
        return cls(int(form[1])) if form else None

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Member]:
        """All modes of the recipe."""
        return [cls(k) for k in range(recipe.modes)]

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[RowPlan]:
        """Deep ensembles of the first 1, 2, ... modes, and cascades of the first ones."""
        roles, notes = {1: "one", 2: "two"}, {1: "one network"}
        ensembles = [
            RowPlan(
                f"DE-{m}",
                tuple(cls(k) for k in range(m)),
                cls.family,
                (m, 0),
                notes.get(m, ""),
                roles.get(m, ""),
                elastic=m in CASCADES,
            )
            for m in range(1, recipe.modes + 1)
        ]
        cascades = [
            RowPlan(
                f"DE-{m} cascade x{cost:g}",
                tuple(cls(k) for k in range(m)),
                "cascade",
                (1, 3, m),
                f"mode 0, and {m - 1} more about the images that it is least sure of; FLOPs are the average",
                average_cost=cost,
            )
            for m, cost in CASCADES.items()
            if m <= recipe.modes
        ]
        return [*ensembles, *cascades]
