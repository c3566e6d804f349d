"""A run as a graph: what to make, from what, in which order; built without loading weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from modebridge.members import Artefact, Setting, key_of
from modebridge.recipes import Recipe

__all__ = ["Job", "Plan", "Stage", "Store", "plan_of"]


class Store(Protocol):
    """What a plan needs from the store of a run's artefacts: a run folder, or memory."""

    def meta(self, place: str) -> dict[str, Any]:
        """The metadata of an artefact; empty if it is missing or damaged."""
        ...


@dataclass(frozen=True)
class Stage:
    """One artefact in the graph.

    Args:
        artefact: the artefact.
        key: a hash of everything that it is made from, including its parents' keys.
        parents: the places of its parents.
    """

    artefact: Artefact
    key: str
    parents: tuple[str, ...]

    def is_in(self, store: Store) -> bool:
        """Whether the store has it, made from the same ingredients and from its parents as they are now."""
        meta = store.meta(self.artefact.place)
        if meta.get("key") != self.key:
            return False
        # The same recipe gives other bits on another machine: a parent that was made again there is a new parent.
        made_from = meta.get("inputs", {})
        now = {place: store.meta(place).get("hash") for place in self.parents}
        return all(hash is None or made_from.get(place) == hash for place, hash in now.items())


@dataclass(frozen=True)
class Job:
    """Artefacts of one kind that are made together; can be pickled and sent to another process."""

    stages: tuple[Stage, ...]

    @property
    def artefacts(self) -> list[Artefact]:
        """The artefacts to make."""
        return [stage.artefact for stage in self.stages]

    @property
    def kind(self) -> type[Artefact]:
        """The class of all of them."""
        return type(self.stages[0].artefact)

    @property
    def name(self) -> str:
        """Its name in checkpoints."""
        first = self.stages[0].artefact.name
        return first if len(self.stages) == 1 else f"{len(self.stages)}-from-{first}"

    @property
    def parents(self) -> list[str]:
        """The places of all parents."""
        return list(dict.fromkeys(parent for stage in self.stages for parent in stage.parents))

    @property
    def title(self) -> str:
        """Its name for users, such as "curves 0-1"."""
        return f"{self.kind.folder} {self.name}"

    def epochs(self, recipe: Recipe) -> int:
        """Number of training epochs."""
        return self.stages[0].artefact.epochs(recipe)

    def saved_as(self, way: str) -> str:
        """The name of its checkpoint's file.

        Args:
            way: how steps are run (`Engine.way`); a position is only valid for the same way.
        """
        key = key_of(way, *(stage.key for stage in self.stages))
        return f"{self.kind.folder}-{self.name}-{key[:12]}"


@dataclass(frozen=True)
class Plan:
    """The stages of a run, parents before their children.

    Args:
        stages: stages by place.
        several: how many networks are trained together.
        most: maximum number of artefacts to train together, so that many devices get jobs; None for no limit.
    """

    stages: Mapping[str, Stage]
    several: int = 1
    most: int | None = None

    def waves(self) -> Iterator[list[Stage]]:
        """The stages in groups that are made one after another; stages of a group do not depend on each other.

        A kind waits until all of it can be made, so that all bridges are trained in one pass, and all members predict
        in one. If stages of a kind wait for each other (a chain), the kind proceeds before those that wait for it.
        """
        left = dict(self.stages)
        while left:
            ready = [stage for stage in left.values() if not any(parent in left for parent in stage.parents)]
            kinds = dict.fromkeys(type(stage.artefact) for stage in ready)
            waiting = {type(stage.artefact) for stage in left.values() if stage not in ready}
            complete = [kind for kind in kinds if kind not in waiting]
            chains = [kind for kind in kinds if self._waits_for(kind, left) <= {kind}] if not complete else []
            kind = next(iter([*complete, *chains, *kinds]))
            wave = [stage for stage in ready if type(stage.artefact) is kind]
            for stage in wave:
                del left[stage.artefact.place]
            yield wave

    def _waits_for(self, kind: type[Artefact], left: Mapping[str, Stage]) -> set[type[Artefact]]:
        """The kinds of everything that must be made before all artefacts of a kind are complete."""
        places = [place for place, stage in left.items() if type(stage.artefact) is kind]
        before: dict[str, None] = {}
        while places:
            new = [parent for parent in left[places.pop()].parents if parent in left and parent not in before]
            before |= dict.fromkeys(new)
            places += new
        return {type(left[place].artefact) for place in before}

    def jobs(self, stages: Sequence[Stage]) -> list[Job]:
        """Group stages of one wave into jobs."""
        if not stages:
            return []
        artefact = stages[0].artefact
        size = {"one": 1, "several": self.several, "all": len(stages)}[artefact.together]
        if artefact.trained and self.most is not None:
            size = min(size, self.most)
        return [Job(tuple(stages[k : k + size])) for k in range(0, len(stages), size)]

    def missing(self, store: Store) -> list[Job]:
        """Jobs for everything that is not in the store, in the order in which it will be made."""
        return [job for wave in self.waves() for job in self.jobs([stage for stage in wave if not stage.is_in(store)])]

    def runnable_jobs(self, store: Store) -> list[Job]:
        """The missing jobs that can run now, one after another, without checking the store in between.

        Whether an existing artefact must be made again may depend on the bits of one that is still missing; such an
        artefact, and all that is made from it, is left for the next call.
        """
        jobs: list[Job] = []
        made: set[str] = set()
        unsure: set[str] = set()
        for wave in self.waves():
            missing: list[Stage] = []
            for stage in wave:
                exists = stage.is_in(store)
                if unsure.intersection(stage.parents) or (exists and made.intersection(stage.parents)):
                    unsure.add(stage.artefact.place)
                elif not exists:
                    missing.append(stage)
                    made.add(stage.artefact.place)
            jobs += self.jobs(missing)
        return jobs


def plan_of(
    artefacts: Sequence[Artefact],
    setting: Setting,
    keys: Mapping[str, str],
    device: str | None = None,
    most: int | None = None,
) -> Plan:
    """The graph of some artefacts and everything that they need.

    Args:
        artefacts: the artefacts to make.
        setting: determines their ingredients.
        keys: keys of artefacts that were not made here, by place; they have no parents.
        device: the type of device that they are made on; None for that of this process.
        most: maximum number of artefacts to train together.
    """
    stages: dict[str, Stage] = {}

    def add(artefact: Artefact) -> None:
        place = artefact.place
        if place in stages:
            return
        if place in keys:
            stages[place] = Stage(artefact, keys[place], ())
            return
        parents = artefact.parents(setting.recipe)
        for parent in parents:
            add(parent)
        made_from = sorted(artefact.ingredients(setting).items())
        inherited = [stages[parent.place].key for parent in parents]
        key = key_of(artefact.folder, artefact.name, made_from, *inherited)
        stages[place] = Stage(artefact, key, tuple(parent.place for parent in parents))

    for artefact in artefacts:
        add(artefact)
    several = setting.recipe.together if (device or setting.engine.device.type) == "cuda" else 1
    return Plan(stages, several, most)
