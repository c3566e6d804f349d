"""What a member of an ensemble is: one frozen record per kind answers everything that the rest asks of it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

from torch import nn

from modebridge.errors import ModebridgeError, near
from modebridge.evaluate import MemberCost
from modebridge.members.artefact import Artefact, Tensors
from modebridge.members.context import Blueprint
from modebridge.members.predictor import Predictor
from modebridge.recipes import Recipe
from modebridge.recipes.user_code import USER

__all__ = [
    "KINDS",
    "METHODS",
    "Body",
    "Member",
    "Method",
    "RowPlan",
    "file_of_own_kinds",
    "members_of",
    "parse_member",
    "register",
    "row_plans",
]


@dataclass(frozen=True)
class Body:
    """A small network on the features at taps of one or two networks, with weights that mean nothing."""

    body: nn.Module
    taps: tuple[str, ...]
    reads: int


@dataclass(frozen=True)
class RowPlan:
    """A row of the results table before it is scored.

    Args:
        name: in the words of the paper, "DE-1 + 1 bridge I".
        members: what it is the mean of.
        family: what it belongs to in plots.
        order: where it stands: rows are sorted by it.
        note: what the row is there for, where its name does not say it.
        role: what the summary takes it for: "one" and "two" networks, the first "bridge", its "control".
        elastic: whether to draw what asking its further members only about unsure images buys.
        average_cost: of a cascade, in networks on the validation images: the first member answers alone where it is
            sure, the others are asked about the remaining images only. None asks all members about all images.
    """

    name: str
    members: tuple[Member, ...]
    family: str
    order: tuple[float, ...]
    note: str = ""
    role: str = ""
    elastic: bool = False
    average_cost: float | None = None

    @property
    def is_cheap(self) -> bool:
        """Whether it costs less than two networks, and is not the first row: its share of the way to two counts.

        What only teaches is measured beside it all the same, as the most that imitating it could bring.
        """
        if self.average_cost is not None:
            return self.average_cost < 2
        networks = [member for member in self.members if not member.reads and member.usable]
        return len(networks) == 1 and self.role != "one"


class Member(ABC):
    """One member of ensembles, before anything of it is trained. A kind of member is a subclass."""

    family: ClassVar[str]
    """How plots call ensembles with such members."""
    usable: ClassVar[bool] = True
    """Whether ensembles to deploy may have it; False for what only teaches others."""
    alone: ClassVar[bool] = False
    """Whether it is used by itself only, because it is another network than the recipe's."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How files and tables call it."""

    @property
    def title(self) -> str:
        """How a row of the results table calls it alone."""
        return self.name

    @property
    def reads(self) -> tuple[Member, ...]:
        """The members whose features it takes at prediction time; they must run."""
        return ()

    @property
    def needs(self) -> tuple[Member, ...]:
        """All members that must run for it: those that it reads, those that these read, and so on."""
        return tuple(dict.fromkeys(needed for member in self.reads for needed in (*member.needs, member)))

    @property
    def ancestors(self) -> tuple[Member, ...]:
        """The members that it is made from; when one of them is replaced, its logits are no longer its own."""
        return self.reads

    def made_from(self, recipe: Recipe) -> tuple[Member, ...]:
        """The same in a recipe, where that says what it is made from."""
        return self.ancestors

    @property
    def imitates(self) -> Member | None:
        """The member whose output it was trained to give, where there is one."""
        return None

    def belongs(self, recipe: Recipe) -> bool:
        """Whether a recipe can have it."""
        return all(member.belongs(recipe) for member in self.ancestors)

    @abstractmethod
    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """All that is needed to load it."""

    @abstractmethod
    def load(self, blueprint: Blueprint, tensors: Mapping[str, Tensors]) -> Predictor:
        """Make it ready to predict.

        Args:
            blueprint: the network.
            tensors: of its artefacts, by place.
        """

    @abstractmethod
    def cost(self, blueprint: Blueprint) -> MemberCost:
        """What it adds to a forward pass, counted."""

    def body(self, blueprint: Blueprint) -> Body | None:
        """What runs for it beside the networks that it reads, to be timed; None for a network."""
        return None

    def whole(self, blueprint: Blueprint) -> nn.Module | None:
        """What runs for it where that is another network than the recipe's, with weights that mean nothing."""
        return None

    @classmethod
    @abstractmethod
    def parse(cls, name: str) -> Self | None:
        """The member of this kind with a name; None where it is no name of this kind."""

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Member]:
        """The members of this kind that a plain run of a recipe has."""
        return ()

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[RowPlan]:
        """The rows of the results table that this kind adds: each of its members alone, unless it says otherwise."""
        return [RowPlan(member.title, (member,), member.family, (LAST, k)) for k, member in enumerate(cls.of(recipe))]


