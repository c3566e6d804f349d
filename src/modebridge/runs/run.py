"""A run: makes what its members need and does not exist yet, keeps it, and returns the members' logits."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from modebridge.errors import ModebridgeError, plural
from modebridge.members import (
    ArtefactData,
    Loaded,
    Member,
    ModeMember,
    Node,
    Setting,
    Tensors,
    key_of,
    members_of,
)
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.report import as_dicts, csv_of, decisions_table, markdown_table, networks_alone, verdict
from modebridge.runs.graph import Graph, Job
from modebridge.runs.local import Executor, Local, machine
from modebridge.runs.logits import Labels, Logits, everything_in, with_reads
from modebridge.runs.plan import DATA, GIVEN, doubts, given_keys
from modebridge.runs.results import curve_warnings, gather, main_rows, table_of, write_page
from modebridge.runs.store import RECIPE, RESULTS, RunFolder
from modebridge.scoring import LogitTable, Row
from modebridge.training import Epoch
from modebridge.types import Progress


class Run:
    """A recipe with its data, a store for its artifacts, and an executor.

    Args:
        recipe: the choices.
        seed: seed of every random choice; the same seed gives bitwise the same result on the same machine.
        folder: where artifacts are kept; existing ones are reused, and a killed run resumes. None keeps them in a
            temporary folder, which goes with the run.
        data: the folder of the data set's official files.
        device: where to train: "auto" (the recipe's choice), "cpu" or "cuda".
        progress: called with the progress of each stage.
        given: modes trained elsewhere, by number.
        executor: makes artifacts; None does so in this process.
        replace: whether networks that the folder has may be trained again, with other settings.
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
        executor: Executor | None = None,
        replace: bool = True,
    ) -> None:
        if given and recipe.base != "sgd":
            raise ModebridgeError(
                "Expected base to be sgd for modes that were trained elsewhere, but got "
                f"'{recipe.base}'; weights are averaged during training, so omit either the modes or the base."
            )
        self.recipe, self.seed = recipe, seed
        self.setting = Setting(recipe, seed, None if data is None else str(data), device)
        self.setting.check()
        if folder is None:
            folder = RunFolder(tempfile.mkdtemp(prefix="modebridge-"))
            weakref.finalize(self, shutil.rmtree, folder.path, ignore_errors=True)
        self.folder = folder
        self.trained: list[str] = []
        """What was trained by this run, such as "modes 0"."""
        self.seconds: dict[str, float] = {}
        """The duration of each stage."""
        self._executor = executor or Local()
        self._progress = progress
        # Tensors that were made or read are not read and hashed again.
        self._tensors: dict[str, tuple[str, Tensors]] = {}
        self._given = dict(given or {})
        self._replace = replace
        self._existing: set[str] = set()

    def graph(self, nodes: Sequence[Node]) -> Graph:
        ids = {k: mode.id for k, mode in self._given.items()}
        return Graph(nodes, self.setting, given_keys(self.folder, self.recipe, ids), self._executor.device)

    def plan(self) -> list[dict[str, Any]]:
        """What exists and what will be made, in which order; see `Graph.steps`."""
        given = [ModeMember(k).place for k in self._given]
        return self.graph(everything_in(self.recipe)).steps(self.folder, given)

    def make(self, nodes: Sequence[Node]) -> None:
        """Make what is missing of some nodes and of everything they need; what is known to exist is not planned."""
        nodes = [node for node in nodes if node.place not in self._existing]
        if not nodes:
            return
        processes = self.setting.engine.processes
        self._keep_given()
        graph = self.graph(nodes)
        if not self._replace and (count := self.replaced(graph)):
            raise ModebridgeError(
                f"Expected to keep the trained networks of '{self.folder.path}', but with these settings "
                f"{plural(count, 'network')} would be trained again and replaced; choose another folder with --out, "
                "or repeat modebridge run with --replace."
            )
        for wave in graph.waves():
            start = time.perf_counter()
            processes.wait()
            jobs = graph.jobs([node for node in wave if not graph.exists(node, self.folder)])
            # All processes have checked before the first of them writes.
            processes.wait()
            if jobs:
                self._execute(jobs, graph)
            stage = wave[0].stage
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
        self._existing.update(graph.nodes)

    def tensors(self, nodes: Sequence[Node]) -> dict[str, Tensors]:
        """The tensors of some nodes by place; what is missing is made."""
        self.make(nodes)
        return {node.place: self._read(node.place) for node in nodes}

    def _read(self, place: str) -> Tensors:
        bits = str(self.folder.meta(place).get("bits"))
        if self._tensors.get(place, ("", {}))[0] != bits:
            tensors, meta = self.folder.read(place)
            if not meta:
                raise ModebridgeError(
                    f"Expected {place} to be readable after writing it, but it is not; check the disk (and that all "
                    "processes see the same folder)."
                )
            self._tensors[place] = bits, tensors
        return self._tensors[place][1]

    def load(self, member: Member) -> Loaded:
        """A member ready to predict; what it needs is made if it is missing."""
        return member.load(self.setting, self.tensors(member.nodes(self.recipe)))

    def answers(self, members: Sequence[Member]) -> LogitTable:
        """The logits of members and of those that they read, on both splits: from the folder, or predicted now."""
        places = {member: Logits(member).place for member in with_reads(members)}
        tables = self.tensors([*map(Logits, places), Labels()])
        found = {member: ArtefactData(tables[place], self.folder.meta(place)) for member, place in places.items()}
        return table_of(found, tables[Labels().place])

    @cached_property
    def table(self) -> LogitTable:
        return self.answers(members_of(self.recipe))

    @cached_property
    def rows(self) -> list[Row]:
        return main_rows(self.recipe, self.table)

    @property
    def warnings(self) -> list[str]:
        return [*curve_warnings(self.recipe, self.table), *doubts(self.folder)]

    def replaced(self, graph: Graph | None = None) -> int:
        """How many trained networks of the folder have other settings and would be trained again."""
        graph = graph or self.graph(everything_in(self.recipe))
        known = {
            node.place: self.folder.meta(node.place).get("key")
            for node in graph.nodes.values()
            if node.folder == ModeMember.folder
        }
        return sum(key not in (None, graph.keys[place]) for place, key in known.items())

    def _keep_given(self) -> None:
        """Keep the modes that were passed in, and record that they cannot be recreated here."""
        for k, mode in self._given.items():
            node, key = ModeMember(k), key_of("given", mode.id)
            if self.folder.meta(node.place).get("key") != key:
                self._check_writable(node)
                self.folder.keep(node.place, mode.state, {"key": key, "from": "elsewhere"})
        if self._given and self.folder.writes:
            given = {str(k): mode.id for k, mode in self._given.items()}
            self.folder.write_record(GIVEN, {**self.folder.record(GIVEN), **given})

    def _execute(self, jobs: Sequence[Job], graph: Graph) -> None:
        self._check_writable(jobs[0].nodes[0])
        count = _Count(self._progress, jobs, self.recipe)
        parents = {place: self._read(place) for job in jobs for place in job.parents}
        for job, made in self._executor.execute(jobs, self.setting, parents, self.folder.work, count):
            for node in job.nodes:
                tensors, place = made[node.name].tensors, node.place
                metadata = {
                    "key": graph.keys[place],
                    "ingredients": node.ingredients(self.setting),
                    "inputs": {parent: self.folder.meta(parent).get("bits") for parent in graph.parents[place]},
                }
                self.folder.keep(place, tensors, {**metadata, **made[node.name].metadata})
                bits = self.folder.meta(place).get("bits")
                if bits is not None:  # None in the processes of a group that do not write
                    self._tensors[place] = bits, {name: tensor.detach().cpu() for name, tensor in tensors.items()}
            count(job)
            if self.folder.writes:
                # Also what a killed worker was writing, ".new-PID-NAME".
                for file in self.folder.work.glob(f"*{job.saved_as(self.setting.engine.way)}*"):
                    file.unlink(missing_ok=True)
        self.setting.engine.processes.wait()
        self.trained += [f"{node.folder} {node.label}" for job in jobs for node in job.nodes if node.trained]

    def _check_writable(self, node: Node) -> None:
        if self.folder.read_only:
            raise ModebridgeError(
                f"Expected '{self.folder.path}' to be writable, because {node.folder} {node.label} is missing, but it "
                "is read-only; copy it, or choose another folder with --out."
            )


