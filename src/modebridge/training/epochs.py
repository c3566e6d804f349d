"""The record of one epoch, and where to log it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from modebridge.errors import ModebridgeError


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
