"""Executors: where the jobs of a run are executed. The default is this process, on the cores of a CPU or on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Protocol

from modebridge.members import ArtefactData, Setting, Tensors
from modebridge.progress import no_bars
from modebridge.runs.plan import Job
from modebridge.training import Checkpoints, Report, side_by_side

__all__ = [
    "Executor",
    "Local",
    "Orders",
    "make_job",
]


@dataclass(frozen=True)
class Orders:
    """What an executor needs to run jobs.

    Args:
        setting: the setting of the run; executors send it to other processes.
        read: returns the tensors of an existing artefact, by its place.
        checkpoints: returns the checkpoints of a job; None if there are none.
        begin: called when a job starts, with whether it starts from scratch rather than from a checkpoint.
        report: returns the callback for the epochs of a job.
        done: stores the results of a job; must be called in this process, as soon as the job is done.
    """

    setting: Setting
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
            results = make_job(job, orders.setting, orders.parents(job), checkpoints, orders.report(job))
            orders.done(job, results, time.perf_counter() - start)

        engine = orders.setting.engine
        # One core even for a single job, so that sums over images do not depend on the number of cores.
        if jobs and jobs[0].kind.one_core and engine.device.type == "cpu" and engine.processes.size == 1:
            side_by_side([partial(run, job) for job in jobs])
            return
        # Processes that train together must train the same thing at the same time.
        for job in jobs:
            run(job)


def make_job(
    job: Job,
    setting: Setting,
    parents: Mapping[str, Tensors],
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
) -> dict[str, ArtefactData]:
    """Make the artefacts of a job, in any process. Everything in a run folder is made by this function.

    Args:
        job: what to make.
        setting: the setting of the run.
        parents: the tensors that the job needs, by place.
        checkpoints: where to save progress and resume from.
        report: called after every epoch, or with the batches of what is not trained.
    """
    config = replace(
        job.artefacts[0].training(setting.recipe),
        device=setting.engine.device,
        checkpoints=checkpoints,
        callbacks=() if report is None else (report,),
    )
    with no_bars():  # the run shows its progress
        return job.kind.make(job.artefacts, setting, parents, config)
