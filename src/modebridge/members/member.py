"""What a run makes, before anything is made: `Node`, something that is kept; `Member`, what predicts in ensembles."""

from __future__ import annotations

import hashlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, TypeVar

from torch import Tensor, nn

from modebridge.bridges import Bridge
from modebridge.errors import ModebridgeError, near
from modebridge.members.setting import Setting
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.recipes.user_code import USER
from modebridge.scoring import MemberCost, Row
from modebridge.training import TrainConfig
from modebridge.trees import fingerprint

Tensors: TypeAlias = Mapping[str, Tensor]
Parents: TypeAlias = Mapping[str, Tensors]
"""The tensors of all parents, by place."""
Loaded: TypeAlias = Mode | nn.Module
"""A member with its weights: a mode of the recipe's network; a `Bridge` on the features of the modes that it reads; or
a module of its own with `members(inputs)`, logits (M, B, K) that each count once in the mean."""
LAST = 1000.0
"""The order of rows after those of all deep ensembles."""


class ArtefactData(NamedTuple):
    """What is kept of a node: its tensors, and metadata."""

    tensors: Tensors
    metadata: Mapping[str, Any] = {}


Made: TypeAlias = dict[str, ArtefactData]
"""The results of making nodes, by name."""


class Node(ABC):
    """A frozen dataclass that says what something is made from and how; can be pickled, holds no weights."""

    folder: ClassVar[str]
    """The folder it is kept in."""
    stage: ClassVar[str]
    """The name of this work in progress and times."""
    trained: ClassVar[bool] = False
    """Whether it is trained, with epochs, checkpoints and metrics."""
    one_core: ClassVar[bool] = True
    """Whether several are made in parallel on a CPU, one core each, instead of one after another on all cores."""
    together: ClassVar[Literal["one", "several", "all"]] = "one"
    """How many of a step are made together: one; several on a GPU, as the recipe says; all in one pass."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name."""

    @property
    def place(self) -> str:
        """Its path in the run folder, used to refer to it everywhere."""
        return f"{self.folder}/{self.name}"

    @property
    def label(self) -> str:
        """Its name in its folder."""
        return self.place.partition("/")[2]

    @classmethod
    def step(cls) -> str:
        """Nodes of one step are made together; the name of its folder, unless several steps share the folder."""
        return cls.folder

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        """The nodes that must be made first, and are passed to `make`."""
        return ()

    @abstractmethod
    def ingredients(self, setting: Setting) -> dict[str, object]:
        """Everything that determines it besides its parents; a different value makes it again."""

    def training(self, recipe: Recipe) -> TrainConfig:
        """The training settings; by default it is not trained."""
        return TrainConfig(epochs=0)

    @classmethod
    @abstractmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        """Make nodes of one step together; returns the results by name.

        `config` has the training settings of the group with device, checkpoints and callbacks. What is not trained
        reports its batches to the callbacks instead of epochs.
        """

    @classmethod
    def work(cls, group: Sequence[Self], setting: Setting) -> float:
        """Multiply-adds per image and epoch of training a group together; a backward pass counts as two forward."""
        return 3 * setting.base_cost.flops * len(group)


