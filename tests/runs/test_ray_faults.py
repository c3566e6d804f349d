"""What goes wrong on a cluster, done for real: each ends at the same artefacts, or in a sentence and nothing lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from modebridge.errors import ModebridgeError
from modebridge.members import members_of
from modebridge.runs import Run, RunFolder
from modebridge.runs.logits import Logits
from modebridge.runs.on_ray import OnRay
from tests.runs.damaging import tiny
from tests.runs.ray_faults import ForwardTrace, Killer, Lump, epochs, hashes, lasting

ray: Any = pytest.importorskip("ray", reason='Ray is not installed: pip install "modebridge[cluster]"')
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three modes in this process."""
    path = tmp_path_factory.mktemp("here")
    recipe = lasting(3)
    Run(recipe, folder=RunFolder(path)).make([Logits(member) for member in members_of(recipe)])
    return path


@pytest.fixture
def no_ray() -> Iterator[None]:
    yield
    ray.shutdown()


def make_on(executor: OnRay, path: Path) -> ForwardTrace:
    recipe = lasting(3)
    run = ForwardTrace(recipe, folder=RunFolder(path), executor=executor)
    run.make([Logits(member) for member in members_of(recipe)])
    return run


def test_a_stage_that_raises_is_named_and_the_others_finish_first(no_ray: None) -> None:
    with OnRay(recipe=tiny(), cpus=2) as executor:
        run = Run(tiny(), executor=executor)
        bad, slow, good = Lump(1, behaviour="raise"), Lump(2, behaviour="slow"), Lump(3)
        lumps = [bad, slow, good, Lump(4, needs=(slow, good)), Lump(5, needs=(bad, good)), Lump(6, needs=(bad,))]
        with pytest.raises(ModebridgeError) as caught:
            run.make(lumps)
        sentence = str(caught.value)
        assert "stage lumps 1" in sentence
        assert f"on node {os.uname().nodename}" in sentence
        assert "RuntimeError: the disk of this node is on fire'" in sentence
        assert "lumps 5" not in sentence, "what was never begun has not failed"
        assert [bool(run.store.meta(lump.place)) for lump in lumps] == [False, True, True, True, False, False]
        assert float(run.store.read("lumps/4")[0]["sum"]) == 5 * 2**18


def test_an_object_store_that_is_too_small_spills(no_ray: None) -> None:
    ray.init(num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)
    lumps = [Lump(k, size=24) for k in range(6)]  # 144 MB of parents
    total = Lump(9, needs=(*lumps[:2],))
    run = Run(tiny(), executor=OnRay(recipe=tiny()))
    run.make([*lumps, total, *(Lump(10 + k, needs=(lumps[k],)) for k in range(6))])
    assert float(run.store.read("lumps/9")[0]["sum"]) == 24 * 2**18
    assert [float(run.store.read(f"lumps/{10 + k}")[0]["sum"]) for k in range(6)] == [k * 24 * 2**18 for k in range(6)]


