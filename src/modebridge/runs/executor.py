"""Who makes the jobs of a run: today this process, on the cores of a CPU or on a GPU; anything else can be given."""

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
from modebridge.members import Context, Made, Making, Tensors
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
"""Of runs whose jobs this process has made."""


@dataclass(frozen=True)
class RunSpec:
    """Everything from which another process can make the same context; it can be pickled.

    Args:
        recipe: the choices.
        seed: of every random choice.
        data: the folder of the data set's files.
        device: "auto", "cpu" or "cuda".
    """

    recipe: Recipe
    seed: int = 0
    data: str | None = None
    device: str = "auto"

    def __reduce__(self) -> tuple[object, ...]:
        # Another process must know the user's kinds of members before it sees a job of theirs.
        return _unpickled, (self.recipe, self.seed, self.data, self.device)


def _unpickled(recipe: Recipe, *rest: Any) -> RunSpec:
    if recipe.members_file:
        load_file(Path(recipe.members_file))
    return RunSpec(recipe, *rest)


@dataclass(frozen=True)
class Orders:
    """What an executor needs to do some jobs.

    Args:
        spec: of the run, for executors that make jobs in other processes.
        context: of this process.
        read: gives the tensors of an artefact that is there, by its place.
        checkpoints: gives the place where a job saves itself; None where there is none.
        begin: told that a job begins, and whether from the beginning rather than from a checkpoint.
        report: gives what a job tells its epochs to.
        done: keeps what a job has made; must be called in this process, as soon as the job is done.
    """

    spec: RunSpec
    context: Context
    read: Callable[[str], Tensors]
    checkpoints: Callable[[Job], Checkpoints | None]
    begin: Callable[[Job, bool], None]
    report: Callable[[Job], Report]
    done: Callable[[Job, Mapping[str, Made], float], None]

    def parents(self, job: Job) -> dict[str, Tensors]:
        """The tensors that a job needs, by place; all of them must be there."""
        return {place: self.read(place) for place in job.parents}


class Executor(Protocol):
    """Does jobs anywhere: those of one wave, which do not need each other, or a whole graph."""

    whole: ClassVar[bool] = False
    """Whether it takes all that is missing at once, parents before their children, and waits for parents by itself."""
    device: str | None = None
    """The kind of device that it makes things on; None for that of this process."""
    most: int | None = None
    """How many artefacts a job of training has at most; None leaves it to their kind."""

    def execute(self, jobs: Sequence[Job], orders: Orders) -> None:
        """Do all of them, and hand over what each has made."""
        ...


class Local(Executor):
    """On a CPU side by side, one core each; on a GPU, or in several processes that train together, in turn."""

    def execute(self, jobs: Sequence[Job], orders: Orders) -> None:
        """Do all of them here."""

        def do(job: Job) -> None:
            begin = time.perf_counter()
            checkpoints = orders.checkpoints(job)
            orders.begin(job, checkpoints is None or not checkpoints.path.exists())
            made = make_job(job, Making(orders.context, orders.parents(job), checkpoints, orders.report(job)))
            orders.done(job, made, time.perf_counter() - begin)

        engine = orders.context.engine
        # One core also where there is a single job: sums over images then do not depend on the number of cores.
        if jobs and jobs[0].kind.one_core and engine.device.type == "cpu" and engine.processes.size == 1:
            side_by_side([partial(do, job) for job in jobs])
            return
        # Processes that train together must train the same thing at the same time.
        for job in jobs:
            do(job)


def make_job(job: Job, making: Making) -> dict[str, Made]:
    """Make the artefacts of a job: the one function by which everything in a run folder comes into being.

    Args:
        job: what to make.
        making: network, data, device, the tensors that the job needs; where it saves itself, and whom it tells.
    """
    return job.kind.make(job.artefacts, making)


def make_job_of(
    spec: RunSpec,
    job: Job,
    parents: Mapping[str, Tensors],
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
) -> dict[str, Made]:
    """The same in any process: the context is made once per process and run."""
    return make_job(job, Making(context_of(spec), parents, checkpoints, report))


def context_of(spec: RunSpec, splits: Callable[[], Splits | None] = lambda: None) -> Context:
    """The context of a run in this process.

    Args:
        spec: of the run.
        splits: gives the images, where somebody has read them already; asked once.
    """
    if spec not in _CONTEXTS:
        _CONTEXTS[spec] = make_context(spec, engine_for(spec.recipe, spec.device), splits=splits())
    return _CONTEXTS[spec]


def make_context(
    spec: RunSpec, engine: Engine, progress: Progress | None = None, splits: Splits | None = None
) -> Context:
    """The network and images of a run on a device.

    Args:
        spec: of the run.
        engine: where and how to train.
        progress: told how far work is.
        splits: the images, where somebody has read them already.
    """
    recipe = spec.recipe
    check_recipe(recipe)
    data = RunData(recipe, spec.seed, spec.data, engine.device, splits)
    if facts_of(recipe) is None:  # what can be said of it only now
        check_recipe(recipe, data)
    return Context(recipe, network_of(recipe, data.facts), spec.seed, data, engine, progress or _no_progress)


def _no_progress(stage: str, done: int, total: int, rate: float) -> None:
    pass


def engine_for(recipe: Recipe, device: str = "auto") -> Engine:
    """The engine that a recipe asks for, unless the user says otherwise.

    Args:
        recipe: "cpu" in it keeps small runs off a GPU, which would compile for longer than they train.
        device: "auto", "cpu", or "cuda".
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ModebridgeError(f"Expected device to be auto, cpu or cuda, but got '{device}'; choose one.")
    if device == "cpu" or (device == "auto" and recipe.device == "cpu"):
        return Engine()
    if device == "cuda" and not torch.cuda.is_available():
        return Engine(torch.device("cuda"))  # says what is wrong
    return Engine.best()
