"""Students: one network distilled from the modes of a run, or from a mode with its bridges; and their control."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

from modebridge import seeds
from modebridge.ensembles import Ensemble
from modebridge.members.artefact import Artefact, ArtefactData, Parents, Tensors, TrainedWeights
from modebridge.members.bridge_member import BridgeMember
from modebridge.members.member import Member, Method
from modebridge.members.mode_member import BASES, ModeMember, OneNetwork
from modebridge.members.setting import Setting
from modebridge.modes import Mode
from modebridge.objectives import StudentPlan, Teacher
from modebridge.recipes import Recipe
from modebridge.scoring import Row
from modebridge.training import TrainConfig, fit_students

__all__ = ["DistilledMember", "StudentMember", "StudentWeights"]

MIXUP = 1.0
"""Alpha of the students' mixup."""

CASCADE = 1.2
"""The average cost of a student backed by its teachers, in the results table."""

Source: TypeAlias = Literal["modes", "labels", "bridged"]
"""The teachers: the first modes, none but the (mixed-up) labels, or mode 0 with its type I bridges."""


@dataclass(frozen=True)
class StudentWeights(TrainedWeights):
    """A network trained from a random start to predict its teachers' mean; all missing ones in one pass.

    Args:
        number: number of the random start.
        source: the teachers.
        count: number of modes; 0 for all of the recipe.
    """

    number: int
    source: Source = "modes"
    count: int = 0
    folder = "students"
    stage = "students"
    together = "all"

    @property
    def name(self) -> str:
        """Its start and its teachers."""
        return f"{self.number}-{self.source}" + (f"-{self.count}" if self.count else "")

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its teachers."""
        if self.source == "modes":
            return tuple(BASES[recipe.base](k) for k in range(self.count or recipe.modes))
        if self.source == "bridged":
            artefacts = [artefact for bridge in _bridges(recipe) for artefact in bridge.artefacts(recipe)]
            return tuple(dict.fromkeys(artefacts))
        return ()

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """Data, network, seeds, training and mixup."""
        return {
            "data": setting.data.fed_as,
            "net": setting.network.key,
            "seed": (setting.seed_of("student", self.number), setting.seed_of("students")),
            "training": self.training(setting.recipe).key,
            "mixup": MIXUP,
        }

    def training(self, recipe: Recipe) -> TrainConfig:
        """That of a mode, with as many epochs unless the recipe sets them."""
        return replace(recipe.training("mode"), epochs=recipe.student_epochs or recipe.mode.epochs)

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Train them in one pass."""
        plans = {
            artefact.name: StudentPlan(
                setting.net,
                Mode.from_module(setting.network.build(seeds.generator(setting.seed, "student", artefact.number))),
                tuple(artefact._teachers(setting, parents)),
            )
            for artefact in group
        }
        trained = fit_students(
            setting.net,
            plans,
            setting.data.train("students"),
            replace(config, seed=setting.seed_of("students"), mixup=MIXUP),
            valid=setting.data.valid(),
        )
        return {name: ArtefactData(mode.state) for name, mode in trained.items()}

    def _teachers(self, setting: Setting, tensors: Mapping[str, Tensors]) -> list[Teacher]:
        if self.source == "bridged":
            predictors = [bridge.load(setting, tensors) for bridge in _bridges(setting.recipe)]
            modes = list(predictors[0].networks.values())
            return [Ensemble(setting.net, modes, [predictor.bridge for predictor in predictors])]
        return [setting.load_mode(tensors[parent.place]) for parent in self.parents(setting.recipe)]

    @classmethod
    def work(cls, group: Sequence[Self], setting: Setting) -> float:
        """Forward and backward for each student, and one forward pass per teacher."""
        recipe, base = setting.recipe, setting.base_cost.flops
        counts = [artefact.count or recipe.modes for artefact in group if artefact.source == "modes"]
        teachers = base * max(counts, default=0)
        if any(artefact.source == "bridged" for artefact in group):
            teachers += base + sum(setting.body("I", bridge.size).flops for bridge in _bridges(recipe))
        return super().work(group, setting) + teachers


