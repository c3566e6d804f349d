"""Executors: where the jobs of a run are executed. The default is this process, on the cores of a CPU or on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from modebridge.data import Splits
from modebridge.errors import ModebridgeError
from modebridge.members import ArtefactData, Context, Making, Tensors
from modebridge.progress import no_bars
from modebridge.recipes import Recipe, RunData, check_recipe, facts_of, network_of
from modebridge.recipes.user_code import load_file
from modebridge.runs.plan import Job
from modebridge.training import Checkpoints, Engine, Report, side_by_side
from modebridge.types import Progress

__all__ = [
    "Executor",
    "Local",
    "Orders",
    "RunSpec",
    "context_of",
    "engine_for",
    "make_context",
    "make_job",
    "make_job_of",
]

_CONTEXTS: dict[RunSpec, Context] = {}
"""Contexts of runs whose jobs this process has made."""


@dataclass(frozen=True)
class RunSpec:
    """Everything that another process needs to create the same context; can be pickled.

    Args:
        recipe: the choices.
        seed: seed of every random choice.
        data: the folder of the data set's files.
        device: "auto", "cpu" or "cuda".
    """

    recipe: Recipe
    seed: int = 0
    data: str | None = None
    device: str = "auto"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Another process must load the user's kinds of members before it unpickles one of their jobs.
        if self.recipe.members_file:
            load_file(Path(self.recipe.members_file))


@dataclass(frozen=True)
class Orders:
    """What an executor needs to run jobs.

    Args:
        spec: the spec of the run, for executors that run jobs in other processes.
        context: the context of this process.
        read: returns the tensors of an existing artefact, by its place.
        checkpoints: returns the checkpoints of a job; None if there are none.
        begin: called when a job starts, with whether it starts from scratch rather than from a checkpoint.
        report: returns the callback for the epochs of a job.
        done: stores the results of a job; must be called in this process, as soon as the job is done.
    """

    spec: RunSpec
    context: Context
    read: Callable[[str], Tensors]
    checkpoints: Callable[[Job], Checkpoints | None]
    begin: Callable[[Job, bool], None]
    report: Callable[[Job], Report]
    done: Callable[[Job, Mapping[str, ArtefactData], float], None]

    def parents(self, job: Job) -> dict[str, Tensors]:
        """The tensors that a job needs, by place; all of them must exist."""
        return {place: self.read(place) for place in job.parents}


class Executor(Protocol):
    """Runs jobs anywhere: those of one wave, which do not depend on each other, or a whole graph."""

    whole: ClassVar[bool] = False
    """Whether it takes all missing jobs at once, parents before children, and waits for parents itself."""
    device: str | None = None
    """The type of device that it uses; None for that of this process."""
    most: int | None = None
    """Maximum number of artefacts per training job; None leaves it to their kind."""

    def execute(self, jobs: Sequence[Job], orders: Orders) -> None:
        """Run all jobs, and hand over the results of each."""
        ...


class Local(Executor):
    """On a CPU in parallel, one core each; on a GPU, or in several processes that train together, one at a time."""

    def execute(self, jobs: Sequence[Job], orders: Orders) -> None:
        """Run all jobs in this process."""

        def run(job: Job) -> None:
            start = time.perf_counter()
            checkpoints = orders.checkpoints(job)
            orders.begin(job, checkpoints is None or not checkpoints.path.exists())
            results = make_job(job, Making(orders.context, orders.parents(job), checkpoints, orders.report(job)))
            orders.done(job, results, time.perf_counter() - start)

        engine = orders.context.engine
        # One core even for a single job, so that sums over images do not depend on the number of cores.
        if jobs and jobs[0].kind.one_core and engine.device.type == "cpu" and engine.processes.size == 1:
            side_by_side([partial(run, job) for job in jobs])
            return
        # Processes that train together must train the same thing at the same time.
        for job in jobs:
            run(job)


def make_job(job: Job, making: Making) -> dict[str, ArtefactData]:
    """Make the artefacts of a job. Everything in a run folder is made by this function.

    Args:
        job: what to make.
        making: network, data, device and the tensors that the job needs; its checkpoints and callbacks.
    """
    with no_bars():  # the run shows its progress
        return job.kind.make(job.artefacts, making)


def make_job_of(
    spec: RunSpec,
    job: Job,
    parents: Mapping[str, Tensors],
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
) -> dict[str, ArtefactData]:
    """`make_job` in any process: the context is created once per process and run."""
    return make_job(job, Making(context_of(spec), parents, checkpoints, report))


def context_of(spec: RunSpec, splits: Callable[[], Splits | None] = lambda: None) -> Context:
    """The context of a run in this process.

    Args:
        spec: the spec of the run.
        splits: returns the images if they are already loaded; called once.
    """
    if spec not in _CONTEXTS:
        _CONTEXTS[spec] = make_context(spec, engine_for(spec.recipe, spec.device), splits=splits())
    return _CONTEXTS[spec]


def make_context(
    spec: RunSpec, engine: Engine, progress: Progress | None = None, splits: Splits | None = None
) -> Context:
    """The network and images of a run on a device.

    Args:
        spec: the spec of the run.
        engine: where and how to train.
        progress: called with the progress of the work.
        splits: the images, if already loaded.
    """
    recipe = spec.recipe
    check_recipe(recipe)
    data = RunData(recipe, spec.seed, spec.data, engine.device, splits)
    if facts_of(recipe) is None:  # can only be checked with the data
        check_recipe(recipe, data)
    context = Context(recipe, network_of(recipe, data.facts), spec.seed, data, engine)
    if progress is not None:
        context.progress = progress
    return context


def engine_for(recipe: Recipe, device: str = "auto") -> Engine:
    """The engine for a recipe, unless the user chooses another device.

    Args:
        recipe: "cpu" in it keeps small runs off a GPU, where compiling takes longer than training.
        device: "auto", "cpu", or "cuda".
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ModebridgeError(f"Expected device to be auto, cpu or cuda, but got '{device}'; choose one.")
    if device == "cpu" or (device == "auto" and recipe.device == "cpu"):
        return Engine()
    if device == "cuda" and not torch.cuda.is_available():
        return Engine(torch.device("cuda"))  # raises the error
    return Engine.best()
