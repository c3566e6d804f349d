"""The work of a Ray worker: one job, with the inputs sent by the driver, reporting progress."""

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
from modebridge.members import Setting, Tensors
from modebridge.recipes import RunData
from modebridge.runs.executor import make_job
from modebridge.runs.folder import machine
from modebridge.runs.plan import Job
from modebridge.training import Checkpoints, Epoch

__all__ = ["Call", "News", "Note", "StageError", "do_job", "mailbox_class", "packed", "unpacked", "versions", "warm_up"]


_SETTINGS: dict[Setting, Setting] = {}
"""The settings of runs whose jobs this process has made, with what they have built."""


@dataclass(frozen=True)
class Call:
    """A job as sent to a worker, without its parents' tensors.

    Args:
        work: the pickled `Setting` and `Job`, unpickled where an error can be reported.
        title: the job's name for users.
        threads: number of cores for torch, which affects the order of sums.
        versions: versions of the driver; workers must have the same.
        images: hashes of the driver's images.
        checkpoints: folder of checkpoints that all nodes see; None for a temporary one on the node.
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
    """A message from a working job: its start, or a finished epoch (or batch of what is not trained).

    Args:
        title: title of the job.
        node: name of the machine.
        device: its device there.
        fresh: at the start, whether it starts from scratch rather than from a checkpoint.
        epoch: the finished epoch.
    """

    title: str
    node: str
    device: str
    fresh: bool | None = None
    epoch: Epoch | None = None


@dataclass(frozen=True)
class Note:
    """The result of a finished job, besides its tensors.

    Args:
        seconds: duration.
        node: name of the machine.
        metadata: metadata of every artefact by name, in the order of the tensors.
        saved: its checkpoint file in the shared folder, not needed once the tensors are stored.
    """

    seconds: float
    node: str
    metadata: Mapping[str, Mapping[str, Any]]
    saved: str | None


class StageError(Exception):
    """A failed job: which, where and why. All arguments are text, so that it can be pickled anywhere."""

    def __init__(self, title: str, node: str, reason: str) -> None:
        super().__init__(title, node, reason)
        self.title, self.node, self.reason = title, node, reason


def mailbox_class() -> type[Any]:
    """The class of an actor: workers put news in, the driver takes it out; both pickled.

    The class is defined here so that Ray sends its code: its process then need not import modebridge.
    """

    class Mailbox:
        def __init__(self) -> None:
            self._messages: list[bytes] = []

        def put(self, message: bytes) -> None:
            self._messages.append(message)

        def take(self) -> list[bytes]:
            messages, self._messages = self._messages, []
            return messages

    return Mailbox


def warm_up() -> None:
    """Do nothing: a worker that gets this has imported this file, and so torch."""


def do_job(call: Call, mailbox: Any, images: Sequence[Any], places: Sequence[str], *parents: bytes) -> tuple[Any, ...]:
    """Run a job.

    Args:
        call: what to do.
        mailbox: handle of a mailbox.
        images: a reference to the splits; empty if they are read here.
        places: places of the parents.
        parents: tensors of the parents.

    Returns:
        A `Note`, and the tensors of every artefact.
    """
    node = platform.node()
    try:
        return _do(call, mailbox, images, dict(zip(places, parents, strict=True)), node)
    except Exception as error:  # whatever it is, the driver reports where it happened
        reason = str(error) if isinstance(error, ModebridgeError) else f"{type(error).__name__}: {first_line(error)}"
        raise StageError(call.title, node, reason) from error


def _do(
    call: Call, mailbox: Any, images: Sequence[Any], parents: Mapping[str, bytes], node: str
) -> tuple[Note | bytes, ...]:
    import ray

    start = time.perf_counter()
    _check_versions(call.versions)
    torch.set_num_threads(call.threads)
    setting, job = pickle.loads(call.work)
    setting = _prepared(setting, call, images)
    gpus = ",".join(str(number) for number in ray.get_gpu_ids())
    device = f"{setting.engine.device.type}{':' + gpus if gpus else ''}"
    last: list[Any] = []

    def send(**news: Any) -> None:
        last[:] = [mailbox.put.remote(pickle.dumps(News(call.title, node, device, **news)))]

    checkpoints = _checkpoints(call, job, setting)
    send(fresh=checkpoints is None or not checkpoints.path.exists())
    results = make_job(
        job,
        setting,
        {place: unpacked(data) for place, data in parents.items()},
        checkpoints,
        lambda epoch: send(epoch=epoch),
    )
    # All news must arrive before the job is done; a lost mailbox is no reason to lose the results.
    with contextlib.suppress(Exception):
        ray.get(last, timeout=10)
    ordered = {artefact.name: results[artefact.name] for artefact in job.artefacts}
    metadata = {name: {**machine(), "node": node, **one.metadata} for name, one in ordered.items()}
    saved = str(checkpoints.path) if checkpoints is not None and call.checkpoints is not None else None
    if checkpoints is not None and saved is None:  # only this node can remove its files
        checkpoints.clear()
    note = Note(time.perf_counter() - start, node, metadata, saved)
    return note, *(packed(one.tensors) for one in ordered.values())


def _prepared(setting: Setting, call: Call, images: Sequence[Any]) -> Setting:
    """The setting of the last job of the same run here, with its network and data, or this one with its data."""
    import ray

    if setting in _SETTINGS:
        return _SETTINGS[setting]
    if images:
        vars(setting)["data"] = RunData(
            setting.recipe, setting.seed, setting.data_folder, setting.engine.device, ray.get(images[0])
        )
    elif (setting.data.learned_from, setting.data.scored_on) != call.images:
        raise ModebridgeError(
            f"Expected '{setting.data_folder or setting.recipe.data.name}' to hold the same images as on the driver, "
            "but they differ; copy the data set again, to the same path on every node."
        )
    return _SETTINGS.setdefault(setting, setting)


def _check_versions(wanted: Mapping[str, str]) -> None:
    for name, version in versions().items():
        if version != wanted[name]:
            raise ModebridgeError(
                f"Expected {name} {wanted[name]} on every node, as on the driver, but got {version}; "
                "install the same version."
            )


def versions() -> dict[str, str]:
    """Versions that affect the bits of a result; Ray itself compares its own and Python's."""
    return {"modebridge": __version__, "torch": torch.__version__.partition("+")[0]}


def _checkpoints(call: Call, job: Job, setting: Setting) -> Checkpoints | None:
    if not job.epochs(setting.recipe):
        return None
    folder = Path(call.checkpoints) if call.checkpoints else Path(tempfile.gettempdir()) / "modebridge-checkpoints"
    return Checkpoints(folder / job.saved_as(setting.engine.way), call.every)


def packed(tensors: Tensors) -> bytes:
    """Serialize tensors for transport, as in a run folder's file."""
    return safetensors.torch.save({name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()})


def unpacked(data: bytes) -> dict[str, torch.Tensor]:
    """Deserialize tensors after transport."""
    return safetensors.torch.load(data)