def run_recipe(recipe: Recipe, *, folder: RunFolder | None = None, **options: Any) -> Run:
    """Make everything in a recipe that does not exist yet, then score every combination on the test split.

    The arguments are those of `Run`; the result has the table, its rows, and what was trained.
    """
    run = Run(recipe, folder=folder, **options)
    if folder is not None:
        facts = run.setting.data.facts  # raises an error before anything is made
        run.make(everything_in(recipe))
        if folder.writes:
            folder.write_record(DATA, asdict(facts))
    run.rows  # noqa: B018 - makes and scores the members
    return run


def write_results(run: Run, folder: RunFolder) -> dict[str, Any]:
    """Write results.md, .json and .csv and the page of a finished run, unless the folder is read-only.

    Returns the content of results.json. If nothing has changed, that keeps its time and machine.
    """
    settings, before = folder.path / RECIPE, folder.record(RESULTS)
    record: dict[str, Any] = {
        "recipe": run.recipe.name,
        "seed": run.seed,
        "rows": as_dicts(run.rows),
        "warnings": run.warnings,
        "summary": verdict(run.rows, run.table.guess_nll, list(networks_alone(run.rows, run.table).values())),
        "settings": settings.read_text(encoding="utf-8") if settings.is_file() else "",
    }
    changed = bool(run.trained) or before != {**before, **json.loads(json.dumps(record))}
    seconds = run.seconds if run.trained else before.get("seconds", {})
    record |= {"trained": run.trained, "seconds": seconds, **machine()}
    if folder.writes:
        tables = markdown_table(run.rows), decisions_table(run.rows).markdown()
        folder.write("results.csv", csv_of(as_dicts(run.rows)))
        folder.write("results.md", "\n\n".join([*tables, *run.warnings, record["summary"]]) + "\n")
        if changed:
            folder.write_record(RESULTS, record)
        write_page(folder, gather(folder, run.table, run.rows))
        folder.tidy()
    return record


WHOLE = Epoch(1, 1, 0.0, {})
"""All of a job."""


class _Count:
    """The progress of the jobs of a wave, in epochs over all networks trained in them, or in jobs; on any thread."""

    def __init__(self, progress: Progress | None, jobs: Sequence[Job], recipe: Recipe) -> None:
        self._progress, self._stage = progress, jobs[0].kind.stage
        self._totals = {job.title: len(job.nodes) * job.nodes[0].training(recipe).epochs or 1 for job in jobs}
        self._done = dict.fromkeys(self._totals, 0)
        self._lock = threading.Lock()

    def __call__(self, job: Job, epoch: Epoch = WHOLE) -> None:
        """Count an epoch or a batch of a job, or the whole job."""
        with self._lock:
            if epoch.total > 1 and self._totals[job.title] == 1:
                self._totals[job.title] = epoch.total
            self._done[job.title] = self._totals[job.title] * epoch.number // epoch.total
            if self._progress is not None:
                self._progress(self._stage, sum(self._done.values()), sum(self._totals.values()), epoch.rate)
