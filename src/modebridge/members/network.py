"""Members that are whole networks trained on labels: modes, unchanged or aligned with mode 0, and means of weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import nn

from modebridge import seeds
from modebridge.alignment import By, align
from modebridge.members.member import ArtefactData, Made, Member, Node, Parents
from modebridge.members.setting import Setting
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.scoring import MemberCost, Row
from modebridge.training import TrainConfig, fit_modes

CASCADES = {2: 1.15, 3: 1.5}
"""The cascades of the results table: number of modes and average cost. Other costs are plotted as a line."""


def networks(count: int) -> str:
    """A number of networks in words.

    >>> networks(1), networks(2), networks(12)
    ('one network', 'two networks', '12 networks')
    """
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
    return f"{words[count] if count < len(words) else count} network{'' if count == 1 else 's'}"


class TrainedNetwork(Node):
    """The weights of a network that learns labels from a random start."""

    trained = True

    @property
    @abstractmethod
    def purpose(self) -> tuple[str | int, ...]:
        """The names that its seeds are drawn for: of its start, its batches and its training."""

    def build(self, setting: Setting, generator: torch.Generator) -> nn.Module:
        """The network, with weights drawn from the generator."""
        return setting.network.build(generator)

    def start(self, setting: Setting) -> nn.Module:
        return self.build(setting, seeds.generator(setting.seed, *self.purpose))

    def training(self, recipe: Recipe) -> TrainConfig:
        return recipe.training("mode")

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {
            "data": setting.data.fed_as,
            "net": setting.network.key,
            "seed": setting.seed_of(*self.purpose),
            "training": self.training(setting.recipe).key,
        }

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        trained = fit_modes(
            [node.start(setting) for node in group],
            [setting.data.train(*node.purpose) for node in group],
            config=config,
            seeds=[setting.seed_of(*node.purpose) for node in group],
            valid=setting.data.valid(),
        )
        return {node.name: ArtefactData(mode.state) for node, mode in zip(group, trained, strict=True)}


class OneNetwork(Member):
    """A member that is one network of the recipe's architecture; by default loaded from one node."""

    def load(self, setting: Setting, tensors: Parents) -> Mode:
        (node,) = self.nodes(setting.recipe)
        return setting.load_mode(tensors[node.place])

    def cost(self, setting: Setting) -> MemberCost:
        return MemberCost(setting.base_cost.flops, setting.base_cost.params, usable=self.usable)


@dataclass(frozen=True)
class ModeMember(OneNetwork, TrainedNetwork):
    """A network trained from its own random initialization.

    As a member of a recipe it stands for the weights that the recipe uses for that mode: averaged, or aligned.

    >>> ModeMember(2).name, ModeMember(2).place
    ('mode-2', 'modes/2')
    """

    number: int
    base: ClassVar[str] = ""
    """The base, if it is not the recipe's."""
    family = "deep ensemble"
    pattern = r"mode-(?P<number>\d+)"
    folder = "modes"
    stage = "networks"
    together = "several"

    @property
    def name(self) -> str:
        return f"{self.base or 'mode'}-{self.number}"

    @property
    def title(self) -> str:
        return f"mode {self.number}"

    @property
    def place(self) -> str:
        return f"{self.folder}/{self.number}"

    @property
    def purpose(self) -> tuple[str | int, ...]:
        return "mode", self.number

    def belongs(self, recipe: Recipe) -> bool:
        return self.number < recipe.modes

    def nodes(self, recipe: Recipe) -> tuple[Node, ...]:
        return (weights_of(self.number, recipe, self.base),)

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Self]:
        return super().of(recipe) if cls.method else [cls(k) for k in range(recipe.modes)]

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        if cls.method:
            return super().rows(recipe)
        names = [mode.name for mode in cls.of(recipe)]
        roles = {1: "one", 2: "two"}
        alone, several = {1: "the first one alone"}, "their mean probability"
        ensembles = [
            Row(networks(m), tuple(names[:m]), cls.family, (m, 0), alone.get(m, several), roles.get(m, ""))
            for m in range(1, recipe.modes + 1)
        ]
        cascades = [
            Row(
                f"cascade of {networks(m)}",
                tuple(names[:m]),
                "cascade",
                (1, 3, m),
                f"one network, and {'another' if m == 2 else f'{m - 1} others'} only for images that it is least sure "
                "of (the cost is an average)",
                "cascade" if m == 2 else "",
                average_cost=cost,
            )
            for m, cost in CASCADES.items()
            if m <= recipe.modes
        ]
        return [*ensembles, *cascades]


