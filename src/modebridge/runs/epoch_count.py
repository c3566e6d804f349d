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
        self._totals: dict[str, int] = {}
        for stage in stages:
            kind, epochs = stage.artefact.stage, stage.artefact.epochs(recipe)
            self._totals[kind] = self._totals.get(kind, 0) + epochs
        self._done: dict[str, dict[str, int]] = {kind: {} for kind in self._totals}
        self._counted = Counter(stage.artefact.stage for stage in stages if stage.artefact.counted)
        self._finished: Counter[str] = Counter()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Report the artefacts that are counted one by one, before the first is finished."""
        for kind, total in self._counted.items():
            self._progress(kind, 0, total, 0.0)

    def finish(self, job: Job) -> None:
        """Count a finished job, where its artefacts are counted one by one."""
        if job.kind.counted:
            kind = job.kind.stage
            with self._lock:
                self._finished[kind] += len(job.stages)
                self._progress(kind, self._finished[kind], self._counted[kind], 0.0)

    def __call__(self, job: Job, epoch: Epoch) -> None:
        """Count an epoch of a job."""
        kind = job.kind.stage
        with self._lock:
            # By number, since a resumed run does not start with the first epoch.
            self._done[kind][job.title] = len(job.stages) * epoch.number
            self._progress(kind, sum(self._done[kind].values()), self._totals[kind], epoch.rate)
