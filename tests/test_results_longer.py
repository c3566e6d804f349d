"""The table of what longer training changed is what the logits of two commits give."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOLDS = ROOT / "benchmarks" / "holds"
BN = ROOT / "results" / "cifar10-bn"


def has(commit: str) -> bool:
    """Whether this is a clone with its history."""
    command = ["git", "-C", str(BN), "cat-file", "-e", f"{commit}:./logits"]
    return shutil.which("git") is not None and subprocess.run(command, capture_output=True).returncode == 0


def test_what_longer_training_changed_on_batch_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (BN / "README.md").read_text()
    (commit,) = set(re.findall(r"--earlier (\w+)", page))
    if not has(commit):
        pytest.skip(f"commit {commit} is not here")
    monkeypatch.syspath_prepend(str(HOLDS))
    lines = runpy.run_path(str(HOLDS / "longer.py"))["longer"](BN, commit)
    assert len(lines) == 2 + 19
    assert "\n".join(["", *lines, ""]) in page
