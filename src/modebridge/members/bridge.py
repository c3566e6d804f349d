"""Bridges of type I and II and their control on labels: small bodies on the features of modes."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from modebridge.batches import map_inputs
from modebridge.bridges import Bridge, Kind, ResidualBody, Target, build_bridge, label_target
from modebridge.errors import plural
from modebridge.members.curve import PointMember
from modebridge.members.member import ArtefactData, Made, Member, Node, Parents, nodes_of
from modebridge.members.network import ON_BASE, ModeMember, OneNetwork, mode_on, networks, on_base
from modebridge.members.setting import Setting
from modebridge.modes import Mode
from modebridge.nets import frozen_copy
from modebridge.recipes import Recipe
from modebridge.scoring import MemberCost, Row
from modebridge.training import TrainConfig, fit_many

SIZE = r"(?P<size>small|medium|slim\d+(?:\.\d+)?)"
"""The sizes that `Recipe.slim` accepts, as part of members' names."""
NOTES = {
    "I": "small networks on the first one's features; each imitates the middle of a curve to another network",
    "II": "small networks on the features of two; each imitates the middle of the curve between them",
}
ROUNDING = 1 + 1e-9
"""So that a body fits into its own share of the FLOPs, which is rounded."""


class SmallNetwork(Member, Node):
    """A body on the features of modes; all missing ones are trained in one pass."""

    size: str
    """The width: "small", "medium", "slim8"."""
    wide = False
    """Whether its body is one wide block."""
    folder = "bridges"
    stage = "bridges"
    trained = True
    together = "all"

    @property
    @abstractmethod
    def stem(self) -> str:
        """The part of its name that its seed is drawn for: bridges of all sizes start from the same numbers."""

    @property
    def name(self) -> str:
        return f"{self.stem}-{self.size}"

    @abstractmethod
    def learned(self, setting: Setting, tensors: Parents) -> Target:
        """What it learns."""

    def teachers(self, recipe: Recipe) -> tuple[OneNetwork, ...]:
        return ()  # the networks that `learned` loads; they are made first

    def heads(self, recipe: Recipe) -> int:
        return 1

    def chosen(self, setting: Setting, wide: bool | None = None) -> Bridge:
        """A bridge of its size with its cost; it may have no weights. `wide` replaces its own, to compare."""
        kind: Kind = "I" if len(self.reads) == 1 else "II"
        heads, wide = self.heads(setting.recipe), self.wide if wide is None else wide

        def build() -> Bridge:
            device = next(setting.bare.parameters()).device
            example = map_inputs(lambda tensor: tensor.to(device), setting.example)
            options = self.sizing(setting, wide)
            with torch.device(device):  # where the body is built
                return build_bridge(setting.bare, example, kind, heads, **options)

        return setting.once((kind, self.size, heads, wide), build)

    def sizing(self, setting: Setting, wide: bool) -> dict[str, Any]:
        """The options of `build_bridge` for its width; a wide body gets the FLOPs of the plain one, for equal costs."""
        slim, budget = setting.recipe.slim(self.size), setting.recipe.budget_of(self.size)
        plain = self.chosen(setting, wide=False) if wide else None
        # Without blocks nothing is wide.
        if plain and plain.share and any(isinstance(module, ResidualBody) for module in plain.body.modules()):
            return {"slim": slim, "budget": budget or plain.share * ROUNDING, "wide": True}
        return {"slim": slim, "budget": budget, "wide": False}

    def plan(self, setting: Setting, tensors: Parents) -> Bridge:
        modes, target = self._modes(setting, tensors), self.learned(setting, tensors)
        seed, sizing = setting.seed_of(self.stem), self.sizing(setting, self.wide)
        return build_bridge(setting.net, setting.example, modes, target, name=self.name, seed=seed, **sizing)

    def _modes(self, setting: Setting, tensors: Parents) -> list[Mode]:
        return [setting.load_mode(tensors[node.place]) for node in self.nodes(setting.recipe)[1:]]

    def nodes(self, recipe: Recipe) -> tuple[Node, ...]:
        return (self, *nodes_of(self.reads, recipe))

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        return nodes_of((*self.reads, *self.teachers(recipe)), recipe)

    def training(self, recipe: Recipe) -> TrainConfig:
        return recipe.training("bridge")

    @classmethod
    def mixing(cls, setting: Setting) -> tuple[float, float]:
        return setting.recipe.mixup, setting.recipe.cutmix

    def ingredients(self, setting: Setting) -> dict[str, object]:
        recipe, (mixup, cutmix) = setting.recipe, self.mixing(setting)
        return {
            "data": setting.data.fed_as,
            "net": setting.network.key,
            "seed": setting.seed_of("bridges"),
            "training": self.training(recipe).key,
            "width": (recipe.slim(self.size), recipe.budget_of(self.size)),
            "mixup": mixup,
            "cutmix": cutmix,
            "batch": recipe.data.bridge_batch_size,
        }

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        mixup, cutmix = cls.mixing(setting)
        trained = fit_many(
            setting.net,
            {node.name: node.plan(setting, parents) for node in group},
            setting.data.train("bridges", bridges=True),
            config=replace(config, seed=setting.seed_of("bridges"), mixup=mixup, cutmix=cutmix),
            valid=setting.data.valid(),
        )
        return {name: ArtefactData(bridge.state_dict()) for name, bridge in trained.items()}

    @classmethod
    def work(cls, group: Sequence[Self], setting: Setting) -> float:
        frozen = {network for node in group for network in (*node.reads, *node.teachers(setting.recipe))}
        return sum(3 * node.chosen(setting).flops for node in group) + setting.base_cost.flops * len(frozen)

    def load(self, setting: Setting, tensors: Parents) -> Bridge:
        modes, chosen, r = self._modes(setting, tensors), self.chosen(setting), getattr(self, "r", None)
        body = copy.deepcopy(chosen.body).to_empty(device="cpu")
        # In the memory format after training, which files do not store: logits are identified by content only.
        bridge = frozen_copy(Bridge(body, modes, chosen.taps, r, self.name, chosen.share, chosen.heads))
        assert isinstance(bridge, Bridge)
        bridge.load_state_dict(dict(tensors[self.place]))
        return bridge

    def cost(self, setting: Setting) -> MemberCost:
        chosen = self.chosen(setting)
        return MemberCost(chosen.flops, chosen.params, tuple(member.name for member in self.reads))