def _bridges(recipe: Recipe) -> list[BridgeMember]:
    """The type I bridges on mode 0, of the first size."""
    return [BridgeMember("I", 0, j, recipe.sizes[0]) for i, j in recipe.curves() if i == 0]


@dataclass(frozen=True)
class DistilledMember(Method, OneNetwork):
    """A student of all modes.

    >>> DistilledMember(0).name
    'distilled-0'
    """

    number: int
    method = "distilled"
    family = "distilled"

    @property
    def name(self) -> str:
        """With the number of its start."""
        return f"distilled-{self.number}"

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights."""
        return (StudentWeights(self.number),)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "distilled-2"."""
        match = re.fullmatch(r"distilled-(\d+)", name)
        return cls(int(match[1])) if match else None

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """The first."""
        return [cls(0)]

    def made_from(self, recipe: Recipe) -> tuple[Member, ...]:
        """All modes."""
        return tuple(ModeMember(k) for k in range(recipe.modes))

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        """Each alone, and the first one in a cascade, followed by two of its teachers."""
        students = cls.of(recipe)
        rows = [
            Row(
                f"student of DE-{recipe.modes}" + (f", start {member.number}" if member.number else ""),
                (member.name,),
                cls.family,
                cls.order(k),
                "one network trained on the mean prediction of all modes",
            )
            for k, member in enumerate(students)
        ]
        cascade = Row(
            f"student, then DE-2, cascade x{CASCADE:g}",
            (cls(0).name, ModeMember(0).name, ModeMember(1).name),
            "cascade",
            cls.order(len(rows)),
            "the student, plus two of its teachers for its least confident images; average FLOPs",
            average_cost=CASCADE,
        )
        return [*rows, cascade] if cls(0) in students else rows


@dataclass(frozen=True)
class StudentMember(Method, OneNetwork):
    """A student of teachers other than all modes.

    Args:
        source: the teachers.
        count: number of modes, counted from the first.
        number: number of the random start.

    >>> StudentMember("modes", 2).name, StudentMember("labels").name, StudentMember("bridged", number=1).name
    ('student-2', 'student-labels', 'student-bridged-1')
    """

    source: Source
    count: int = 0
    number: int = 0
    method = "students"
    family = "distilled"

    @property
    def name(self) -> str:
        """The teachers, and the start if it is not the first."""
        teachers = str(self.count) if self.source == "modes" else self.source
        return f"student-{teachers}" + (f"-{self.number}" if self.number else "")

    @property
    def title(self) -> str:
        """The teachers."""
        teachers = {"modes": f"DE-{self.count}", "labels": "labels", "bridged": "DE-1 + bridges I"}[self.source]
        return f"student of {teachers}" + (f", start {self.number}" if self.number else "")

    def made_from(self, recipe: Recipe) -> tuple[Member, ...]:
        """Its teachers."""
        if self.source == "bridged":
            return ModeMember(0), *_bridges(recipe)
        return tuple(ModeMember(k) for k in range(self.count))

    def belongs(self, recipe: Recipe) -> bool:
        """Whether the recipe has that many modes."""
        return self.count <= recipe.modes

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights; a student of all modes is the one called distilled."""
        count = 0 if self.count == recipe.modes else self.count
        return (StudentWeights(self.number, self.source, count),)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "student-2", "student-labels" or "student-bridged-1"."""
        match = re.fullmatch(r"student-([1-9]\d*|labels|bridged)(?:-([1-9]\d*))?", name)
        if match is None:
            return None
        number = int(match[2] or 0)
        if match[1] == "labels" or match[1] == "bridged":
            return cls("labels" if match[1] == "labels" else "bridged", number=number)
        return cls("modes", int(match[1]), number)

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """The control that learns only labels, and students of cheaper teachers."""
        two = [cls("modes", 2)] if recipe.modes > 2 else []
        return [cls("labels"), *two, cls("bridged")]

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        """Each alone, with a note for the control."""
        notes = {"labels": "no teacher: the same mixup and epochs on labels", "bridged": "taught by DE-1 and bridges"}
        return [
            Row(member.title, (member.name,), member.family, cls.order(k), notes.get(member.source, ""))
            for k, member in enumerate(cls.of(recipe))
        ]