class Member(ABC):
    """One member of ensembles, before anything is trained. A kind that is trained is also a `Node`: its weights."""

    family: ClassVar[str]
    """The name in plots of ensembles with such members."""
    usable: ClassVar[bool] = True
    """Whether it may be part of a deployed ensemble; False for members that only teach others."""
    alone: ClassVar[bool] = False
    """Whether it is only used alone, because its network differs from the recipe's."""
    pattern: ClassVar[str]
    """The names of this kind: a regular expression with a named group for each field."""
    method: ClassVar[str] = ""
    """The name in a recipe's `methods`, without which a recipe does not include this kind."""

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
        """The modes whose features it reads at prediction time; they must run."""
        return ()

    def made_from(self, recipe: Recipe) -> tuple[Member, ...]:
        """The members that it is made from; if one of them is replaced, its logits are out of date."""
        return self.reads

    @property
    def imitates(self) -> Member | None:
        """The member whose output it was trained to reproduce, if any."""
        return None

    def belongs(self, recipe: Recipe) -> bool:
        """Whether a recipe can include it."""
        return all(member.belongs(recipe) for member in self.made_from(recipe))

    def nodes(self, recipe: Recipe) -> tuple[Node, ...]:
        """What it is loaded from: by default itself, if it is trained."""
        return (self,) if isinstance(self, Node) else ()

    @abstractmethod
    def load(self, setting: Setting, tensors: Parents) -> Loaded:
        """Load it for prediction from the tensors of its nodes, by place."""

    @abstractmethod
    def cost(self, setting: Setting) -> MemberCost:
        """What it adds to the cost of a forward pass."""

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The member of this kind with a name; None if it is not a name of this kind."""
        match = re.fullmatch(cls.pattern, name)
        return cls(**{field: _value(text) for field, text in match.groupdict().items() if text}) if match else None

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """The members that the name of the method stands for in a recipe."""
        return [cls()]

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Self]:
        """The members of this kind in a plain run of a recipe: by default those that its `methods` name."""
        named = [cls.parse(entry) for entry in recipe.methods]
        usual = cls.usual(recipe) if cls.method in recipe.methods else ()
        return list(dict.fromkeys([*usual, *(member for member in named if member is not None)]))

    @classmethod
    def order(cls, k: float) -> tuple[float, ...]:
        """The order of its k-th row: after those of all deep ensembles, by method."""
        return LAST, 1.0 + [*METHODS, ""].index(cls.method), float(k)

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        """The rows that this kind adds to the results table: by default one for each of its members alone."""
        return [Row(one.title, (one.name,), one.family, cls.order(k)) for k, one in enumerate(cls.of(recipe))]


def _value(text: str) -> int | float | str:
    return int(text) if text.isdigit() else float(text) if re.fullmatch(r"\d+\.\d+", text) else text


K = TypeVar("K", bound=type[Member])
KINDS: list[type[Member]] = []
"""All kinds of members, in the order of tables."""
METHODS: dict[str, type[Member]] = {}
"""The kinds that a recipe includes only if its `methods` name them, by that name."""


def register(kind: K) -> K:
    """Register a kind of member for recipes, tables, plots and the command line; a decorator."""
    # A user's file that was edited, or copied elsewhere, and loaded again replaces its kinds.
    known = [_home(other) for other in KINDS]
    if _home(kind) in known:
        KINDS[known.index(_home(kind))] = kind
    else:
        KINDS.append(kind)
    if kind.method:
        METHODS[kind.method] = kind
    return kind


def _home(kind: type[Member]) -> tuple[str, str]:
    return "" if kind.__module__.startswith(USER) else kind.__module__, kind.__qualname__


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
    """The rows of a recipe's results table, in order, not scored yet."""
    return sorted((row for kind in KINDS for row in kind.rows(recipe)), key=lambda row: row.order)


def key_of(*parts: object) -> str:
    """A hash of everything that determines a node."""
    return hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()


def identity(member: Member, loaded: Loaded) -> str:
    """A hash of a loaded member's weights and of what it reads, which identifies its logits."""
    if isinstance(loaded, Mode):
        return loaded.id
    reads = loaded.reads if isinstance(loaded, Bridge) else member.name
    return key_of(fingerprint(loaded.state_dict()), reads)


def nodes_of(members: Iterable[Member], recipe: Recipe) -> tuple[Node, ...]:
    """What some members are loaded from, each once."""
    return tuple(dict.fromkeys(node for member in members for node in member.nodes(recipe)))


def nodes_behind(nodes: Iterable[Node], recipe: Recipe, given: Container[str] = ()) -> list[Node]:
    """Some nodes and all that they need, each once, parents first; those at the places `given` need nothing."""
    found: dict[str, Node] = {}

    def add(node: Node) -> None:
        if node.place not in found:
            for parent in node.parents(recipe) if node.place not in given else ():
                add(parent)
            found[node.place] = node

    for node in nodes:
        add(node)
    return list(found.values())


def base_epochs(members: Iterable[Member], setting: Setting) -> float:
    """The work of training some members and all that they depend on, in epochs of one network."""
    # Frozen networks that several nodes of a group share run once.
    groups: dict[tuple[str, int], list[Node]] = {}
    for node in nodes_behind(nodes_of(members, setting.recipe), setting.recipe):
        groups.setdefault((node.step(), node.training(setting.recipe).epochs), []).append(node)
    work = sum(type(group[0]).work(group, setting) * epochs for (_, epochs), group in groups.items() if epochs)
    return work / (3 * setting.base_cost.flops)
