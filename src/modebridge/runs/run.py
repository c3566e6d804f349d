"""A run: makes what its members need and does not exist yet, keeps it, and returns the members' logits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from modebridge import trees
from modebridge.curves import BezierCurve
from modebridge.errors import ModebridgeError
from modebridge.members import (
    Artefact,
    ArtefactData,
    Member,
    ModeMember,
    ModeWeights,
    Predictor,
    Setting,
    Tensors,
    curve_and_ends,
    key_of,
    load_curve,
)
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.runs.epoch_count import EpochCount
from modebridge.runs.executor import Executor, Local, Orders
from modebridge.runs.folder import RunFolder
from modebridge.runs.given_modes import keys_of_given
from modebridge.runs.logits import Labels, Logits
from modebridge.runs.plan import Job, Plan, Stage, plan_of
from modebridge.scoring import LogitTable, MemberCost
from modebridge.training import Checkpoints, Epoch, TensorBoard
from modebridge.types import Progress

__all__ = ["Memory", "Run"]


class Run:
    """A recipe with its data, a store for its artefacts, and an executor.

    Args:
        recipe: the choices.
        seed: seed of every random choice; the same seed gives bitwise the same result on the same machine.
        folder: where artefacts are kept; existing ones are reused, and a killed run resumes. None keeps them in
            memory.
        data: the folder of the data set's official files.
        device: where to train: "auto" is the recipe's choice, or "cpu" or "cuda".
        progress: called after every epoch.
        given: modes trained elsewhere, by number.
        boards: whether to also write TensorBoard logs to RUN/tensorboard.
        executor: trains and computes artefacts; None does so in this process.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        seed: int = 0,
        folder: RunFolder | None = None,
        data: Path | str | None = None,
        device: str = "auto",
        progress: Progress | None = None,
        given: Mapping[int, Mode] | None = None,
        boards: bool = False,
        executor: Executor | None = None,
    ) -> None:
        if given and recipe.base == "swa":
            raise ModebridgeError(
                "Expected base to be sgd for modes that were trained elsewhere, but got 'swa'; SWA networks are "
                "trained from the start, so omit either the modes or the base."
            )
        self.recipe = recipe
        self.seed = seed
        self.folder = folder
        self.setting = Setting(recipe, seed, None if data is None else str(data), device)
        self.setting.check()
        self._progress = progress or (lambda stage, done, total, rate: None)
        self.store: RunFolder | Memory = Memory() if folder is None else folder
        self.trained: list[str] = []
        """What was trained by this run, such as "modes 0"."""
        self.seconds: dict[str, float] = {}
        """The duration of each stage."""
        self._executor = executor or Local()
        self._boards: dict[str, TensorBoard] | None = {} if boards else None
        # Tensors that were made or read are not read and hashed again.
        self._tensors: dict[tuple[str, str], Tensors] = {}
        self._given = dict(given or {})

    def plan(self, artefacts: Sequence[Artefact]) -> Plan:
        """The graph of some artefacts and everything that they need."""
        given = {k: mode.id for k, mode in self._given.items()}
        keys = keys_of_given(self.folder, self.store, self.recipe.modes, given)
        return plan_of(artefacts, self.setting, keys, self._executor.device, self._executor.most)

    def make(self, artefacts: Sequence[Artefact]) -> None:
        """Make the missing ones of some artefacts and of everything that they need."""
        processes = self.setting.engine.processes
        self._keep_given()
        plan = self.plan(artefacts)
        if self._executor.whole:
            while jobs := plan.runnable_jobs(self.store):
                self._do(jobs)
            return
        for wave in plan.waves():
            start = time.perf_counter()
            processes.wait()
            jobs = plan.jobs([stage for stage in wave if not stage.is_in(self.store)])
            # All processes have checked before the first of them writes.
            processes.wait()
            if jobs:
                self._do(jobs)
            stage = wave[0].artefact.stage
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def tensors(self, artefacts: Sequence[Artefact]) -> dict[str, Tensors]:
        """The tensors of some artefacts by place; what is missing is made."""
        self.make(artefacts)
        return {artefact.place: self._read(artefact.place) for artefact in artefacts}

    def _read(self, place: str) -> Tensors:
        meta = self.store.meta(place)
        if not meta:
            raise _unreadable(place)
        key = place, str(meta.get("hash"))
        if key not in self._tensors:
            self._tensors[key] = self.store.read(place)[0]
        return self._tensors[key]

    def load(self, member: Member) -> Predictor:
        """A member ready to predict; what it needs is made if it is missing."""
        return member.load(self.setting, self.tensors(member.artefacts(self.recipe)))

    def mode(self, number: int) -> Mode:
        """A mode by its number, aligned if the recipe says so."""
        (mode,) = self.load(ModeMember(number)).networks.values()
        return mode

    def curve(self, i: int, j: int) -> BezierCurve:
        """The curve between two modes, the lower number first."""
        return load_curve(self.setting, self.tensors(curve_and_ends(i, j, self.recipe)), i, j)

    def answers(self, members: Sequence[Member]) -> LogitTable:
        """The logits of members on the validation and test splits: from the folder, or predicted now.

        Args:
            members: the members; those that they read are added.
        """
        wanted = list(dict.fromkeys([*members, *(needed for member in members for needed in member.needs)]))
        tables = self.tensors([Logits(member) for member in wanted])
        # Last, so that labels exist only if logits do.
        (labels,) = self.tensors([Labels()]).values()
        return LogitTable(
            valid={member.name: tables[Logits(member).place]["valid"] for member in wanted},
            test={member.name: tables[Logits(member).place]["test"] for member in wanted},
            valid_labels=labels["valid"],
            test_labels=labels["test"],
            costs={member.name: self._cost(member) for member in wanted},
        )

    def _cost(self, member: Member) -> MemberCost:
        meta = self.store.meta(Logits(member).place)
        return MemberCost(meta["flops"], meta["params"], tuple(meta["reads"]), member.usable, member.alone)

    def _keep_given(self) -> None:
        """Keep the modes that were passed in, and record that they cannot be recreated here."""
        for k, mode in self._given.items():
            stage = Stage(ModeWeights(k), key_of("given", mode.id), ())
            if not stage.is_in(self.store):
                self._keep(stage, ArtefactData(mode.state, {"from": "elsewhere"}))
        if self._given and self.folder is not None and self.folder.writes:
            self.folder.files.give({str(k): mode.id for k, mode in self._given.items()})

    def _do(self, jobs: Sequence[Job]) -> None:
        stages = [stage for job in jobs for stage in job.stages]
        self._check_writable(stages[0].artefact)
        count = EpochCount(self._progress, stages, self.recipe)
        started: dict[str, float] = {}
        before = dict(self.seconds)

        def done(job: Job, made: Mapping[str, ArtefactData], seconds: float) -> None:
            now, kind = time.perf_counter(), job.kind.stage
            started[kind] = min(started.get(kind, now), now - seconds)
            if self._executor.whole:  # kinds overlap: time from the start of a kind's first job to the end of its last
                self.seconds[kind] = before.get(kind, 0.0) + now - started[kind]
            for stage in job.stages:
                one = made[stage.artefact.name]
                metadata = {"seconds": seconds / len(job.stages), **one.metadata}
                self._keep(stage, replace(one, metadata=metadata))
            count.finish(job)
            checkpoints = self._checkpoints(job)
            if checkpoints is not None and self.folder is not None and self.folder.writes:
                checkpoints.clear()

        report = lambda job: partial(self._report, job, count)  # noqa: E731
        orders = Orders(self.setting, self._read, self._checkpoints, self._begin, report, done)
        self._executor.execute(jobs, orders)
        self.setting.engine.processes.wait()
        # Read back, so that this run and the next see the same bits.
        for stage in stages:
            if not stage.is_in(self.store):
                raise _unreadable(stage.artefact.place)
        self.trained += [f"{stage.artefact.folder} {stage.artefact.name}" for stage in stages if stage.artefact.trained]

    def _keep(self, stage: Stage, made: ArtefactData) -> None:
        artefact = stage.artefact
        self._check_writable(artefact)
        metadata: dict[str, Any] = {
            "ingredients": {} if "from" in made.metadata else artefact.ingredients(self.setting),
            "inputs": {place: self.store.meta(place).get("hash") for place in stage.parents},
            **made.metadata,
        }
        self.store.keep(artefact.place, stage.key, made.tensors, metadata)

    def _check_writable(self, artefact: Artefact) -> None:
        if self.folder is not None and self.folder.read_only:
            raise ModebridgeError(
                f"Expected '{self.folder.path}' to be writable, because {artefact.folder} {artefact.name} is missing, "
                "but it is read-only; copy it, or choose another folder with --out."
            )

    def _checkpoints(self, job: Job) -> Checkpoints | None:
        if self.folder is None or not job.epochs(self.recipe):
            return None
        return Checkpoints(self.folder.path / ".work" / job.saved_as(self.setting.engine.way), self.folder.every)

    def _begin(self, job: Job, fresh: bool) -> None:
        if fresh and self.folder is not None and self.folder.writes and job.epochs(self.recipe):
            for artefact in job.artefacts:  # an artefact that is trained again starts with new metrics
                self.folder.metrics.forget(artefact.place)

    def _report(self, job: Job, count: EpochCount, epoch: Epoch) -> None:
        count(job, epoch)
        if self.folder is None or not self.folder.writes or not job.epochs(self.recipe):
            return
        for k, artefact in enumerate(job.artefacts):
            label = _label(epoch, artefact.name, k)
            scores = {"valid": epoch.scores[label]} if label in epoch.scores else {}
            artefact_epoch = replace(epoch, losses={"train": epoch.losses[label]}, scores=scores)
            self.folder.metrics.add(artefact.place, artefact_epoch)
            if self._boards is not None:
                if artefact.place not in self._boards:
                    self._boards[artefact.place] = TensorBoard(self.folder.path / "tensorboard" / artefact.place)
                self._boards[artefact.place](artefact_epoch)


class Memory:
    """Keeps the artefacts of a run in memory, for a run without a folder."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {}

    def meta(self, place: str) -> dict[str, Any]:
        """The metadata of an artefact; empty if there is none."""
        return self._kept.get(place, ({}, {}))[1]

    def read(self, place: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and metadata of an artefact; empty if there is none."""
        return self._kept.get(place, ({}, {}))

    def keep(self, place: str, key: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Keep a copy of the tensors, as a file would."""
        copies = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        self._kept[place] = copies, {"key": key, "hash": trees.fingerprint(copies), **metadata}


def _label(epoch: Epoch, name: str, number: int) -> str:
    """The label of an artefact among those trained together: its name, or its number if each is a task."""
    named = (label for label in epoch.losses if label == name or label.startswith(f"{number}/"))
    return next(named, next(iter(epoch.losses)))


def _unreadable(place: str) -> ModebridgeError:
    return ModebridgeError(
        f"Expected {place} to be readable after writing it, but it is not; check the disk (and that all processes see "
        "the same folder)."
    )
