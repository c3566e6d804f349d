"""The jobs of a run as Ray tasks: submitted at once, each with references to its inputs; Ray schedules them."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from modebridge.data import ImageSet, Splits
from modebridge.errors import ModebridgeError, first_line, plural
from modebridge.members import ArtefactData
from modebridge.recipes import Recipe
from modebridge.runs.executor import Executor, Orders
from modebridge.runs.plan import Job
from modebridge.runs.ray_connection import LOCAL, Connection
from modebridge.runs.ray_worker import (
    Call,
    News,
    Note,
    StageError,
    do_job,
    mailbox_class,
    packed,
    unpacked,
    versions,
    warm_up,
)
from modebridge.training import Checkpoints

__all__ = ["OnRay", "StageState", "Watch"]

RETRIES = 20
"""How often a job may lose its worker."""
FITS = 2**30
"""Maximum size in bytes of images that are sent to the nodes; larger sets are read on each node."""


@dataclass
class StageState:
    """The progress of a job, for display.

    Args:
        title: such as "curves 0-1".
        state: "waiting", "running", "done" or "failed".
        node: name of its machine.
        device: its device there.
        epoch: epochs done; batches if it has no epochs.
        total: total epochs or batches.
        rate: images per second.
        left: remaining seconds; None if unknown.
    """

    title: str
    state: str = "waiting"
    node: str = ""
    device: str = ""
    epoch: int = 0
    total: int = 0
    rate: float = 0.0
    left: float | None = None


Watch = Callable[[Sequence[StageState]], None]


class OnRay(Executor):
    """Runs jobs on the machines of a Ray cluster.

    Tensors travel through Ray's object store, each artefact once; only this process writes the run folder. If the
    worker of a job dies, Ray runs the job again, from its last checkpoint if that is accessible.

    Args:
        address: "ray" starts Ray on this machine; otherwise the address of a running cluster: "auto", "HOST:6379",
            "ray://HOST:10001".
        device: "auto" (a GPU if the cluster has one and the recipe uses it), "cpu" or "cuda".
        gpus: GPUs per job; 0.5 puts two jobs on a card. None requests one on "cuda", otherwise none.
        cpus: number of cores for a Ray started here; None for all.
        most: maximum number of artefacts per training job. Training all bridges in one pass is the least work, but a
            single job; smaller jobs can use several devices, with the same bits.
        shared: a folder visible to every node, for checkpoints; None keeps them in temporary folders of the nodes.
        every: seconds between two checkpoints.
        watch: called with the progress of all jobs, a few times per second.
    """

    whole = True

    def __init__(
        self,
        address: str = LOCAL,
        *,
        recipe: Recipe,
        device: str = "auto",
        gpus: float | None = None,
        cpus: int | None = None,
        most: int | None = None,
        shared: Path | str | None = None,
        every: float = 10.0,
        watch: Watch | None = None,
    ) -> None:
        if gpus is not None and not 0 < gpus <= 1:
            raise ModebridgeError(
                f"Expected the GPUs of a stage to be above 0 and at most 1, but got {gpus:g}; a stage uses one GPU."
            )
        if most is not None and most < 1:
            raise ModebridgeError(f"Expected at least 1 artifact per stage, but got {most}; omit it for no limit.")
        self._gpus, self._every, self.watch, self.most = gpus, every, watch, most
        self._shared = None if shared is None else str(Path(shared).absolute())
        self._cluster = Connection(address, cpus)
        self._ray = self._cluster.ray
        nodes = self._cluster.nodes()
        self._cores = max(int(node.get("CPU", 1)) for node in nodes) or 1
        self._cards = max(node.get("GPU", 0.0) for node in nodes)
        self.device = self._device(device, recipe)
        self._task = self._ray.remote(do_job)
        on_head = {"node:__internal_head__": 0.001}  # if this node is lost, everything is
        actor = self._ray.remote(mailbox_class())
        self._mailbox = actor.options(num_cpus=0, resources=on_head, max_restarts=-1).remote()
        if address == LOCAL:  # workers import torch while the driver plans
            self._warm = [self._ray.remote(warm_up).options(num_cpus=1).remote() for _ in range(self._cores)]
        total = {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}
        self.about = (
            f"{plural(len(nodes), 'node')}, {plural(total['CPU'], 'core')}, {plural(total['GPU'], 'GPU')}; "
            f"stages run on {self.device}"
        )
        """A description of the cluster."""

    def _device(self, requested: str, recipe: Recipe) -> str:
        needed = self._gpus or 1.0
        if requested == "cuda" and self._cards < needed:
            raise ModebridgeError(
                f"Expected a node of the Ray cluster to have {needed:g} GPU, but got at most {self._cards:g}; add one, "
                "or use --device cpu."
            )
        if requested == "auto":
            return "cuda" if recipe.device != "cpu" and self._cards >= needed else "cpu"
        return requested

    def __enter__(self) -> OnRay:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def execute(self, jobs: Sequence[Job], orders: Orders) -> None:
        """Submit all jobs, and store the results in the order in which they arrive."""
        states = {job.title: StageState(job.title) for job in jobs}
        by_title = {job.title: job for job in jobs}
        call = self._cluster.call
        waiting = call(lambda: self._submit(jobs, orders))
        failures: list[StageError] = []
        lost: set[str] = set()
        try:
            while waiting:
                self._show(states)
                ready, news = call(lambda: self._poll(waiting))
                self._handle(news, states, by_title, orders)
                for reference in ready:
                    job, tensors = waiting.pop(reference)
                    state = states[job.title]
                    try:
                        note, *results = call(lambda: self._ray.get([reference, *tensors]))  # noqa: B023 - called at once
                    except self._ray.exceptions.RayError as error:
                        state.state = "failed"
                        if not lost.intersection(job.parents):  # otherwise it never started
                            failures.append(_failure(job, state, error))
                        lost |= {artefact.place for artefact in job.artefacts}
                        continue
                    self._keep(job, note, results, orders)
                    state.state, state.node = "done", note.node
        finally:
            for reference in waiting:  # after an error here, or Ctrl-C
                with contextlib.suppress(Exception):
                    call(lambda: self._ray.cancel(reference, force=True))  # noqa: B023 - called at once
        self._show(states)
        if failures:
            raise _error_for(failures) from failures[0]

    def _submit(self, jobs: Sequence[Job], orders: Orders) -> dict[Any, tuple[Job, list[Any]]]:
        """Submit every job as a task; Ray makes it wait for the results of others."""
        data = orders.setting.data
        images = [self._ray.put(data.splits)] if _fits(data.splits) else []
        setting = replace(orders.setting, device=self.device or orders.setting.device)
        places: dict[str, Any] = {}
        waiting: dict[Any, tuple[Job, list[Any]]] = {}
        for job in jobs:
            for place in job.parents:
                if place not in places:  # existing artefact: sent once, however many jobs need it
                    places[place] = self._ray.put(packed(orders.read(place)))
            threads = 1 if job.kind.one_core and self.device == "cpu" else torch.get_num_threads()
            call = Call(
                pickle.dumps((setting, job)),
                job.title,
                threads,
                versions(),
                ("", "") if images else (data.learned_from, data.scored_on),
                self._shared,
                self._every,
            )
            task = self._task.options(
                name=job.title,
                num_returns=1 + len(job.stages),
                max_retries=RETRIES,
                num_cpus=min(threads, self._cores) if self.device == "cpu" else 1,
                num_gpus=self._gpus or (1 if self.device == "cuda" else 0),
            )
            needed = job.parents
            note, *results = task.remote(call, self._mailbox, images, needed, *(places[place] for place in needed))
            places |= zip((artefact.place for artefact in job.artefacts), results, strict=True)
            waiting[note] = job, results
        return waiting

    def _keep(self, job: Job, note: Note, tensors: Sequence[bytes], orders: Orders) -> None:
        results = {
            name: ArtefactData(unpacked(data), metadata)
            for (name, metadata), data in zip(note.metadata.items(), tensors, strict=True)
        }
        orders.done(job, results, note.seconds)
        if note.saved is not None:
            Checkpoints(note.saved).clear()

    def _poll(self, waiting: Mapping[Any, object]) -> tuple[list[Any], list[News]]:
        """The jobs that are done, and news from the others."""
        ready, _ = self._ray.wait(list(waiting), timeout=0.5, fetch_local=False)
        try:
            messages = self._ray.get(self._mailbox.take.remote(), timeout=5)
        except self._ray.exceptions.RayError:  # losing news does no harm
            messages = []
        return ready, [pickle.loads(message) for message in messages]

    def _handle(
        self, mail: Sequence[News], states: Mapping[str, StageState], jobs: Mapping[str, Job], orders: Orders
    ) -> None:
        for news in mail:
            state, job = states[news.title], jobs[news.title]
            state.state, state.node, state.device = "running", news.node, news.device
            if news.fresh is not None:
                orders.begin(job, news.fresh)
            if news.epoch is not None:
                epoch = news.epoch
                state.epoch, state.total, state.rate = epoch.number, epoch.total, epoch.rate
                state.left = (epoch.total - epoch.number) * epoch.seconds
                orders.report(job)(epoch)

    def _show(self, states: Mapping[str, StageState]) -> None:
        if self.watch is not None:
            self.watch(list(states.values()))


def _fits(splits: Splits) -> bool:
    """Whether the images are tensors small enough to send."""
    sets = (splits.train, splits.valid, splits.test)
    sizes = [one.images.nbytes + one.labels.nbytes for one in sets if isinstance(one, ImageSet)]
    return len(sizes) == len(sets) and sum(sizes) <= FITS


def _failure(job: Job, state: StageState, error: Exception) -> StageError:
    cause = getattr(error, "cause", error)
    if isinstance(cause, StageError):
        return cause
    return StageError(job.title, state.node or "unknown", f"{type(cause).__name__}: {first_line(cause)}")


def _error_for(failures: Sequence[StageError]) -> ModebridgeError:
    first = failures[0]
    others = ", ".join(f"{failure.title} on {failure.node}" for failure in failures[1:])
    return ModebridgeError(
        f"Expected stage {first.title} to succeed, but on node {first.node} it failed with '{first.reason}'"
        f"{' (and so did ' + others + ')' if others else ''}; stages that do not need it are done and kept, so fix the "
        "cause and run the same command again."
    )
