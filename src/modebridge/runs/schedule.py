"""The duration of a run on several devices: its jobs, their dependencies, and a simulation of the schedule."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modebridge.members import Setting
from modebridge.runs.figure_data import POSITIONS, CurveProfile, everything_in
from modebridge.runs.logits import Logits
from modebridge.runs.plan import Job, Store, plan_of

__all__ = ["Schedule", "Task", "longest_path", "schedule", "tasks_of", "useful_devices", "work_of_job"]


@dataclass(frozen=True)
class Task:
    """A job in a schedule.

    Args:
        title: such as "curves 0-1".
        kind: such as "curves" (`Artefact.step`).
        seconds: duration on one device.
        needs: titles of the jobs that must be done before it.
    """

    title: str
    kind: str
    seconds: float
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """A schedule for a number of devices.

    Args:
        devices: number of devices.
        seconds: from the start of the first task to the end of the last.
        busy: seconds of work, over all devices.
        begins: start of every task, by title.
    """

    devices: int
    seconds: float
    busy: float
    begins: Mapping[str, float]

    @property
    def used(self) -> float:
        """The fraction of the devices' time that is spent working.

        >>> Schedule(2, 10.0, 15.0, {}).used
        0.75
        """
        return self.busy / (self.devices * self.seconds) if self.seconds else 1.0


def schedule(tasks: Sequence[Task], devices: int) -> Schedule:
    """List scheduling, as in Ray: whenever a device is free, it takes the first task that is ready.

    Args:
        tasks: parents before their children.
        devices: number of devices.

    >>> tasks = [Task("a", "", 3.0), Task("b", "", 1.0), Task("c", "", 2.0, ("b",)), Task("d", "", 1.0, ("a", "c"))]
    >>> [schedule(tasks, n).seconds for n in (1, 2, 4)]
    [7.0, 4.0, 4.0]
    """
    ends: dict[str, float] = {}
    begins: dict[str, float] = {}
    waiting = list(tasks)
    running: list[tuple[float, str]] = []
    now, free = 0.0, devices
    while waiting or running:
        for task in [task for task in waiting if all(need in ends for need in task.needs)][:free]:
            waiting.remove(task)
            begins[task.title] = now
            heapq.heappush(running, (now + task.seconds, task.title))
            free -= 1
        now, title = heapq.heappop(running)
        ends[title] = now
        free += 1
    return Schedule(devices, now, sum(task.seconds for task in tasks), begins)


def longest_path(tasks: Sequence[Task]) -> list[Task]:
    """The longest chain of tasks, each needing the previous one: no number of devices is faster.

    >>> tasks = [Task("a", "", 3.0), Task("b", "", 1.0), Task("c", "", 1.0, ("b", "a"))]
    >>> [task.title for task in longest_path(tasks)]
    ['a', 'c']
    """
    best: dict[str, tuple[float, list[Task]]] = {}
    for task in tasks:
        before = max((best[need] for need in task.needs), key=lambda chain: chain[0], default=(0.0, []))
        best[task.title] = before[0] + task.seconds, [*before[1], task]
    return max(best.values(), key=lambda chain: chain[0], default=(0.0, []))[1]


def useful_devices(tasks: Sequence[Task]) -> int:
    """The smallest number of devices that takes at most 1 % longer than the longest path.

    >>> useful_devices([Task(str(k), "", 1.0) for k in range(5)])
    5
    """
    shortest = sum(task.seconds for task in longest_path(tasks))
    enough = (n for n in range(1, len(tasks) + 1) if schedule(tasks, n).seconds <= 1.01 * shortest)
    return next(enough, len(tasks) or 1)


def tasks_of(setting: Setting, store: Store, keys: Mapping[str, str], rates: Mapping[str, float]) -> list[Task]:
    """The missing jobs of a run.

    Args:
        setting: determines what to make.
        store: the existing artefacts.
        keys: keys of modes that were not made here, by place.
        rates: multiply-adds per second of one device by kind; "" for all other kinds.
    """
    jobs = plan_of(everything_in(setting.recipe), setting, keys).missing(store)
    makes = {artefact.place: job.title for job in jobs for artefact in job.artefacts}
    return [
        Task(
            job.title,
            job.kind.step(),
            work_of_job(job, setting) / rates.get(job.kind.step(), rates[""]),
            tuple(dict.fromkeys(makes[place] for place in job.parents if place in makes)),
        )
        for job in jobs
    ]


def work_of_job(job: Job, setting: Setting) -> float:
    """The multiply-adds of a job, with or without training."""
    counts, base = setting.data.facts.counts, setting.base_cost.flops
    if issubclass(job.kind, Logits):
        members = [artefact.member for artefact in job.artefacts if isinstance(artefact, Logits)]
        return sum(member.cost(setting).flops for member in members) * (counts["valid"] + counts["test"])
    if issubclass(job.kind, CurveProfile):
        # With batch norm, every network on the curve gets its own statistics.
        images = counts["valid"] + (min(counts["train"], 10_000) if setting.network.norm == "bn" else 0)
        return float(POSITIONS * base * images * len(job.stages))
    return job.kind.work(job.artefacts, setting) * job.epochs(setting.recipe) * counts["train"]
