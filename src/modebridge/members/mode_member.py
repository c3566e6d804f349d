"""Modes: independently trained networks, unchanged or with units permuted to match mode 0, on the recipe's base."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from modebridge.alignment import By, align
from modebridge.errors import ModebridgeError
from modebridge.members.artefact import Artefact, ArtefactData, Parents, Tensors
from modebridge.members.member import KINDS, Member
from modebridge.members.network_weights import NetworkWeights
from modebridge.members.predictor import NetworkPredictor
from modebridge.members.setting import Setting
from modebridge.recipes import Recipe
from modebridge.scoring import MemberCost, Row
from modebridge.training import TrainConfig

__all__ = [
    "BASES",
    "AlignedMode",
    "ModeMember",
    "ModeWeights",
    "OneNetwork",
    "mode_on",
    "on_base",
    "split_base",
    "weights_of",
]

BASES: dict[str, Callable[[int], Artefact]] = {}
"""The weights of a mode by its number, before alignment, for each possible `base` of a recipe.

Members have a base too: "" stands for that of the recipe. So one run can have curves and bridges on several bases.
"""

CASCADES = {2: 1.15, 3: 1.5}
"""The cascades of the results table: number of modes and average cost. Other costs are plotted as a line."""


@dataclass(frozen=True)
class ModeWeights(NetworkWeights):
    """A network trained from its own random initialisation."""

    number: int
    folder = "modes"
    stage = "modes"

    @property
    def name(self) -> str:
        """Its number."""
        return str(self.number)

    @property
    def purpose(self) -> tuple[str | int, ...]:
        """A mode with its number."""
        return "mode", self.number


BASES["sgd"] = ModeWeights


@dataclass(frozen=True)
class AlignedMode(Artefact):
    """A mode whose units are permuted to match those of mode 0: the same function, another point in weight space.

    Args:
        number: number of the mode.
        by: the matching method; that of the recipe if it aligns, so that there is one artefact per number.
        base: the base of the mode; "" for that of the recipe.
    """

    number: int
    by: By
    base: str = ""
    folder = "aligned"
    stage = "modes"
    trained = True
    one_core = False

    @property
    def name(self) -> str:
        """The number of the mode."""
        return on_base(self.base, str(self.number))

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Mode 0 and the mode itself."""
        base = self.base or recipe.base
        return _unaligned(0, base), _unaligned(self.number, base)

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """The matching method, and the images for it."""
        return {"by": self.by, "data": setting.data.learned_from}

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Match units, and record the result."""
        (artefact,) = group
        places = [parent.place for parent in artefact.parents(setting.recipe)]
        reference, mode = (setting.load_mode(parents[place]).to(setting.engine.device) for place in places)
        images = setting.engine.feed(setting.data.plain_train(10_000))
        result = align(setting.placed(), reference, mode, images, by=artefact.by)
        metadata = {
            "difference": result.difference,
            "quality": [result.quality_before, result.quality_after],
            "barrier": [result.barrier_before, result.barrier_after],
            "summary": str(result),
        }
        return {artefact.name: ArtefactData(result.mode.to("cpu").state, metadata)}


def weights_of(number: int, recipe: Recipe, base: str = "") -> Artefact:
    """The artefact with the weights of a mode that a run predicts with and fits curves between.

    Args:
        number: number of the mode.
        recipe: determines the base of the modes, and whether they are aligned.
        base: a base other than that of the recipe.
    """
    if number == 0 or recipe.align == "none":
        return _unaligned(number, base or recipe.base)
    return AlignedMode(number, recipe.align, base)


def _unaligned(number: int, base: str) -> Artefact:
    if base not in BASES:
        raise ModebridgeError(f"Expected base to be one of {', '.join(BASES)}, but got '{base}'; choose one of these.")
    return BASES[base](number)


def on_base(base: str, name: str) -> str:
    """The name of something on a base other than that of the recipe.

    >>> on_base("swa", "I-0-1-small"), on_base("", "I-0-1-small")
    ('swa-I-0-1-small', 'I-0-1-small')
    """
    return f"{base}-{name}" if base else name


def split_base(name: str) -> tuple[str, str]:
    """The base and the rest of a name from `on_base`.

    >>> split_base("swa-I-0-1-small"), split_base("I-0-1-small")
    (('swa', 'I-0-1-small'), ('', 'I-0-1-small'))
    """
    base, dash, rest = name.partition("-")
    return (base, rest) if dash and base in BASES else ("", name)


class OneNetwork(Member):
    """A member that is one network of the recipe's architecture; by default with one artefact: its weights."""

    def load(self, setting: Setting, tensors: Mapping[str, Tensors]) -> NetworkPredictor:
        """The network."""
        (artefact,) = self.artefacts(setting.recipe)
        return NetworkPredictor(self.name, setting.load_mode(tensors[artefact.place]))

    def cost(self, setting: Setting) -> MemberCost:
        """One network."""
        return MemberCost(setting.base_cost.flops, setting.base_cost.params, usable=self.usable)


@dataclass(frozen=True)
class ModeMember(OneNetwork):
    """A complete network.

    >>> ModeMember(2).name
    'mode-2'
    """

    number: int
    base: ClassVar[str] = ""
    """The base, if it is not the recipe's."""
    family = "deep ensemble"

    @property
    def name(self) -> str:
        """With its number."""
        return f"{self.base or 'mode'}-{self.number}"

    def belongs(self, recipe: Recipe) -> bool:
        """Whether the recipe has that many modes."""
        return self.number < recipe.modes

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights."""
        return (weights_of(self.number, recipe, self.base),)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "mode-2"."""
        match = re.fullmatch(rf"{cls.base or 'mode'}-(\d+)", name)
        return cls(int(match[1])) if match else None

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Member]:
        """All modes of the recipe."""
        return [cls(k) for k in range(recipe.modes)]

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        """Deep ensembles of the first 1, 2, ... modes, and cascades of the first ones."""
        roles, notes = {1: "one", 2: "two"}, {1: "one network"}
        ensembles = [
            Row(
                f"DE-{m}",
                tuple(cls(k).name for k in range(m)),
                cls.family,
                (m, 0),
                notes.get(m, ""),
                roles.get(m, ""),
            )
            for m in range(1, recipe.modes + 1)
        ]
        cascades = [
            Row(
                f"DE-{m} cascade x{cost:g}",
                tuple(cls(k).name for k in range(m)),
                "cascade",
                (1, 3, m),
                f"mode 0, plus {m - 1} more for its least confident images; average FLOPs",
                average_cost=cost,
            )
            for m, cost in CASCADES.items()
            if m <= recipe.modes
        ]
        return [*ensembles, *cascades]


def mode_on(base: str, number: int) -> ModeMember:
    """The mode that curves and bridges on a base use, as a member; "" is the base of the recipe."""
    kinds = {kind.base: kind for kind in KINDS if issubclass(kind, ModeMember) and kind.base}
    if base and base not in kinds:
        raise ModebridgeError(
            f"Expected the base of a member to be one of {', '.join(kinds)}, but got '{base}'; choose one of these."
        )
    return kinds[base](number) if base else ModeMember(number)