def test_half_a_gpu_packs_two_stages_on_a_card(no_ray: None) -> None:
    """A GPU that only Ray believes in: four cores, but only two halves of it."""
    ray.init(num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    seen: list[int] = []

    def watch(states: Any) -> None:
        seen.append(sum(state.state == "running" for state in states))

    run = Run(tiny(), executor=OnRay(recipe=tiny(), device="cpu", gpus=0.5, watch=watch))
    run.make([Lump(k, behaviour="slow") for k in range(4)])
    assert max(seen) == 2
    with pytest.raises(ModebridgeError, match="above 0 and at most 1, but got 1"):
        OnRay(recipe=tiny(), gpus=1.5)
    ray.shutdown()
    with pytest.raises(ModebridgeError, match="to have 1 GPU, but got at most 0"), OnRay(recipe=tiny(), device="cuda"):
        pass


def test_twenty_kills_in_a_row_end_at_the_same_bytes(here: Path, tmp_path: Path, no_ray: None) -> None:
    folder = RunFolder(tmp_path)
    with OnRay(recipe=lasting(3), cpus=2, shared=folder.path / ".work", every=0.05) as executor:
        killer = Killer(folder.path / ".work", "", times=20)
        make_on(executor, tmp_path)
    assert len(killer.killed) == 20
    assert hashes(tmp_path) == hashes(here)
    assert epochs(tmp_path) == epochs(here)


def test_a_node_is_lost_with_what_it_had_finished(here: Path, tmp_path: Path, no_ray: None) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    lost: list[float] = []

    def watch(states: Any) -> None:
        # All modes are done, one of them at least on the second node; a curve is under way. (It may begin while a
        # mode that it does not need is still being trained.)
        done = all(one.state == "done" for one in states if one.title.startswith("modes"))
        if not lost and done and any(one.state == "running" for one in states if one.title.startswith("curves")):
            lost.append(time.monotonic())
            threading.Thread(target=lambda: cluster.remove_node(second, allow_graceful=False)).start()

    try:
        with OnRay(cluster.address, recipe=lasting(3), every=0.05, watch=watch) as executor:
            assert executor.about.startswith("2 nodes, 2 cores")
            run = make_on(executor, tmp_path)
        assert lost
        assert hashes(tmp_path) == hashes(here)
        begun = [title for title, _ in run.begun if title.startswith("modes")]
        assert len(begun) == 3, "a mode that is in the run folder is not trained again because its node is gone"
    finally:
        cluster.shutdown()


def test_large_results_of_a_lost_node_are_not_made_again(no_ray: None) -> None:
    """They are in the driver's own object store by then."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    lost: list[float] = []

    def watch(states: Any) -> None:
        done = {one.title for one in states if one.state == "done"}
        if not lost and {"lumps 1", "lumps 2"} <= done:
            lost.append(time.monotonic())
            cluster.remove_node(second, allow_graceful=False)

    try:
        first = [Lump(k, size=24, behaviour="slow") for k in (1, 2)]
        slow = Lump(3, behaviour="slow", needs=(Lump(4, behaviour="slow", needs=(*first,)),))
        last = Lump(5, needs=(*first, slow))
        with OnRay(cluster.address, recipe=tiny(), watch=watch) as executor:
            run = ForwardTrace(tiny(), executor=executor)
            run.make([last])
        assert lost
        pids = {run.store.meta(one.place)["node_id"] for one in first}
        assert len(pids) == 2, "one was made on either node"
        begun = [title for title, _ in run.begun]
        assert (begun.count("lumps 1"), begun.count("lumps 2")) == (1, 1)
        assert float(run.store.read("lumps/5")[0]["sum"]) == (3 * 24 + 3) * 2**18
    finally:
        cluster.shutdown()


SCRIPT = """
import sys
from pathlib import Path
from tests.runs.test_ray_faults import make_on
from tests.runs.ray_faults import lasting
from modebridge.errors import ModebridgeError
from modebridge.runs.on_ray import OnRay
path, address = Path(sys.argv[1]), sys.argv[2]
try:
    cpus = 2 if address == "ray" else None
    with OnRay(address, recipe=lasting(3), cpus=cpus, shared=path / ".work", every=0.05) as executor:
        make_on(executor, path)
except ModebridgeError as error:
    print(error)
    sys.stdout.flush()
    import os; os._exit(3)
print("done")
"""


def driver(path: Path, address: str = "ray", environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(path), address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for(path: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    while not list(path.glob(pattern)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def test_a_driver_that_is_killed_and_started_again_goes_on(here: Path, tmp_path: Path) -> None:
    first = driver(tmp_path)
    wait_for(tmp_path, "modes/*/meta.json", first)
    family = [one for one in psutil.Process(first.pid).children(recursive=True) if "Agent" not in one.name()]
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.glob("modes/*/meta.json")}
    # Ray's agents look for their node only now and then; whoever works or could work must be gone at once.
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, "its Ray goes with it"
    second = driver(tmp_path)
    assert second.communicate(timeout=300)[0].strip() == "done"
    assert hashes(tmp_path) == hashes(here)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept, "what was finished is not made again"


def test_the_head_is_lost(here: Path, tmp_path: Path) -> None:
    port = "6399"  # below those that Ray gives to workers
    start = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--port", port, "--num-cpus", "2"]
    start += ["--include-dashboard=false", "--disable-usage-stats", "--block"]
    # A home, and so a token, of its own.
    home = tmp_path / "home"
    home.mkdir()
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "HOME": str(home), "RAY_AUTH_MODE": "token"}
    subprocess.run([start[0], "get-auth-token", "--generate"], check=True, env=environment, **quiet)
    head = subprocess.Popen(start, env=environment, **quiet)
    address = f"127.0.0.1:{port}"
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), timeout=1):
                break
            time.sleep(0.2)
        first = driver(tmp_path / "run", address, environment)
        wait_for(tmp_path / "run", "modes/*/meta.json", first)
        (server,) = [p for p in psutil.Process(head.pid).children(recursive=True) if "gcs_server" in p.name()]
        server.kill()
        said = first.communicate(timeout=120)[0]
        assert first.returncode == 3
        assert "Expected the head of the Ray cluster at" in said
        assert "finished work is kept" in said
    finally:
        for process in psutil.Process(head.pid).children(recursive=True):
            process.kill()
        head.kill()
        head.wait()
    second = driver(tmp_path / "run")
    assert second.communicate(timeout=300)[0].strip() == "done"
    assert hashes(tmp_path / "run") == hashes(here)
