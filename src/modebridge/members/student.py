"""Students: one network distilled from the modes of a run; and their control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

from modebridge.members.member import ArtefactData, Made, Member, Node, Parents
from modebridge.members.network import BASES, ModeMember, OneNetwork, TrainedNetwork, networks
from modebridge.members.setting import Setting
from modebridge.modes import Mode
from modebridge.objectives import StudentPlan
from modebridge.recipes import Recipe
from modebridge.scoring import Row
from modebridge.training import TrainConfig, fit_students
from modebridge.training.students import STUDENT_MIXUP

CASCADE = 1.2
"""The average cost of a student backed by its teachers, in the results table."""

Source: TypeAlias = Literal["modes", "labels"]
"""The teachers: the first modes, or none but the (mixed-up) labels."""

NAMES = {"modes": "distilled network", "labels": "one network, on mixed labels"}
NOTES = {
    "modes": "one more network, trained to predict the mean of all",
    "labels": "no teacher: the same mixup and epochs on labels",
}


@dataclass(frozen=True)
class StudentMember(OneNetwork, TrainedNetwork):
    """A network trained from a random start to predict its teachers' mean; all missing ones in one pass.

    Those of all modes (`count` 0) are the method "distilled", the others are "students".

    >>> [StudentMember().name, StudentMember(0, "modes", 2).name, StudentMember(1, "labels").name]
    ['distilled-0', 'student-2', 'student-labels-1']
    """

    number: int = 0
    source: Source = "modes"
    count: int = 0
    method = "students"
    family = "distilled"
    folder = "students"
    stage = "distilled network"
    pattern = r"(?:distilled|student-(?:(?P<count>[1-9]\d*)|(?P<source>labels)))(?:-(?P<number>\d+))?"
    together = "all"

    @property
    def of_all(self) -> bool:
        return self.source == "modes" and not self.count

    @property
    def name(self) -> str:
        if self.of_all:
            return f"distilled-{self.number}"
        teachers = str(self.count) if self.source == "modes" else self.source
        return f"student-{teachers}" + (f"-{self.number}" if self.number else "")

    @property
    def title(self) -> str:
        return "distilled network" if self == type(self)() else self.name

    @property
    def place(self) -> str:
        return f"{self.folder}/{self.number}-{self.source}" + (f"-{self.count}" if self.count else "")

    def made_from(self, recipe: Recipe) -> tuple[Member, ...]:
        return tuple(ModeMember(k) for k in range(self.count or recipe.modes)) if self.source == "modes" else ()

    def belongs(self, recipe: Recipe) -> bool:
        return self.count <= recipe.modes

    def nodes(self, recipe: Recipe) -> tuple[Node, ...]:
        return (replace(self, count=0) if self.count == recipe.modes else self,)

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        if self.source == "labels":
            return ()
        return tuple(BASES[recipe.base](k) for k in range(self.count or recipe.modes))  # before alignment

    def training(self, recipe: Recipe) -> TrainConfig:
        return replace(recipe.training("mode"), epochs=recipe.student_epochs or recipe.mode.epochs, mixup=STUDENT_MIXUP)

    @property
    def purpose(self) -> tuple[str | int, ...]:
        return "student", self.number

    def ingredients(self, setting: Setting) -> dict[str, object]:
        seeds = setting.seed_of(*self.purpose), setting.seed_of("students")
        return {**super().ingredients(setting), "seed": seeds}

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        net, starts = setting.net, [Mode.from_module(node.start(setting)) for node in group]
        trained = fit_students(
            net,
            {
                node.name: StudentPlan(net, start, node._teachers(setting, parents))
                for node, start in zip(group, starts, strict=True)
            },
            setting.data.train("students"),
            config=replace(config, seed=setting.seed_of("students")),
            valid=setting.data.valid(),
        )
        return {name: ArtefactData(mode.state) for name, mode in trained.items()}

    def _teachers(self, setting: Setting, tensors: Parents) -> tuple[Mode, ...]:
        return tuple(setting.load_mode(tensors[parent.place]) for parent in self.parents(setting.recipe))

    @classmethod
    def work(cls, group: Sequence[Self], setting: Setting) -> float:
        recipe, base = setting.recipe, setting.base_cost.flops
        teachers = base * max((node.count or recipe.modes for node in group if node.source == "modes"), default=0)
        return super().work(group, setting) + teachers

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        two = [cls(0, "modes", 2)] if recipe.modes > 2 else []
        return [cls(0, "labels"), *two]

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Self]:
        first = [cls()] if "distilled" in recipe.methods else []
        members = dict.fromkeys([*first, *super().of(recipe)])
        return sorted(members, key=lambda member: not member.of_all)

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        rows = []
        for k, member in enumerate(cls.of(recipe)):
            name = f"distilled from {networks(member.count)}" if member.count else NAMES[member.source]
            name += f", start {member.number}" if member.number else ""
            note = "" if member.count else NOTES[member.source]
            role = "distilled" if member == cls() else ""
            rows.append(Row(name, (member.name,), cls.family, cls.order(k), note, role))
        cascade = Row(
            "cascade of the distilled network and two more",
            (cls().name, ModeMember(0).name, ModeMember(1).name),
            "cascade",
            cls.order(sum(member.of_all for member in cls.of(recipe)) - 0.5),
            "the distilled network, and two others for the images that it is least sure of (the cost is an average)",
            average_cost=CASCADE,
        )
        return [*rows, cascade] if cls() in cls.of(recipe) else rows
