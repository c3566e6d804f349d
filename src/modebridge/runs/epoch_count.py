"""The progress of training several networks, counted in epochs over all of them."""

from __future__ import annotations

import threading
from collections import Counter
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
        self._totals: Counter[str] = Counter()
        for artefact in (stage.artefact for stage in stages):
            self._totals[artefact.stage] += 1 if artefact.counted else artefact.epochs(recipe)
        self._done: dict[str, dict[str, int]] = {kind: {} for kind in self._totals}
        self._lock = threading.Lock()
        # Artefacts that are counted one by one are reported before the first is finished.
        for kind in dict.fromkeys(stage.artefact.stage for stage in stages if stage.artefact.counted):
            progress(kind, 0, self._totals[kind], 0.0)

    def finish(self, job: Job) -> None:
        """Count a finished job, where its artefacts are counted one by one."""
        if job.kind.counted:
            self._count(job, 1, 0.0)

    def __call__(self, job: Job, epoch: Epoch) -> None:
        """Count an epoch of a job, by its number, since a resumed run does not start with the first epoch."""
        if epoch.losses:
            self._count(job, epoch.number, epoch.rate)
        else:  # batches of what is not trained
            self._progress(job.kind.stage, epoch.number, epoch.total, epoch.rate)

    def _count(self, job: Job, each: int, rate: float) -> None:
        kind = job.kind.stage
        with self._lock:
            self._done[kind][job.title] = len(job.stages) * each
            self._progress(kind, sum(self._done[kind].values()), self._totals[kind], rate)
