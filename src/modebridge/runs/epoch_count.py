"""The progress of training several networks, counted in epochs over all of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from modebridge.recipes import Recipe
from modebridge.runs.plan import Job, Stage
from modebridge.training import Epoch
from modebridge.types import Progress

__all__ = ["EpochCount"]


class EpochCount:
    """Counts epochs of jobs by kind, over all networks trained in them, on any thread.

    Args:
        progress: called after every epoch: kind, epochs done, total epochs, images per second.
        stages: everything that will be made.
        recipe: determines the epochs of each.
    """

    def __init__(self, progress: Progress, stages: Sequence[Stage], recipe: Recipe) -> None:
        self._progress = progress
        self._totals: dict[str, int] = {}
        for stage in stages:
            kind, epochs = stage.artefact.stage, stage.artefact.epochs(recipe)
            self._totals[kind] = self._totals.get(kind, 0) + epochs
        self._done: dict[str, dict[str, int]] = {kind: {} for kind in self._totals}
        self._lock = threading.Lock()

    def __call__(self, job: Job, epoch: Epoch) -> None:
        """Count an epoch of a job."""
        kind = job.kind.stage
        with self._lock:
            # By number, since a resumed run does not start with the first epoch.
            self._done[kind][job.title] = len(job.stages) * epoch.number
            self._progress(kind, sum(self._done[kind].values()), self._totals[kind], epoch.rate)
