"""Independent jobs in parallel on the cores of one machine."""

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

    Small networks gain little from several cores per operation, and much from one network per core: torch releases the
    GIL inside its operations. Every job runs on one core whatever `workers` is, so results do not depend on how many
    run at a time.

    Args:
        jobs: functions without arguments; they must not share anything that they change.
        workers: how many jobs run at a time. None uses the number of cores, or all jobs at once if there are fewer
            than twice as many: three jobs sharing two cores finish sooner than two and then one.
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
            # After an error (or Ctrl-C) start no more jobs, and do not wait for the running ones.
            pool.shutdown(wait=False, cancel_futures=True)
    finally:
        torch.set_num_threads(before)
