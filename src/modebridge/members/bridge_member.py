"""Bridges of type I and II: small networks on the features of one or two modes, trained to say what a curve says."""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from modebridge import seeds
from modebridge.bridges import Bridge, Kind
from modebridge.evaluate import MemberCost
from modebridge.members.artefact import Artefact, Made, Making, Tensors
from modebridge.members.context import Blueprint, Context
from modebridge.members.curve_member import PointMember, load_curve, point_artefacts
from modebridge.members.member import Body, Member, RowPlan
from modebridge.members.mode_member import ModeMember, load_mode, mode_on, on_base, split_base
from modebridge.members.predictor import BridgePredictor
from modebridge.nets import skeleton
from modebridge.recipes import Recipe
from modebridge.training import BridgePlan, fit_bridges, plan_bridge

__all__ = ["BridgeMember", "BridgeWeights", "SmallNetwork", "row_name"]


@dataclass(frozen=True)
class BridgeWeights(Artefact):
    """The weights of a bridge; all that are missing are trained in one pass."""

    member: SmallNetwork
    folder = "bridges"
    stage = "bridges"
    trained = True

    @property
    def name(self) -> str:
        """That of the member."""
        return self.member.name

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """What it reads and what it is to say."""
        return self.member.learns_from(recipe)

    def ingredients(self, context: Context) -> dict[str, object]:
        """Data, seed, training, size and mixup; CutMix only where there is some, as earlier runs know none."""
        recipe = context.recipe
        return {
            "data": context.data.fed_as,
            "net": context.network.key,
            "seed": context.seed_of("bridges"),
            "training": str(recipe.bridge),
            "width": (recipe.slim(self.member.size), context.budget(self.member.size)),
            "mixup": recipe.mixup,
            **({"cutmix": recipe.cutmix} if recipe.cutmix else {}),
            "batch": recipe.data.bridge_batch_size,
        }

    def epochs(self, recipe: Recipe) -> int:
        """As the recipe says."""
        return recipe.bridge.epochs

    def together(self, context: Context) -> int:
        """All of them: every frozen network then runs once per batch."""
        return 10**6

    @classmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, Made]:
        """Train them in one pass."""
        context, parents = making.context, making.parents
        trained = fit_bridges(
            context.net,
            {artefact.name: artefact.member.plan(context, parents) for artefact in group},
            context.data.train("bridges", bridges=True),
            mixup=context.recipe.mixup,
            cutmix=context.recipe.cutmix,
            config=replace(context.recipe.bridge, seed=context.seed_of("bridges")),
            valid=context.data.valid(),
            engine=context.engine,
            checkpoints=making.checkpoints,
            report=making.report,
        )
        return {name: Made(bridge.state_dict()) for name, bridge in trained.items()}

    @classmethod
    def work(cls, group: Sequence[Self], blueprint: Blueprint) -> float:
        """Each forward and backward, and every frozen network that they read or imitate once forward."""
        members = [artefact.member for artefact in group]
        frozen = {network for member in members for network in (*member.reads, member.imitates) if network is not None}
        trained = sum(3 * blueprint.body(member.body_kind, member.size).flops for member in members)
        return trained + blueprint.base_cost.flops * len(frozen)


