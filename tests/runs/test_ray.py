"""Runs on a real Ray: the same bits as here, whatever is killed in the middle of a stage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from modebridge.errors import ModebridgeError
from modebridge.members import Pin, members_of
from modebridge.runs import Run, RunFolder
from modebridge.runs.logits import Logits
from modebridge.runs.ray import OnRay
from tests.runs.ray_faults import Killer, Lump, epochs, lasting, ray_here
from tests.runs.small import bits, tiny

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three modes in this process."""
    path = tmp_path_factory.mktemp("here")
    everything(RunFolder(path))
    return path


def everything(folder: RunFolder, executor: OnRay | None = None) -> None:
    recipe = lasting(3)
    Run(recipe, folder=folder, executor=executor).make([Logits(member) for member in members_of(recipe)])


@pytest.fixture
def two_cores() -> Iterator[None]:
    with ray_here(num_cpus=2, include_dashboard=False):
        yield


@pytest.mark.usefixtures("two_cores")
def test_two_workers_and_a_kill_end_at_the_bits_of_a_run_in_this_process(tmp_path: Path) -> None:
    recipe = lasting(epochs=24)
    wanted = [Pin(0, 1)]  # and its modes
    here, folder = Run(recipe, folder=RunFolder(tmp_path / "here")), RunFolder(tmp_path / "there")
    here.make(wanted)
    killer = Killer(folder.work, "modes")
    there = Run(recipe, folder=folder, executor=OnRay(recipe=recipe))
    there.make(wanted)
    assert bits(tmp_path / "there") == bits(tmp_path / "here")
    assert epochs(tmp_path / "there") == epochs(tmp_path / "here")
    assert sorted(there.trained) == sorted(here.trained)
    assert len(killer.killed) == 1
    assert not [place for place in folder.work.iterdir() if place.name != "lock"]


@pytest.mark.slow
def test_a_stage_that_raises_is_named_and_the_others_finish_first() -> None:
    with OnRay(recipe=tiny()) as executor:
        run = Run(tiny(), executor=executor)
        lumps = [Lump(1, behaviour="raise"), Lump(2, behaviour="slow"), Lump(3)]
        with pytest.raises(ModebridgeError) as caught:
            run.make([*lumps, Lump(4, needs=(lumps[0],))])
        sentence = str(caught.value)
        assert "stage lumps 1 to succeed, but on node" in sentence
        assert "RuntimeError: the disk of this node is on fire'" in sentence
        assert [bool(run.folder.meta(lump.place)) for lump in lumps] == [False, True, True]
        with pytest.raises(ModebridgeError, match="to have a GPU, but none has"):
            OnRay(recipe=tiny(), device="cuda")


@pytest.mark.slow
def test_a_node_is_lost_with_what_it_was_doing(here: Path, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    lost: list[float] = []

    def lose(stage: str, *_: object) -> None:
        if not lost and stage == "networks":  # one of three is done, another on its way
            lost.append(time.monotonic())
            cluster.remove_node(second, allow_graceful=False)

    try:
        with ray_here(cluster.address):
            executor = OnRay(recipe=lasting(3))
            assert executor.about.startswith("2 nodes, 2 cores")
            run = Run(lasting(3), folder=RunFolder(tmp_path), executor=executor, progress=lose)
            run.make([Logits(member) for member in members_of(lasting(3))])
        assert lost
        assert bits(tmp_path) == bits(here)
    finally:
        cluster.shutdown()


SCRIPT = """
import sys
from tests.runs.test_ray import OnRay, RunFolder, everything, lasting, ray_here
with ray_here(num_cpus=2, include_dashboard=False):
    everything(RunFolder(sys.argv[1]), OnRay(recipe=lasting(3)))
print("done")
"""


def driver(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_driver_that_is_killed_and_started_again_goes_on(here: Path, tmp_path: Path) -> None:
    first = driver(tmp_path)
    while not list(tmp_path.glob("modes/*/meta.json")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    family = [one for one in psutil.Process(first.pid).children(recursive=True) if "Agent" not in one.name()]
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.glob("modes/*/meta.json")}
    # Ray's agents look for their node only now and then; whoever works or could work must be gone at once.
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, "its Ray goes with it"
    second = driver(tmp_path)
    assert second.communicate(timeout=300)[0].strip() == "done"
    assert bits(tmp_path) == bits(here)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept, "what was finished is not made again"


def test_without_a_cluster() -> None:
    environment = {**os.environ, "RAY_ADDRESS": ""}
    code = (
        "from modebridge.runs.ray import OnRay; from tests.runs.small import tiny; OnRay('127.0.0.1:1', recipe=tiny())"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert "Expected a Ray cluster at '127.0.0.1:1', but got" in process.stderr
