"""What a run will do: what exists, what is missing, in which order it is made, and about how long that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.members import ModeWeights, Setting
from modebridge.recipes import DataFacts
from modebridge.runs.data_facts import facts_for
from modebridge.runs.estimate import rate_here
from modebridge.runs.figure_data import everything_in
from modebridge.runs.folder import RunFolder
from modebridge.runs.given_modes import keys_of_given
from modebridge.runs.plan import plan_of
from modebridge.runs.retraining import trained_again
from modebridge.runs.schedule import work_of_job

__all__ = ["Glance", "Step", "forecast", "planning_context"]


@dataclass(frozen=True)
class Step:
    """One wave of a run.

    Args:
        name: its name for users (`Artefact.step`).
        folder: the folder of its artefacts.
        there: names of those that exist.
        missing: names of those to make, in groups that are made together.
        epochs: training epochs of each; 0 if it is not trained.
        seconds: estimated time on this machine; None if unknown.
    """

    name: str
    folder: str
    there: list[str]
    missing: list[list[str]]
    epochs: int
    seconds: float | None


def forecast(spec: Setting, folder: RunFolder | None, given: Mapping[int, str]) -> tuple[list[Step], list[str]]:
    """The steps of a run, without loading weights or making anything.

    Args:
        spec: the spec of the run.
        folder: its folder; None if there is none yet.
        given: ids of modes trained elsewhere that will be passed in, by number.

    Returns:
        The steps, and notices: why the data cannot be read, and what exists but will be trained again.
    """
    setting, problem = planning_context(spec, folder)
    recipe = spec.recipe
    store = Glance(folder)
    plan = plan_of(everything_in(recipe), setting, keys_of_given(folder, store, recipe.modes, given))
    passed = {ModeWeights(k).place for k in given}
    rate = 0.0
    steps: list[Step] = []
    for wave in plan.waves():
        missing = [stage for stage in wave if stage.artefact.place not in passed and not stage.is_in(store)]
        jobs = plan.jobs(missing)
        seconds = None
        if not missing:
            seconds = 0.0
        elif wave[0].artefact.epochs(recipe):
            rate = rate or rate_here(recipe)
            seconds = sum(work_of_job(job, setting) for job in jobs) / rate
        steps.append(
            Step(
                wave[0].artefact.step(),
                wave[0].artefact.folder,
                [stage.artefact.name for stage in wave if stage not in missing],
                [[stage.artefact.name for stage in job.stages] for job in jobs],
                wave[0].artefact.epochs(recipe),
                seconds,
            )
        )
    again = trained_again(plan, store, setting, passed)
    return steps, [*([f"The data cannot be read: {problem}"] if problem else []), *([again] if again else [])]


@dataclass(frozen=True)
class Glance:
    """A folder by its metadata only: weights are neither loaded nor verified."""

    folder: RunFolder | None

    def meta(self, place: str) -> dict[str, Any]:
        """The metadata of an artefact."""
        return self.folder.peek(place) if self.folder is not None else {}


def planning_context(spec: Setting, folder: RunFolder | None) -> tuple[Setting, str]:
    """A setting for planning, and the reason why the data cannot be read, if any."""
    try:
        spec.check()
        spec.data  # noqa: B018 - read now
        return spec, ""
    except ModebridgeError as error:
        # Keys need the data; as long as no artefact exists, nothing depends on them.
        if folder is not None and folder.places():
            raise
        vars(spec)["data"] = _Unread(facts_for(spec.recipe))
        return spec, str(error)


@dataclass(frozen=True)
class _Unread:
    """Data that is not available: enough to plan a run in which nothing has been made."""

    facts: DataFacts
    learned_from = scored_on = fed_as = ""

    def few(self) -> Tensor:
        """Two images of noise."""
        return torch.rand(2, *self.facts.image or ())
