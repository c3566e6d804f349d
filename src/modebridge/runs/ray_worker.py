"""What a worker of Ray does: one job, with what the driver sent, telling it how far it is."""

from __future__ import annotations

import contextlib
import pickle
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from modebridge import __version__
from modebridge.errors import ModebridgeError, first_line
from modebridge.members import Context, Made, Tensors
from modebridge.runs.executor import RunSpec, context_of, make_job_of
from modebridge.runs.folder import machine
from modebridge.runs.plan import Job
from modebridge.training import Checkpoints, Epoch

__all__ = ["Call", "News", "Note", "StageError", "do_job", "mailbox_class", "packed", "unpacked", "versions", "warm_up"]


@dataclass(frozen=True)
class Call:
    """A job as it travels, all but its parents' tensors.

    Args:
        work: the pickled `RunSpec` and `Job`; they are opened where an error can be told.
        title: how people call the job.
        threads: how many cores torch uses, which decides the order of sums.
        versions: of the driver; workers must have the same.
        images: hashes of the driver's images.
        checkpoints: the folder of checkpoints that all nodes see; None for a temporary one of the node.
        every: seconds between two checkpoints.
    """

    work: bytes
    title: str
    threads: int
    versions: Mapping[str, str]
    images: tuple[str, str]
    checkpoints: str | None
    every: float


@dataclass(frozen=True)
class News:
    """What a worker tells while it works: that it begins, an epoch, or how far work without epochs is.

    Args:
        title: of the job.
        node: the name of the machine.
        device: what it works on.
        fresh: at the beginning, whether it starts anew rather than from a checkpoint.
        epoch: that was done.
        progress: kind, done, total and rate of work without epochs.
    """

    title: str
    node: str
    device: str
    fresh: bool | None = None
    epoch: Epoch | None = None
    progress: tuple[str, int, int, float] | None = None


@dataclass(frozen=True)
class Note:
    """What a finished job says beside its tensors.

    Args:
        seconds: how long it took.
        node: the name of the machine.
        metadata: of every artefact by name, in the order of the tensors.
        saved: the file of its checkpoints in the folder that all see; nobody needs it once the tensors are kept.
    """

    seconds: float
    node: str
    metadata: Mapping[str, Mapping[str, Any]]
    saved: str | None


class StageError(Exception):
    """A job has failed: which, where, and what was said. All arguments are text, so that it can be pickled anywhere."""

    def __init__(self, title: str, node: str, reason: str) -> None:
        super().__init__(title, node, reason)
        self.title, self.node, self.reason = title, node, reason


def mailbox_class() -> type[Any]:
    """An actor: workers put news in, the driver takes it out; both pickled.

    Its class is made here so that Ray sends it as it is: its process then has no need to import any of ours.
    """

    class Mailbox:
        def __init__(self) -> None:
            self._letters: list[bytes] = []

        def put(self, letter: bytes) -> None:
            self._letters.append(letter)

        def take(self) -> list[bytes]:
            letters, self._letters = self._letters, []
            return letters

    return Mailbox


def warm_up() -> None:
    """Do nothing: a worker that gets this has imported this file, and so torch."""


def do_job(call: Call, mailbox: Any, images: Sequence[Any], places: Sequence[str], *parents: bytes) -> tuple[Any, ...]:
    """Do a job.

    Args:
        call: what to do.
        mailbox: the handle of a mailbox.
        images: a reference to the splits; empty where they are read here.
        places: of the parents.
        parents: their tensors.

    Returns:
        A `Note`, and the tensors of every artefact.
    """
    node = platform.node()
    try:
        return _do(call, mailbox, images, dict(zip(places, parents, strict=True)), node)
    except Exception as error:  # whatever it is, the driver says where it was
        reason = str(error) if isinstance(error, ModebridgeError) else f"{type(error).__name__}: {first_line(error)}"
        raise StageError(call.title, node, reason) from error


def _do(
    call: Call, mailbox: Any, images: Sequence[Any], parents: Mapping[str, bytes], node: str
) -> tuple[Note | bytes, ...]:
    import ray

    begin = time.perf_counter()
    _check_versions(call.versions)
    torch.set_num_threads(call.threads)
    spec, job = pickle.loads(call.work)
    context = _context(spec, call, images)
    gpus = ",".join(str(number) for number in ray.get_gpu_ids())
    device = f"{context.engine.device.type}{':' + gpus if gpus else ''}"
    last: list[Any] = []

    def tell(**news: Any) -> None:
        last[:] = [mailbox.put.remote(pickle.dumps(News(call.title, node, device, **news)))]

    context.progress = lambda *progress: tell(progress=progress)
    checkpoints = _checkpoints(call, job, context)
    tell(fresh=checkpoints is None or not checkpoints.path.exists())
    made = make_job_of(
        spec,
        job,
        {place: unpacked(data) for place, data in parents.items()},
        checkpoints,
        lambda epoch: tell(epoch=epoch),
    )
    # All news is there before the job is done; a mailbox that is gone is no reason to lose what was made.
    with contextlib.suppress(Exception):
        ray.get(last, timeout=10)
    ordered = {artefact.name: made[artefact.name] for artefact in job.artefacts}
    metadata = {name: {**machine(), "node": node, **one.metadata} for name, one in ordered.items()}
    saved = str(checkpoints.path) if checkpoints is not None and call.checkpoints is not None else None
    if checkpoints is not None and saved is None:  # nobody else could remove what lies on this node
        checkpoints.clear()
    note = Note(time.perf_counter() - begin, node, metadata, saved)
    return note, *(packed(one) for one in ordered.values())


def _context(spec: RunSpec, call: Call, images: Sequence[Any]) -> Context:
    import ray

    context = context_of(spec, lambda: ray.get(images[0]) if images else None)
    if not images and (context.data.learned_from, context.data.scored_on) != call.images:
        raise ModebridgeError(
            f"Expected '{spec.data or spec.recipe.data.name}' to hold the images that the driver has, but it holds "
            "others; copy the data set anew, to the same path on every node."
        )
    return context


def _check_versions(wanted: Mapping[str, str]) -> None:
    for name, version in versions().items():
        if version != wanted[name]:
            raise ModebridgeError(
                f"Expected {name} {wanted[name]} on every node, as where the run was started, but got {version}; "
                "install the same."
            )


def versions() -> dict[str, str]:
    """Of what decides the bits of a result; Python's and its own are compared by Ray."""
    return {"modebridge": __version__, "torch": torch.__version__.partition("+")[0]}


def _checkpoints(call: Call, job: Job, context: Context) -> Checkpoints | None:
    if not job.epochs(context.recipe):
        return None
    folder = Path(call.checkpoints) if call.checkpoints else Path(tempfile.gettempdir()) / "modebridge-checkpoints"
    return Checkpoints(folder / job.saved_as(context.engine.way), call.every)


def packed(made: Made | Tensors) -> bytes:
    """Tensors as they travel: as a run folder's file would hold them."""
    tensors = made.tensors if isinstance(made, Made) else made
    return safetensors.torch.save({name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()})


def unpacked(data: bytes) -> dict[str, torch.Tensor]:
    """Tensors that have travelled."""
    return safetensors.torch.load(data)