@dataclass(frozen=True)
class SwaMember(ModeMember):
    """Stochastic weight averaging: like the mode with its number, from the same start on the same batches.

    Up to epoch 3 N / 4 of N it is identical to that mode. From there on the learning rate is constant, and the weights
    after each epoch join a running mean, which does not affect training. Batch norm statistics are those of the mean.
    It is also the mode that curves and bridges on "swa" use.

    >>> SwaMember(0).name
    'swa-0'
    """

    method = "swa"
    base = "swa"
    family = "SWA"
    pattern = r"swa-(?P<number>\d+)"
    folder = "swa"
    stage = "swa"

    @property
    def title(self) -> str:
        return f"{self.family} {self.number}" if self.number else self.family

    def training(self, recipe: Recipe) -> TrainConfig:
        mode = recipe.training("mode")
        start = min(mode.epochs, max(1, 3 * mode.epochs // 4))
        # Always the mean of all snapshots; intermediate means are not compared on validation.
        return replace(mode, average_from=start, constant_from=start, keep="last")

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        return [] if recipe.base == cls.base else [cls(0)]


@dataclass(frozen=True)
class AveragedMember(SwaMember):
    """The mean of the weights after each epoch of the last quarter of a mode's training, with its usual schedule.

    >>> AveragedMember(0).name
    'averaged-0'
    """

    method = base = folder = stage = "averaged"
    family = "mean of weights"
    pattern = r"averaged-(?P<number>\d+)"

    def training(self, recipe: Recipe) -> TrainConfig:
        mode = recipe.training("mode")
        return replace(mode, average_from=min(mode.epochs, 3 * mode.epochs // 4 + 1), keep="last")


BASES: dict[str, type[ModeMember]] = {"sgd": ModeMember, "swa": SwaMember, "averaged": AveragedMember}
"""The modes, before alignment, for each possible `base` of a recipe.

Members have a base too: "" stands for that of the recipe. So one run can have curves and bridges on several bases.
"""


@dataclass(frozen=True)
class AlignedMode(Node):
    """A mode whose units are permuted to match those of mode 0: the same function, another point in weight space."""

    number: int
    by: By
    base: str = ""
    folder = "aligned"
    stage = "networks"
    trained = True
    one_core = False

    @property
    def name(self) -> str:
        return on_base(self.base, str(self.number))

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        kind = BASES[self.base or recipe.base]
        return kind(0), kind(self.number)

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"by": self.by, "data": setting.data.learned_from}

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        (node,) = group
        places = [parent.place for parent in node.parents(setting.recipe)]
        reference, mode = (setting.load_mode(parents[place]).to(setting.engine.device) for place in places)
        images = setting.engine.feed(setting.data.plain_train(10_000))
        result = align(setting.placed(), reference, mode, images, by=node.by)
        metadata = {
            "difference": result.difference,
            "quality": [result.quality_before, result.quality_after],
            "barrier": [result.barrier_before, result.barrier_after],
            "summary": str(result),
        }
        return {node.name: ArtefactData(result.mode.to("cpu").state, metadata)}


def weights_of(number: int, recipe: Recipe, base: str = "") -> Node:
    """The weights of a mode that a run predicts with and fits curves between; aligned if the recipe says so."""
    if number == 0 or recipe.align == "none":
        return BASES[base or recipe.base](number)
    return AlignedMode(number, recipe.align, base)


def mode_on(base: str, number: int) -> ModeMember:
    """The mode that curves and bridges on a base use, as a member; "" is the base of the recipe."""
    return BASES[base or "sgd"](number)


ON_BASE = "(?:(?P<base>swa|averaged)-)?"
"""The part of a pattern that `on_base` adds to names."""


def on_base(base: str, name: str) -> str:
    """The name of something on a base other than that of the recipe.

    >>> on_base("swa", "I-0-1-small"), on_base("", "I-0-1-small")
    ('swa-I-0-1-small', 'I-0-1-small')
    """
    return f"{base}-{name}" if base else name
