"""Processes average their gradients: two end where one ends, whenever their rows make up its batch."""

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


def test_two_processes_end_where_one_does_and_only_the_first_writes(tmp_path: Path) -> None:
    one, two = alone(tmp_path / "one"), started(tmp_path / "two", 2)
    assert (float(one.pop("size")), float(two.pop("size"))) == (1, 2)
    for key, tensor in one.items():
        torch.testing.assert_close(two[key], tensor, rtol=0, atol=1e-12, msg=key)
    assert {file.name for file in (tmp_path / "two").iterdir()} >= {"curve", "found.safetensors"}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_parts_are_equally_large_and_make_up_the_batch(count: int) -> None:
    parts = []
    for rank in range(3):
        images, labels = Processes(rank, 3).part((torch.arange(count).float(), torch.arange(count)))
        assert torch.equal(images, labels.float())
        parts.append(labels)
    assert len({len(part) for part in parts}) == 1
    assert set(torch.cat(parts).tolist()) == set(range(count))
