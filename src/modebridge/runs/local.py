"""Jobs of a run, made in this process: the function that makes everything in a run folder, and the default executor."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from modebridge.errors import plural
from modebridge.files.atomic import write_file
from modebridge.members import Made, Parents, Setting
from modebridge.runs.graph import Job
from modebridge.training import Checkpoints, Epoch

EVERY = 10.0
"""Seconds between two checkpoints."""

JobReport: TypeAlias = Callable[[Job, Epoch], None]
"""Called with the progress of a job: after every epoch, or every batch of predictions."""


class Executor(Protocol):
    """Makes jobs anywhere."""

    device: str | None = None
    """The type of device that it uses; None for that of this process."""

    def execute(
        self, jobs: Sequence[Job], setting: Setting, parents: Parents, work: Path | None, report: JobReport
    ) -> Iterator[tuple[Job, Made]]:
        """Make jobs that do not depend on each other, and yield each with its results, in any order.

        Unfinished work is kept in the folder `work`, if there is one, so that a killed job resumes.
        """
        ...


class Local(Executor):
    """On a CPU in parallel, one core each; on a GPU, or in several processes that train together, one at a time."""

    def execute(
        self, jobs: Sequence[Job], setting: Setting, parents: Parents, work: Path | None, report: JobReport
    ) -> Iterator[tuple[Job, Made]]:
        engine = setting.engine
        if not jobs[0].kind.one_core or engine.device.type != "cpu" or engine.processes.size > 1:
            # Processes that train together must train the same thing at the same time.
            for job in jobs:
                yield job, make_job(job, setting, parents, work, report)
            return
        # On threads, since torch releases the GIL inside its operations. One core even for a single job, so that sums
        # over images do not depend on the number of cores.
        cores, before = os.cpu_count() or 1, torch.get_num_threads()
        torch.set_num_threads(1)
        # Three jobs that share two cores finish sooner than two and then one.
        pool = ThreadPoolExecutor(len(jobs) if len(jobs) < 2 * cores else cores)
        try:
            futures = {pool.submit(make_job, job, setting, parents, work, report): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            # After an error (or Ctrl-C) start no more jobs, and do not wait for the running ones.
            pool.shutdown(wait=False, cancel_futures=True)
            torch.set_num_threads(before)


def make_job(
    job: Job,
    setting: Setting,
    parents: Parents,
    work: Path | None = None,
    report: JobReport = lambda job, epoch: None,
) -> Made:
    """Make the nodes of a job. Everything in a run folder is made by this function.

    Checkpoints are kept in the folder `work`, if there is one. The results, by name, have the time, the machine and the
    epochs of training in their metadata.
    """
    start = time.perf_counter()
    training = job.nodes[0].training(setting.recipe)
    saved = work / job.saved_as(setting.engine.way) if work is not None and training.epochs else None
    file = None if saved is None else saved.with_name(f"{saved.name}.epochs")
    # Those before a kill are written next to the checkpoint; an epoch that is repeated replaces the first.
    epochs: dict[int, dict[str, Any]] = {}
    if saved is not None and saved.exists() and file is not None and file.exists():
        with suppress(ValueError):  # as an earlier version wrote them
            epochs = {epoch["number"]: epoch for epoch in json.loads(file.read_text())}

    def note(epoch: Epoch) -> None:
        if job.kind.trained:
            epochs[epoch.number] = asdict(epoch)
            if file is not None:
                write_file(file, json.dumps(list(epochs.values())))
        report(job, epoch)

    config = replace(
        training,
        device=setting.engine.device,
        checkpoints=None if saved is None else Checkpoints(saved, EVERY),
        callbacks=(note,),
        progress=False,  # the run shows its progress
    )
    made = job.kind.make(job.nodes, setting, parents, config)
    more = {"seconds": (time.perf_counter() - start) / len(job.nodes), **machine()}
    results: Made = {}
    for k, node in enumerate(job.nodes):
        own = {"epochs": [_epoch_of(epochs[number], node.name, k) for number in sorted(epochs)]}
        metadata = {**more, **(own if job.kind.trained else {}), **made[node.name].metadata}
        results[node.name] = made[node.name]._replace(metadata=metadata)
    return results


def _epoch_of(epoch: Mapping[str, Any], name: str, number: int) -> dict[str, Any]:
    """The part of one node in an epoch of those trained together: by its name, or its number if each is a task."""
    losses, scores = epoch["losses"], epoch["scores"]
    labels = (label for label in losses if label == name or label.startswith(f"{number}/"))
    label = next(labels, next(iter(losses)))
    valid = {"valid": scores[label]} if label in scores else {}
    return {**epoch, "losses": {"train": losses[label]}, "scores": valid}


def machine() -> dict[str, str]:
    """The machine and versions that something was made with."""
    import modebridge

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {
        "made": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "modebridge": modebridge.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{gpu + ', ' if gpu else ''}{plural(os.cpu_count() or 1, 'core')}, {platform.machine()}",
    }
