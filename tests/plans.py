"""Short ways for tests to a single mode, to bridges by name, and to a student before training."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from modebridge.bridges import Bridge
from modebridge.modes import Mode
from modebridge.objectives import StudentPlan
from modebridge.training import fit_many, fit_modes
from modebridge.training.config import DEFAULT
from modebridge.training.fit import fresh_mode


def fit_mode(net, train, config=DEFAULT, **options: Any) -> Mode:
    return fit_modes([net], [train], config, **options)[0]


def fit_bridges(
    net, bridges: Mapping[str, Bridge], train, config=DEFAULT, *, mixup=None, cutmix=None, valid=None
) -> dict[str, Bridge]:
    return fit_many(net, bridges, train, replace(config, mixup=mixup, cutmix=cutmix), valid=valid)


def plan_student(net, teachers, *, start=None, seed=0, **options: Any) -> StudentPlan:
    return StudentPlan(net, start or fresh_mode(net, seed), tuple(teachers), **options)


def on_threads(job, count=1) -> list[Any]:
    """The results of a job on several threads at once, with one core each as in a run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(count) as pool:
            return [future.result() for future in [pool.submit(job) for _ in range(count)]]
    finally:
        torch.set_num_threads(before)
