"""Makes artefacts that are not there yet, in groups, with checkpoints and metrics; keeps them, finds them again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.recipes.folder import RunFolder, key_of
from modebridge.training import Checkpoints, Engine, Epoch, Report, TensorBoard, side_by_side
from modebridge.types import Progress

__all__ = ["Maker", "Tensors"]

T = TypeVar("T")

Tensors: TypeAlias = Mapping[str, Tensor]
Fit: TypeAlias = Callable[[list[str], Checkpoints | None, Report], Mapping[str, Tensors]]
"""Trains the named artefacts together; the report speaks of them by number or by name."""


class Maker:
    """Asks the folder first, and makes the rest.

    Args:
        engine: where and how things are trained.
        folder: where artefacts are kept; None keeps them in memory.
        progress: told of every epoch.
        boards: whether to write TensorBoard's logs to RUN/tensorboard too.
    """

    def __init__(
        self,
        engine: Engine,
        folder: RunFolder | None = None,
        progress: Progress | None = None,
        *,
        boards: bool = False,
    ) -> None:
        self.engine = engine
        self.folder = folder
        self._progress = progress or (lambda stage, done, total, rate: None)
        self._boards: dict[str, TensorBoard] | None = {} if boards else None
        self._memory: dict[tuple[str, str], Tensors] = {}
        self.trained: list[str] = []
        """What was trained here and not found, as "modes 0"."""

    def made(
        self, kind: str, parts: Mapping[str, Mapping[str, Any]], fit: Fit, epochs: int, together: int
    ) -> dict[str, Tensors]:
        """Artefacts by name: those that are there, and the others trained in groups of `together`.

        Args:
            kind: the folder that they go to.
            parts: what each is made from; another part, another artefact.
            fit: trains some of them.
            epochs: of each, for the progress.
            together: how many at a time.
        """
        keys = {name: key_of(kind, name, sorted(part.items())) for name, part in parts.items()}
        found = {name: self.find(kind, name, key) for name, key in keys.items()}
        missing = [name for name in parts if found[name] is None]
        for name in missing[:1]:
            self._check_writable(kind, name)
        groups = [missing[k : k + together] for k in range(0, len(missing), together)]
        count = _Count(self._progress, kind, len(missing) * epochs)

        def make(group: list[str]) -> None:
            checkpoints = self._checkpoints(kind, group, keys)
            begin = time.perf_counter()
            trained = fit(group, checkpoints, partial(self._report, kind, group, count))
            seconds = (time.perf_counter() - begin) / len(group)
            for name in group:
                self.keep(kind, name, keys[name], trained[name], {"seconds": seconds, "from": dict(parts[name])})
            if checkpoints is not None and (self.folder is None or self.folder.writes):
                checkpoints.clear()

        self.each([partial(make, group) for group in groups])
        self.engine.processes.wait()
        self.trained += [f"{kind} {name}" for name in missing]
        # Read back, so that a run and the one after it see the same bits.
        found |= {name: self.find(kind, name, keys[name]) for name in missing}
        complete = {name: tensors for name, tensors in found.items() if tensors is not None}
        lost = [name for name in parts if name not in complete]
        if lost:
            raise ModebridgeError(
                f"Expected {kind} {lost[0]} to be readable after writing it, but it is not; check the disk (and that "
                "all processes see the same folder)."
            )
        return complete

    def tell(self, stage: str, done: int, total: int, rate: float) -> None:
        """Say how far some work is that is not training."""
        self._progress(stage, done, total, rate)

    def each(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Do independent jobs: on a CPU side by side, one core each; on a GPU, or in several processes, in turn.

        One core each also where there is a single job: sums over images then do not depend on the number of cores.
        """
        if self.engine.device.type == "cpu" and self.engine.processes.size == 1:
            return side_by_side(jobs)
        # Processes that train together must train the same thing at the same time.
        return [job() for job in jobs]

    def find(self, kind: str, name: str, key: str) -> Tensors | None:
        """An artefact that was made from these very things; None where there is none."""
        place = (f"{kind}/{name}", key)
        if place not in self._memory and self.folder is not None:
            found = self.folder.find(kind, name, key)
            if found is not None:
                self._memory[place] = found
        return self._memory.get(place)

    def keep(self, kind: str, name: str, key: str, tensors: Tensors, notes: Mapping[str, Any]) -> None:
        """Keep an artefact; of one that is there already, the notes are brought up to date."""
        there = self.find(kind, name, key) is not None
        if self.folder is None:
            if not there:
                self._memory[f"{kind}/{name}", key] = {
                    name: tensor.detach().clone() for name, tensor in tensors.items()
                }
        elif there:
            self.folder.annotate(kind, name, notes)
        else:
            self._check_writable(kind, name)
            self.folder.keep(kind, name, key, tensors, notes)

    def _check_writable(self, kind: str, name: str) -> None:
        if self.folder is not None and self.folder.read_only:
            raise ModebridgeError(
                f"Expected '{self.folder.path}' to be writable, because {kind} {name} is not there and is to "
                "be made, but it is read-only; copy it, or choose another folder with --out."
            )

    def _checkpoints(self, kind: str, group: list[str], keys: Mapping[str, str]) -> Checkpoints | None:
        if self.folder is None:
            return None
        name = group[0] if len(group) == 1 else f"{len(group)}-from-{group[0]}"
        checkpoints = self.folder.checkpoints(kind, name, key_of(self.engine.way, *(keys[name] for name in group)))
        if self.folder.writes and not checkpoints.path.exists():
            for artefact in group:  # the curves of an artefact that is trained anew begin anew
                self.folder.metrics.forget(kind, artefact)
        return checkpoints

    def _report(self, kind: str, group: list[str], count: _Count, epoch: Epoch) -> None:
        count(tuple(group), epoch)
        if self.folder is None or not self.folder.writes:
            return
        for k, name in enumerate(group):
            label = name if name in epoch.losses else next(iter(epoch.losses))
            if len(group) > 1 and kind != "bridges":
                label = next(key for key in epoch.losses if key.startswith(f"{k}/"))
            scores = {"valid": epoch.scores[label]} if label in epoch.scores else {}
            own = replace(epoch, losses={"train": epoch.losses[label]}, scores=scores)
            self.folder.metrics.add(kind, name, own)
            if self._boards is not None:
                place = f"{kind}/{name}"
                if place not in self._boards:
                    self._boards[place] = TensorBoard(self.folder.path / "tensorboard" / kind / name)
                self._boards[place](own)


class _Count:
    """Epochs of one stage, over all networks that are trained in it, on whatever thread."""

    def __init__(self, progress: Progress, stage: str, total: int) -> None:
        self._progress, self._stage, self._total = progress, stage, total
        self._done: dict[tuple[str, ...], int] = {}
        self._lock = threading.Lock()

    def __call__(self, group: tuple[str, ...], epoch: Epoch) -> None:
        with self._lock:
            # By number, since a run that goes on after a stop does not begin with the first epoch.
            self._done[group] = len(group) * epoch.number
            self._progress(self._stage, sum(self._done.values()), self._total, epoch.rate)
