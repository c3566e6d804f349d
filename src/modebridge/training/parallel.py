"""Independent jobs side by side on the cores of one machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["side_by_side"]

T = TypeVar("T")


def side_by_side(jobs: Sequence[Callable[[], T]], workers: int | None = None) -> list[T]:
    """Run jobs on threads, one core each, and return their results in order.

    Small networks gain little from several cores within one operation, and much from one network per core: torch lets
    go of the interpreter's lock inside its operations. Every job runs on one core whatever `workers` is, so results do
    not depend on how many run at a time.

    Args:
        jobs: functions without arguments; they must share nothing that they change.
        workers: how many at a time; None takes the number of cores, or all jobs where they are less than twice as many:
            three that share two cores are done sooner than two and then one.
    """
    cores = os.cpu_count() or 1
    count = workers if workers is not None else (len(jobs) if cores < len(jobs) < 2 * cores else cores)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pool = ThreadPoolExecutor(max(1, min(count, len(jobs))))
        try:
            return [future.result() for future in [pool.submit(job) for job in jobs]]
        finally:
            # After an error (or Ctrl-C) nothing more is begun, and nobody waits for what is under way.
            pool.shutdown(wait=False, cancel_futures=True)
    finally:
        torch.set_num_threads(before)
