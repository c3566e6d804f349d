"""The progress bar of training: epochs, images per second, loss, time left."""

from __future__ import annotations

import time

from modebridge.progress import Bar
from modebridge.training.epochs import Epoch

__all__ = ["EpochBar", "counted"]


class EpochBar:
    """Shows the loop's reports. It reads only numbers that are already on the host, so it never waits for a device.

    Args:
        bar: where to show them.
        epochs: the total number of epochs.
    """

    def __init__(self, bar: Bar, epochs: int) -> None:
        self._bar, self._epochs = bar, epochs
        self._note = ""
        self._per_epoch = 0
        self._epoch, self._images, self._start = -1, 0, 0.0
        bar("", 0, epochs, 0.0)

    def tick(self, epoch: int, images: int) -> None:
        """Show a step; see `Tick`."""
        now = time.perf_counter()
        if epoch != self._epoch:
            # The first step of an epoch is left out of the rate: it may include compiling and starting workers.
            self._epoch, self._images, self._start = epoch, images, now
        rate = (images - self._images) / (now - self._start) if now > self._start else 0.0
        share = min(images / self._per_epoch, 1.0) if self._per_epoch else 0.0
        self._bar("", epoch + share, self._epochs, rate, self._note or f"{images:,} images")

    def epoch(self, epoch: Epoch) -> None:
        """Show a finished epoch."""
        self._per_epoch = max(self._per_epoch, epoch.images)
        self._note = f"loss {sum(epoch.losses.values()) / max(len(epoch.losses), 1):.3f}"
        self._bar("", epoch.number, epoch.total, epoch.rate, self._note)


def counted(count: int, noun: str) -> str:
    """The title of a bar.

    >>> counted(1, "curve"), counted(3, "curve")
    ('curve', '3 curves')
    """
    return noun if count == 1 else f"{count} {noun}s"
