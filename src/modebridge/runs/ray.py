"""Jobs of a run as tasks of a Ray cluster: Ray schedules them, and runs a job again if its worker is lost."""

from __future__ import annotations

import os
import pickle
import platform
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from modebridge import __version__
from modebridge.errors import ModebridgeError, first_line, needed, plural, quoting
from modebridge.members import Made, Parents, Setting, Tensors
from modebridge.recipes import Recipe
from modebridge.runs.graph import Job
from modebridge.runs.local import Executor, JobReport, make_job
from modebridge.training import Epoch

LOCAL = "ray"
"""The address that starts a Ray on this machine."""
RETRIES = 20
"""How often a job may lose its worker."""


class OnRay(Executor):
    """Makes jobs on the machines of a Ray cluster; only this process writes the run folder.

    If the worker of a job dies, Ray runs the job again, from its last checkpoint if the new worker sees the run folder,
    or is on the same machine. Every node reads the data set itself, from the same path.

    Args:
        address: "ray" starts Ray on this machine; otherwise the address of a running cluster: "auto", "HOST:6379",
            "ray://HOST:10001".
        recipe: the recipe; decides whether jobs use GPUs if the device is "auto".
        device: "auto", "cpu" or "cuda".
    """

    def __init__(self, address: str = LOCAL, *, recipe: Recipe, device: str = "auto") -> None:
        self._ray = _ray()
        self._ours = not self._ray.is_initialized()
        if self._ours:
            self._connect(address)
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._cores = max(int(node.get("CPU", 1)) for node in nodes) or 1
        has_gpu = any(node.get("GPU", 0.0) >= 1 for node in nodes)
        if device == "cuda" and not has_gpu:
            raise ModebridgeError(
                "Expected a node of the Ray cluster to have a GPU, but none has; add one, or use --device cpu."
            )
        self.device = device if device != "auto" else "cuda" if recipe.device != "cpu" and has_gpu else "cpu"
        total = {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}
        self.about = (
            f"{plural(len(nodes), 'node')}, {plural(total['CPU'], 'core')}, {plural(total['GPU'], 'GPU')}; "
            f"stages run on {self.device}"
        )
        """A description of the cluster."""

    def _connect(self, address: str) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        host, _, port = address.removeprefix("ray://").rpartition(":")
        fix = (
            "start one (ray start --head), set RAY_AUTH_MODE=token if it requires a token, or use --on ray for one on "
            "this machine"
        )
        kinds = OSError, RuntimeError, ValueError, AssertionError, ImportError
        with quoting(f"a Ray cluster at '{address}'", fix, kinds):
            if host and port.isdigit():  # Ray itself would keep trying for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            local = {"address": "local", "include_dashboard": False}
            self._ray.init(**(local if address == LOCAL else {"address": address}), **quiet)

    def __enter__(self) -> OnRay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            self._ray.shutdown()

    def execute(
        self, jobs: Sequence[Job], setting: Setting, parents: Parents, work: Path | None, report: JobReport
    ) -> Iterator[tuple[Job, Made]]:
        data = setting.data
        sent = pickle.dumps(replace(setting, device=self.device or "auto"))
        about = _versions(), (data.learned_from, data.scored_on), None if work is None else str(work.absolute())
        places = {place: self._ray.put(tensors) for place, tensors in parents.items()}  # sent once
        task = self._ray.remote(_make)
        waiting: dict[Any, Job] = {}
        for job in jobs:
            threads = 1 if job.kind.one_core and self.device == "cpu" else torch.get_num_threads()
            options = task.options(
                name=job.title,
                max_retries=RETRIES,
                num_cpus=min(threads, self._cores) if self.device == "cpu" else 1,
                num_gpus=1 if self.device == "cuda" else 0,
            )
            reads = [places[place] for place in job.parents]
            waiting[options.remote(sent, pickle.dumps(job), threads, *about, *reads)] = job
        failure: Exception | None = None
        try:
            while waiting:
                (done,), _ = self._ray.wait(list(waiting), num_returns=1)
                job = waiting.pop(done)
                try:
                    made = self._ray.get(done)
                except self._ray.exceptions.RayError as error:
                    failure = failure or _sentence(job, error)
                    continue
                for epoch in next(iter(made.values())).metadata.get("epochs", ()):
                    report(job, Epoch(**epoch))
                yield job, made
        finally:
            for reference in waiting:  # after an error in the run, or Ctrl-C
                self._ray.cancel(reference, force=True)
        if failure is not None:
            raise failure


def _make(
    sent: bytes,
    job: bytes,
    threads: int,
    versions: Mapping[str, str],
    images: tuple[str, str],
    work: str | None,
    *parents: Tensors,
) -> Made:
    """Make a job on a node; the run and the job are unpickled here, where an error can be told from a lost worker."""
    try:
        for name, version in _versions().items():
            if version != versions[name]:
                raise ModebridgeError(
                    f"Expected {name} {versions[name]} on every node, as on the driver, but got {version}; install the "
                    "same version."
                )
        torch.set_num_threads(threads)
        setting, made = _here(sent), pickle.loads(job)
        if (setting.data.learned_from, setting.data.scored_on) != images:
            raise ModebridgeError(
                "Expected the same images as on the driver, but they differ; copy the data set again, to the same path "
                "on every node."
            )
        shared = work is not None and Path(work).is_dir()
        folder = Path(work) if work is not None and shared else Path(tempfile.gettempdir()) / "modebridge-checkpoints"
        folder.mkdir(exist_ok=True)
        results = make_job(made, setting, dict(zip(made.parents, parents, strict=True)), folder)
        if not shared:  # only this node can remove its files
            for file in folder.glob(f"{made.saved_as(setting.engine.way)}*"):
                file.unlink()
        node = {"node": platform.node()}
        return {name: one._replace(metadata={**one.metadata, **node}) for name, one in results.items()}
    except Exception as error:
        reason = str(error) if isinstance(error, ModebridgeError) else f"{type(error).__name__}: {first_line(error)}"
        # Text only: any other exception might not survive the way back.
        raise ModebridgeError(f"on node {platform.node()} it failed with '{reason}'") from None


@lru_cache(maxsize=1)
def _here(sent: bytes) -> Setting:
    """The setting of the run in this process, whose data is read once."""
    setting: Setting = pickle.loads(sent)
    setting.check()
    return setting


def _versions() -> dict[str, str]:
    """Versions that affect the bits of a result; Ray itself compares its own and Python's."""
    return {"modebridge": __version__, "torch": torch.__version__.partition("+")[0]}


def _sentence(job: Job, error: Exception) -> ModebridgeError:
    cause = getattr(error, "cause", error)
    reason = str(cause) if isinstance(cause, ModebridgeError) else f"it failed with '{first_line(cause)}'"
    return ModebridgeError(
        f"Expected stage {job.title} to succeed, but {reason}; finished stages are kept, so fix the cause and run the "
        "same command again."
    )


def _ray() -> Any:
    # Ray reads these on import and start; values set by the user are kept.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    with needed("Ray to run stages on other machines", "cluster"):
        import ray
    return ray