class SmallNetwork(Member):
    """What bridges and their control share: a body on the features of modes."""

    size: str
    """Which width: "small", "medium", "slim8"."""

    @property
    @abstractmethod
    def body_kind(self) -> Kind:
        """How many features the body takes: "I" one, "II" two."""

    @abstractmethod
    def learns_from(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """What must be there before it is trained."""

    @abstractmethod
    def plan(self, context: Context, tensors: Mapping[str, Tensors]) -> BridgePlan:
        """The bridge before training."""

    @property
    def position(self) -> float | None:
        """Where on a curve its target is; None where it has none."""
        return None

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights, and the modes that it reads."""
        return (BridgeWeights(self), *(artefact for member in self.reads for artefact in member.artefacts(recipe)))

    def load(self, blueprint: Blueprint, tensors: Mapping[str, Tensors]) -> BridgePredictor:
        """The bridge on its modes."""
        modes = {
            member.name: load_mode(blueprint, tensors[artefact.place])
            for member in self.reads
            for artefact in member.artefacts(blueprint.recipe)
        }
        chosen = blueprint.body(self.body_kind, self.size)
        body = copy.deepcopy(chosen.body).to_empty(device="cpu")
        # In the order of memory that training leaves, which files do not know of: logits are known by content alone.
        bridge = skeleton(Bridge(body, list(modes.values()), chosen.taps, self.position, self.name, chosen.share))
        assert isinstance(bridge, Bridge)
        bridge.load_state_dict(dict(tensors[BridgeWeights(self).place]))
        return BridgePredictor(bridge, modes)

    def cost(self, blueprint: Blueprint) -> MemberCost:
        """Its body."""
        chosen = blueprint.body(self.body_kind, self.size)
        return MemberCost(chosen.flops, chosen.params, tuple(member.name for member in self.reads))

    def body(self, blueprint: Blueprint) -> Body:
        """Its body, as any of its size."""
        chosen = blueprint.body(self.body_kind, self.size)
        return Body(copy.deepcopy(chosen.body).to_empty(device="cpu"), chosen.taps, len(self.reads))


@dataclass(frozen=True)
class BridgeMember(SmallNetwork):
    """A bridge.

    Args:
        kind: "I" reads mode i, "II" reads both.
        i: the mode that a type I bridge reads, or the lower end.
        j: the other end.
        size: "small", "medium", "slim8".
        r: the position on the curve, counted from the lower number, whichever end is read.
        base: of the modes; "" for that of the recipe.

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

    def __post_init__(self) -> None:
        if len(self.reads) == 2:  # which end is named first means nothing
            i, j = self.pair
            vars(self).update(i=i, j=j)

    @property
    def name(self) -> str:
        """Type, ends, size, and the position where it is not the middle."""
        name = f"{self.kind}-{self.i}-{self.j}-{self.size}" + ("" if self.r == 0.5 else f"@{self.r:g}")
        return on_base(self.base, name)

    @property
    def family(self) -> str:  # type: ignore[override]
        """By type."""
        return f"with type {self.kind} bridges"

    @property
    def title(self) -> str:
        """Type and size."""
        return f"bridge {self.kind} {self.size}"

    @property
    def body_kind(self) -> Kind:
        """Its type."""
        return self.kind

    @property
    def pair(self) -> tuple[int, int]:
        """The ends of its curve, the lower number first."""
        return min(self.i, self.j), max(self.i, self.j)

    @property
    def reads(self) -> tuple[Member, ...]:
        """One mode or both."""
        return tuple(mode_on(self.base, k) for k in (self.pair if self.kind == "II" else (self.i,)))

    @property
    def ancestors(self) -> tuple[Member, ...]:
        """Both ends."""
        return tuple(mode_on(self.base, k) for k in self.pair)

    @property
    def imitates(self) -> Member:
        """The network on the curve."""
        return PointMember(*self.pair, self.r, self.base)

    @property
    def position(self) -> float:
        """The position on the curve."""
        return self.r

    def learns_from(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The curve and its ends."""
        return point_artefacts(*self.pair, self.r, recipe, self.base)

    def plan(self, context: Context, tensors: Mapping[str, Tensors]) -> BridgePlan:
        """Reads one end or both; its target is the network on the curve."""
        return plan_bridge(
            context.net,
            load_curve(context, tensors, *self.pair, self.r, self.base),
            context.example,
            kind=self.kind,
            source="start" if self.i <= self.j else "end",
            r=self.r,
            name=self.name,
            seed=seeds.seed_for(context.seed, f"{self.kind}-{self.i}-{self.j}"),
            slim=context.recipe.slim(self.size),
            budget=context.budget(self.size),
        )

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "I-0-1-small", "II-0-1-slim8@0.3" or "swa-I-0-1-small"."""
        base, rest = split_base(name)
        form = re.fullmatch(r"(II|I)-(\d+)-(\d+)-([a-z]+[\d.]*)(?:@([\d.]+))?", rest)
        if form is None:
            return None
        return cls("II" if form[1] == "II" else "I", int(form[2]), int(form[3]), form[4], float(form[5] or 0.5), base)

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Member]:
        """Of every curve, from its first end or from both, and of type II."""
        pairs = recipe.curves()
        members: list[Member] = []
        for size in recipe.sizes:
            for i, j in pairs:
                members += [cls("I", i, j, size)] + ([] if recipe.pairs == "first" else [cls("I", j, i, size)])
            members += [cls("II", i, j, size) for i, j in (pairs if recipe.type2 == "all" else pairs[:1])]
        return members

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[RowPlan]:
        """Type I bridges on one mode, one after another; type II bridges between all modes of a deep ensemble."""
        partners = [j for i, j in recipe.curves() if i == 0]
        plans: list[RowPlan] = []
        for k, size in enumerate(recipe.sizes):
            for count in range(1, len(partners) + 1):
                ones = [cls("I", 0, j, size) for j in partners[:count]]
                plans.append(
                    RowPlan(
                        row_name("DE-1", count, "I", size, recipe),
                        (ModeMember(0), *ones),
                        ones[0].family,
                        (1, 1, k, count),
                        role="bridge" if (k, count) == (0, 1) else "",
                        elastic=k == 0 and count == len(partners),
                    )
                )
            for m in range(2, recipe.modes + 1):
                twos = [cls("II", i, j, size) for i in range(m) for j in range(i + 1, m)]
                plans.append(
                    RowPlan(
                        row_name(f"DE-{m}", len(twos), "II", size, recipe),
                        (*(ModeMember(i) for i in range(m)), *twos),
                        twos[0].family,
                        (m, 1, k),
                        elastic=k == 0 and m == 2,
                    )
                )
        return plans


def row_name(base: str, count: int, kind: str, size: str, recipe: Recipe) -> str:
    """How tables call an ensemble with bridges; the first size of a recipe goes without saying."""
    name = f"{base} + {count} bridge{'s' if count > 1 else ''} {kind}"
    return name if size == recipe.sizes[0] else f"{name}, {size}"
