"""Two processes end where one ends: judged by what they write, since gloo can abort at exit after all is done."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from modebridge.training.processes import Processes
from tests.training import job_of_processes

ROOT = Path(__file__).parents[2]


def alone(out: Path) -> dict[str, Tensor]:
    """The job in this very process: starting another one takes longer than the job."""
    out.mkdir()
    job_of_processes.main(out)
    return safetensors.torch.load_file(out / "found.safetensors")


def started(out: Path, size: int) -> dict[str, Tensor]:
    out.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(size), "--master-port", str(port)]
    command = [sys.executable, *launcher, "-m", "tests.training.job_of_processes", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert (out / "found.safetensors").exists(), done.stderr[-3000:]
    return safetensors.torch.load_file(out / "found.safetensors")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], dict[str, Tensor], Path]:
    folder = tmp_path_factory.mktemp("processes")
    return alone(folder / "one"), started(folder / "two", 2), folder / "two"


@pytest.mark.parametrize("what", ["mode", "curve", "bridge-I", "bridge-II", "bridge-labels", "statistics"])
def test_two_processes_end_where_one_does(runs: tuple[dict[str, Tensor], dict[str, Tensor], Path], what: str) -> None:
    one, two, _ = runs
    assert (float(one["size"]), float(two["size"])) == (1, 2)
    keys = [key for key in one if key.startswith(f"{what}/")]
    assert keys
    for key in keys:
        torch.testing.assert_close(two[key], one[key], rtol=0, atol=1e-12, msg=key)


def test_only_the_first_process_saves_and_loaders_must_agree(
    runs: tuple[dict[str, Tensor], dict[str, Tensor], Path],
) -> None:
    _, _, out = runs
    assert (out / "curve").exists()
    for rank in range(2):
        assert "every process to draw the same batches" in (out / f"said-{rank}").read_text()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_rows_of_all_processes_make_up_the_batch(count: int) -> None:
    seen: list[int] = []
    total = 0.0
    for rank in range(3):
        group = Processes()
        group.rank, group.size = rank, 3
        rows, weight = group.rows(count)
        assert weight == 0 or weight == len(range(count)[rows]) / count
        seen += list(range(count)[rows]) if weight else []
        total += weight
    assert sorted(seen) == list(range(count))
    assert total == pytest.approx(1)
