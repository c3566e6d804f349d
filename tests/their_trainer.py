"""Lightning's trainer without its files and its screen, for tests of what goes in and out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning.pytorch import Callback, Trainer

from modebridge.data import ImageSet

# Notices that Lightning gives on itself: of a logger that is not there, of workers, of torch's trees.
quiet = pytest.mark.filterwarnings(
    "ignore:You called .self.log", "ignore:.*does not have many workers", "ignore:.*LeafSpec"
)


def trainer(folder: Path, callbacks: tuple[Callback, ...] = ()) -> Trainer:
    return Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        default_root_dir=folder,
    )


def pairs(data: ImageSet) -> list[tuple[object, object]]:
    """A data set as torch's loaders want it."""
    return list(zip(data.images, data.labels, strict=True))