@dataclass(frozen=True)
class BridgeMember(SmallNetwork):
    """A bridge that imitates the point at r of a curve, counted from the lower mode; "I" reads mode i, "II" both.

    >>> BridgeMember("I", 1, 0).name, BridgeMember("II", 0, 1, "medium", 0.3).name
    ('I-1-0-small', 'II-0-1-medium@0.3')
    >>> BridgeMember("I", 0, 1, base="swa").name
    'swa-I-0-1-small'
    """

    kind: Kind
    i: int
    j: int
    size: str = "small"
    r: float = 0.5
    base: str = ""
    method = "paper"
    pattern = rf"{ON_BASE}(?P<kind>II?)-(?P<i>\d+)-(?P<j>\d+)-{SIZE}(?:@(?P<r>[\d.]+))?"

    def __post_init__(self) -> None:
        if self.kind == "II":  # the order of the ends does not matter
            i, j = self.pair
            vars(self).update(i=i, j=j)

    @property
    def stem(self) -> str:
        return f"{self.kind}-{self.i}-{self.j}"

    @property
    def name(self) -> str:
        return on_base(self.base, f"{self.stem}-{self.size}" + ("" if self.r == 0.5 else f"@{self.r:g}"))

    @property
    def family(self) -> str:  # type: ignore[override]
        return f"with type {self.kind} bridges"

    @property
    def title(self) -> str:
        return f"bridge {self.kind} {self.size}"

    @property
    def pair(self) -> tuple[int, int]:
        """The ends of its curve, the lower number first."""
        return min(self.i, self.j), max(self.i, self.j)

    @property
    def reads(self) -> tuple[Member, ...]:
        return tuple(mode_on(self.base, k) for k in (self.pair if self.kind == "II" else (self.i,)))

    def made_from(self, recipe: Recipe) -> tuple[Member, ...]:
        return tuple(mode_on(self.base, k) for k in self.pair)

    @property
    def imitates(self) -> PointMember:
        return PointMember(*self.pair, self.r, self.base)

    def teachers(self, recipe: Recipe) -> tuple[OneNetwork, ...]:
        return (self.imitates,)

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        return self.imitates.nodes(recipe)

    def learned(self, setting: Setting, tensors: Parents) -> Target:
        return Target((self.imitates.load(setting, tensors),), self.r)

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        pairs = recipe.curves()
        members: list[Self] = []
        for size in recipe.sizes:
            for i, j in pairs:
                members += [cls("I", i, j, size)] + ([] if recipe.pairs == "first" else [cls("I", j, i, size)])
            members += [cls("II", i, j, size) for i, j in (pairs if recipe.type2 == "all" else pairs[:1])]
        return members

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        if not recipe.paper:
            names = [((*(read.name for read in one.reads), one.name), one) for one in cls.of(recipe)]
            return [Row(" + ".join(some), some, one.family, (1, 1, k)) for k, (some, one) in enumerate(names)]
        partners = [j for i, j in recipe.curves() if i == 0]

        def row(m: int, bridges: Sequence[BridgeMember], order: tuple[float, ...], role: str = "") -> Row:
            size = "" if bridges[0].size == recipe.sizes[0] else f", {bridges[0].size}"
            kind = "" if bridges[0].kind == "I" else " of type II"
            name = f"{networks(m)} + {plural(len(bridges), 'bridge')}{kind}{size}"
            members, note = [*(ModeMember(k) for k in range(m)), *bridges], NOTES[bridges[0].kind]
            return Row(name, tuple(member.name for member in members), bridges[0].family, order, note, role)

        rows: list[Row] = []
        for k, size in enumerate(recipe.sizes):
            for count in range(1, len(partners) + 1):
                ones = [cls("I", 0, j, size) for j in partners[:count]]
                rows.append(row(1, ones, (1, 1, k, count), "bridge" if (k, count) == (0, 1) else ""))
            rows += [
                row(m, [cls("II", i, j, size) for i in range(m) for j in range(i + 1, m)], (m, 1, k))
                for m in range(2, recipe.modes + 1)
            ]
        return rows


