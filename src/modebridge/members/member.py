"""The interface of ensemble members: one frozen dataclass per kind provides all that the rest of the code needs."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

from torch import nn

from modebridge.errors import ModebridgeError, near
from modebridge.members.artefact import Artefact, Tensors
from modebridge.members.predictor import Predictor
from modebridge.members.setting import Setting
from modebridge.recipes import Recipe
from modebridge.recipes.user_code import USER
from modebridge.scoring import MemberCost, Row

__all__ = [
    "KINDS",
    "METHODS",
    "Body",
    "Member",
    "Method",
    "Numbered",
    "file_of_own_kinds",
    "members_of",
    "parse_member",
    "register",
    "row_plans",
]


@dataclass(frozen=True)
class Body:
    """A small network on the features at taps of one or two networks; its weights are arbitrary."""

    body: nn.Module
    taps: tuple[str, ...]
    reads: int


class Member(ABC):
    """One member of ensembles, before anything is trained. Each kind of member is a subclass."""

    family: ClassVar[str]
    """The name in plots of ensembles with such members."""
    usable: ClassVar[bool] = True
    """Whether it may be part of a deployed ensemble; False for members that only teach others."""
    alone: ClassVar[bool] = False
    """Whether it is only used alone, because its network differs from the recipe's."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in files and tables."""

    @property
    def title(self) -> str:
        """Its name in the results table when used alone."""
        return self.name

    @property
    def reads(self) -> tuple[Member, ...]:
        """The members whose features it reads at prediction time; they must run."""
        return ()

    @property
    def needs(self) -> tuple[Member, ...]:
        """All members that must run for it: those that it reads, those that these read, and so on."""
        return tuple(dict.fromkeys(needed for member in self.reads for needed in (*member.needs, member)))

    @property
    def ancestors(self) -> tuple[Member, ...]:
        """The members that it is made from; if one of them is replaced, its logits are out of date."""
        return self.reads

    def made_from(self, recipe: Recipe) -> tuple[Member, ...]:
        """Its ancestors in a recipe, if they depend on the recipe."""
        return self.ancestors

    @property
    def imitates(self) -> Member | None:
        """The member whose output it was trained to reproduce, if any."""
        return None

    def belongs(self, recipe: Recipe) -> bool:
        """Whether a recipe can include it."""
        return all(member.belongs(recipe) for member in self.ancestors)

    @abstractmethod
    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """All artefacts needed to load it."""

    @abstractmethod
    def load(self, setting: Setting, tensors: Mapping[str, Tensors]) -> Predictor:
        """Load it for prediction.

        Args:
            setting: the network.
            tensors: tensors of its artefacts, by place.
        """

    @abstractmethod
    def cost(self, setting: Setting) -> MemberCost:
        """What it adds to the cost of a forward pass."""

    def body(self, setting: Setting) -> Body | None:
        """What runs for it besides the networks that it reads, for timing; None for a network."""
        return None

    def whole(self, setting: Setting) -> nn.Module | None:
        """The network that runs for it if it differs from the recipe's, with arbitrary weights."""
        return None

    @classmethod
    @abstractmethod
    def parse(cls, name: str) -> Self | None:
        """The member of this kind with a name; None if it is not a name of this kind."""

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Member]:
        """The members of this kind in a plain run of a recipe."""
        return ()

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        """The rows that this kind adds to the results table: by default one for each of its members alone."""
        return [Row(member.title, (member.name,), member.family, (LAST, k)) for k, member in enumerate(cls.of(recipe))]


K = TypeVar("K", bound=type[Member])

LAST = 1000.0
"""The order of rows after those of all deep ensembles."""

KINDS: list[type[Member]] = []
"""All kinds of members, in the order of tables."""

METHODS: dict[str, type[Method]] = {}
"""The kinds that a recipe includes only if its `methods` name them, by that name."""


class Method(Member):
    """A kind of member that a recipe may include besides its modes and bridges, for comparison."""

    method: ClassVar[str]
    """The name in a recipe's `methods`."""

    @classmethod
    @abstractmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """The members that the name of the method stands for in a recipe."""

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Self]:
        """The usual ones if the recipe names the method, and those that it names individually."""
        named = [cls.parse(entry) for entry in recipe.methods]
        usual = cls.usual(recipe) if cls.method in recipe.methods else ()
        return list(dict.fromkeys([*usual, *(member for member in named if member is not None)]))

    @classmethod
    def order(cls, k: int) -> tuple[float, ...]:
        """The order of its k-th row: rows of a method together, after those of all deep ensembles and bridges."""
        return LAST, 1.0 + list(METHODS).index(cls.method), float(k)

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        """By default, one row for each of its members alone."""
        return [
            Row(member.title, (member.name,), member.family, cls.order(k)) for k, member in enumerate(cls.of(recipe))
        ]


class Numbered(Method):
    """A method whose members are told apart by one or two numbers, its fields, as in "mimo-2-x3"."""

    pattern: ClassVar[str]
    """The names of its members: a regular expression with a group of digits for each field."""
    between: ClassVar[str] = "-x"
    """What separates two numbers in a name."""
    omitted: ClassVar[int] = 1
    """The second number that names leave out."""

    @property
    def numbers(self) -> list[int]:
        """The numbers in its name."""
        first, *second = vars(self).values()
        return [first, *(number for number in second if number != self.omitted)]

    @property
    def name(self) -> str:
        """The method and the numbers."""
        return f"{self.method}-{self.between.join(map(str, self.numbers))}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From a name of the pattern."""
        match = re.fullmatch(cls.pattern, name)
        with_numbers: Callable[..., Self] = cls
        return with_numbers(*map(int, match.groups(cls.omitted))) if match else None


def register(kind: K) -> K:
    """Register a kind of member for recipes, tables, plots and the command line; a decorator."""
    known = [(other.__module__, other.__qualname__) for other in KINDS]
    if (kind.__module__, kind.__qualname__) in known:
        # A file that was edited and loaded again.
        KINDS[known.index((kind.__module__, kind.__qualname__))] = kind
    else:
        KINDS.append(kind)
    if issubclass(kind, Method):
        METHODS[kind.method] = kind
    return kind


def file_of_own_kinds() -> str:
    """The user's file that registered kinds of members in this process; empty if there is none."""
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


def row_plans(recipe: Recipe) -> list[Row]:
    """The rows of a recipe's results table, in order."""
    return sorted((row for kind in KINDS for row in kind.rows(recipe)), key=lambda row: row.order)
