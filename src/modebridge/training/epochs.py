"""The record of one epoch, and where to log it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from modebridge.errors import ModebridgeError

__all__ = ["Epoch", "Report", "TensorBoard", "append_metrics", "parse_metrics"]


@dataclass(frozen=True)
class Epoch:
    """One finished epoch of the loop.

    Args:
        number: the epoch, counted from 1.
        total: the total number of epochs.
        lr: the learning rate.
        losses: mean training losses by member ("2/mode" for the third of several tasks).
        scores: validation scores by member, lower is better; empty unless the best epoch is kept.
        images: the number of training images, over all tasks and processes.
        seconds: duration, including validation.
    """

    number: int
    total: int
    lr: float
    losses: Mapping[str, float]
    scores: Mapping[str, float] = field(default_factory=dict)
    images: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Images per second.

        >>> Epoch(1, 2, 0.1, {}, images=500, seconds=2.0).rate
        250.0
        """
        return self.images / self.seconds if self.seconds > 0 else 0.0


Report: TypeAlias = Callable[[Epoch], None]
"""Called after every epoch."""


def append_metrics(path: Path, epoch: Epoch) -> None:
    """Append an epoch to a file with one JSON object per line, each with its own checksum."""
    record = asdict(epoch)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.truncate(_whole_lines(file))  # drop a line that a kill cut off; its epoch was repeated
            file.write(json.dumps({**record, "sum": _sum(record)}).encode() + b"\n")
    except OSError as error:
        raise ModebridgeError(
            f"Expected to write '{path}', but got '{error}'; free some space and start again: no training is lost."
        ) from error


def parse_metrics(data: bytes) -> tuple[list[Epoch], list[int]]:
    """The epochs in the bytes of such a file, and the numbers of its damaged lines, counted from 1.

    Epochs are in order; if one was repeated after a stop, the last record counts.
    """
    epochs: dict[int, Epoch] = {}
    damaged: list[int] = []
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else [], start=1):
        epoch = _epoch(line)
        if epoch is None:
            damaged.append(number)
        else:
            epochs[epoch.number] = epoch
    return [epochs[number] for number in sorted(epochs)], damaged


def _epoch(line: bytes) -> Epoch | None:
    try:
        record = json.loads(line.decode())
        # Lines of version 0.1 have no sum; if "sum" is misspelled, it is an argument that Epoch does not take.
        if "sum" in record and record.pop("sum") != _sum(record):
            return None
        epoch = Epoch(**record)
        numbers = [epoch.number, epoch.total, epoch.images, epoch.lr, epoch.seconds]
        numbers += [*epoch.losses.values(), *epoch.scores.values()]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return epoch if all(isinstance(value, int | float) for value in numbers) else None


def _sum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def _whole_lines(file: BinaryIO) -> int:
    """The length of a file up to the end of its last complete line."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    if file.read(1) in (b"", b"\n"):
        return size
    file.seek(0)
    return file.read().rfind(b"\n") + 1


class TensorBoard:
    """A report callback that writes scalars for TensorBoard (extra: `pip install 'modebridge[tensorboard]'`).

    Args:
        folder: the log folder of the run.
    """

    def __init__(self, folder: Path | str) -> None:
        self._writer: Any = self.check()(str(folder))

    @staticmethod
    def check() -> Any:
        """TensorBoard's writer; raises an error with install instructions if it is missing."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ModebridgeError(
                "Expected TensorBoard to be installed to write its logs, but it is not; "
                "pip install 'modebridge[tensorboard]'."
            ) from error
        return SummaryWriter

    def __call__(self, epoch: Epoch) -> None:
        """Write one epoch."""
        for name, value in epoch.losses.items():
            self._writer.add_scalar(f"loss/{name}", value, epoch.number)
        for name, value in epoch.scores.items():
            self._writer.add_scalar(f"validation/{name}", value, epoch.number)
        self._writer.add_scalar("lr", epoch.lr, epoch.number)
        self._writer.add_scalar("images per second", epoch.rate, epoch.number)
        self._writer.flush()