@dataclass(frozen=True)
class ControlMember(SmallNetwork):
    """The control: a bridge of type I on mode i that learns labels, to show what the curve contributes.

    The other end j of the matching bridge's curve is only part of the name.

    >>> ControlMember(0, 1, "small").name
    'labels-0-1-small'
    """

    i: int
    j: int
    size: str = "small"
    family = "with a bridge on labels"
    pattern = rf"labels-(?P<i>\d+)-(?P<j>\d+)-{SIZE}"

    @property
    def stem(self) -> str:
        return f"labels-{self.i}-{self.j}"

    @property
    def title(self) -> str:
        return f"bridge on labels {self.size}"

    @property
    def reads(self) -> tuple[Member, ...]:
        return (ModeMember(self.i),)

    def belongs(self, recipe: Recipe) -> bool:
        return max(self.i, self.j) < recipe.modes

    def learned(self, setting: Setting, tensors: Parents) -> Target:
        return label_target()

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Self]:
        return [cls(*recipe.curves()[0], size) for size in recipe.sizes] if recipe.paper and recipe.control else []

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        note = "the same small network trained on labels, without a second network"
        members = cls.of(recipe)[:1]
        pairs = [(ModeMember(0).name, member.name) for member in members]
        return [Row("one network + 1 bridge on labels", pair, cls.family, (1, 2), note, "control") for pair in pairs]
