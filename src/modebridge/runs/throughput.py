"""How fast this machine trains a recipe, measured by training a little of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from modebridge.errors import ModebridgeError
from modebridge.members import Setting, members_of
from modebridge.recipes import Recipe
from modebridge.runs.executor import Executor, Orders, make_job
from modebridge.runs.logits import Logits
from modebridge.runs.plan import Job
from modebridge.runs.run import Run
from modebridge.runs.schedule import work_of_job
from modebridge.training import Epoch, side_by_side

__all__ = ["measured_rates"]

BATCHES = 12
"""Number of batches per epoch to time; fewer if the data set has fewer."""
EPOCHS = 3


def measured_rates(spec: Setting) -> dict[str, float]:
    """Multiply-adds per second by kind of artefact, on one core of a CPU or on one GPU; "" for the slowest of them.

    Two modes (more if the recipe names members of further ones), their curves and their bridges are trained for three
    epochs of a few batches; the fastest epoch counts.

    Args:
        spec: the spec of the run.
    """
    timed = _Timed()
    recipe = _shortened(spec.recipe)
    run = Run(recipe, seed=spec.seed, data=spec.data_folder, device=spec.device, executor=timed)
    run.make([Logits(member) for member in members_of(recipe)])
    return {**timed.rates, "": min(timed.rates.values())}


def _shortened(recipe: Recipe) -> Recipe:
    data = recipe.data
    train = min(data.train or 10**9, BATCHES * data.batch_size)
    share = min(1.0, train / data.train) if data.train else 0.0
    # Validation is part of an epoch: keep its share of the images.
    valid = max(1, round(share * data.valid)) if data.valid and share else min(data.valid or 10**9, train // 8 + 1)
    short = {part: replace(getattr(recipe, part), epochs=EPOCHS) for part in ("mode", "curve", "bridge")}
    cut = replace(recipe, data=replace(data, train=train, valid=valid, test=min(data.test or 100, 100)), **short)
    return replace(cut, modes=_fewest(cut))


def _fewest(recipe: Recipe) -> int:
    """Two modes, or as many as the members named in the recipe need."""
    for modes in range(2, recipe.modes):
        with suppress(ModebridgeError):
            members_of(replace(recipe, modes=modes))
            return modes
    return recipe.modes


class _Timed(Executor):
    """Makes jobs here, one at a time, as a worker would, and times their epochs."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}

    def execute(self, jobs: Sequence[Job], orders: Orders) -> None:
        """Run all jobs."""
        for job in jobs:
            epochs: list[Epoch] = []
            work = partial(make_job, job, orders.setting, orders.parents(job), None, epochs.append)
            (made,) = side_by_side([work])
            orders.done(job, made, 0.0)
            if epochs:
                per_epoch = work_of_job(job, orders.setting) / job.epochs(orders.setting.recipe)
                rate = per_epoch / min(epoch.seconds for epoch in epochs)
                kind = job.kind.step()
                self.rates[kind] = max(rate, self.rates.get(kind, 0.0))