K = TypeVar("K", bound=type[Member])

LAST = 1000.0
"""The order of rows that stand after those of all deep ensembles."""

KINDS: list[type[Member]] = []
"""Every kind of member, in the order in which tables list them."""

METHODS: dict[str, type[Method]] = {}
"""The kinds that a recipe has only where its `methods` name them, by that name."""


class Method(Member):
    """A kind of member that a recipe may have beside its modes and bridges, to compare them with."""

    method: ClassVar[str]
    """What a recipe's `methods` call it."""

    @classmethod
    @abstractmethod
    def usual(cls, recipe: Recipe) -> Sequence[Member]:
        """The members that the name of the method stands for in a recipe."""

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Member]:
        """The usual ones where the recipe names the method, and those that it names one by one."""
        named = [cls.parse(entry) for entry in recipe.methods]
        usual = cls.usual(recipe) if cls.method in recipe.methods else ()
        return list(dict.fromkeys([*usual, *(member for member in named if member is not None)]))

    @classmethod
    def order(cls, k: int) -> tuple[float, ...]:
        """Where its k-th row stands: those of a method together, after those of all deep ensembles and bridges."""
        return LAST, 1.0 + list(METHODS).index(cls.method), float(k)

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[RowPlan]:
        """Each of its members alone, unless it says otherwise."""
        return [
            RowPlan(member.title, (member,), member.family, cls.order(k)) for k, member in enumerate(cls.of(recipe))
        ]


def register(kind: K) -> K:
    """Make a kind of member known to recipes, tables, plots and the program; a decorator."""
    known = [(other.__module__, other.__qualname__) for other in KINDS]
    if (kind.__module__, kind.__qualname__) in known:
        # A file that was changed since it was read, and is read again.
        KINDS[known.index((kind.__module__, kind.__qualname__))] = kind
    else:
        KINDS.append(kind)
    if issubclass(kind, Method):
        METHODS[kind.method] = kind
    return kind


def file_of_own_kinds() -> str:
    """The user's file that registered kinds of members in this process; empty where there is none."""
    modules = [kind.__module__ for kind in KINDS if kind.__module__.startswith(USER)]
    return str(getattr(sys.modules.get(modules[-1]), "__file__", "")) if modules else ""


def parse_member(name: str) -> Member:
    """The member called `name`.

    >>> parse_member("mode-0").name
    'mode-0'
    """
    for kind in KINDS:
        member = kind.parse(name)
        if member is not None:
            return member
    raise ModebridgeError(f"Expected a member such as mode-0 or I-0-1-small, but got '{name}'; check the name.")


def members_of(recipe: Recipe) -> list[Member]:
    """Everything that a plain run of a recipe trains and scores."""
    members = [member for kind in KINDS for member in kind.of(recipe)]
    names = {member.name for member in members}
    for entry in recipe.methods:
        if entry not in METHODS and entry not in names:
            raise ModebridgeError(
                f"Expected methods to name methods or members, but got '{entry[:80]}'; {near(entry, METHODS)}"
            )
    return members


def row_plans(recipe: Recipe) -> list[RowPlan]:
    """The rows of a recipe's results table, in order."""
    return sorted((plan for kind in KINDS for plan in kind.rows(recipe)), key=lambda plan: plan.order)
