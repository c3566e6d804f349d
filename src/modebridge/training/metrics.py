"""What an epoch was like, and where to write it down."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from modebridge.errors import ModebridgeError

__all__ = ["Epoch", "Report", "TensorBoard", "append_metrics", "read_metrics"]


@dataclass(frozen=True)
class Epoch:
    """One epoch of the loop, after it is done.

    Args:
        number: which one, counted from 1.
        total: how many there are to be.
        lr: the learning rate in it.
        losses: mean training losses by member ("2/mode" for the third of several tasks).
        scores: validation scores by member, lower is better; empty unless the best epoch is kept.
        images: how many were learned from, over all tasks and processes.
        seconds: how long it took, validation included.
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
        """Images a second.

        >>> Epoch(1, 2, 0.1, {}, images=500, seconds=2.0).rate
        250.0
        """
        return self.images / self.seconds if self.seconds > 0 else 0.0


Report: TypeAlias = Callable[[Epoch], None]
"""Called after every epoch."""


def append_metrics(path: Path, epoch: Epoch) -> None:
    """Add an epoch to a file of one JSON object a line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(epoch)) + "\n")
    except OSError as error:
        raise ModebridgeError(
            f"Expected to write '{path}', but got '{error}'; make room, then start again: nothing trained is lost."
        ) from error


def read_metrics(path: Path) -> list[Epoch]:
    """The epochs of such a file in order; of one that was done again after a stop, the last."""
    found: dict[int, Epoch] = {}
    for line in path.read_bytes().decode("utf-8", "replace").splitlines() if path.is_file() else []:
        epoch = _epoch(line)
        if epoch is not None:
            found[epoch.number] = epoch
    return [found[number] for number in sorted(found)]


def _epoch(line: str) -> Epoch | None:
    """None for a line that was cut off by a kill (the epoch was done again), or damaged."""
    try:
        record: dict[str, Any] = json.loads(line)
        for name in ("losses", "scores"):
            record[name] = {str(key): float(value) for key, value in record[name].items()}
        for name in ("lr", "seconds"):
            record[name] = float(record[name])
        for name in ("number", "total", "images"):
            record[name] = int(record[name])
        return Epoch(**record)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


class TensorBoard:
    """A report that writes scalars for TensorBoard (an extra: `pip install 'modebridge[tensorboard]'`).

    Args:
        folder: the log folder, one run.
    """

    def __init__(self, folder: Path | str) -> None:
        self._writer: Any = self.check()(str(folder))

    @staticmethod
    def check() -> Any:
        """TensorBoard's writer, or a sentence on how to get it."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ModebridgeError(
                "Expected TensorBoard to write its logs, but it is not installed; "
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
