"""Compiled programs outlive their process: the second one of a shape finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modebridge.files.caches import VARIABLE as OURS
from modebridge.training.engine import VARIABLE, keep_compiled

PROGRAM = """
import torch
from modebridge.training import Engine
from torch._dynamo.utils import counters
compiled = Engine(compile=True).compiled(lambda x: (x.sin() * 2).sum())
assert torch.allclose(compiled(torch.ones(8)), torch.ones(8).sin().sum() * 2)
print(counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_the_folder_names_versions_and_card(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv(OURS, str(tmp_path))
    folder = keep_compiled(torch.device("cpu"))
    assert folder is not None
    assert folder.startswith(str(tmp_path / "compiled" / "torch-"))
    assert torch.__version__ in folder
    assert os.environ[VARIABLE] == folder


def test_what_the_user_chose_stays(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    assert keep_compiled(torch.device("cpu")) == str(tmp_path / "mine")


def test_without_a_cache_torch_decides(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv(OURS, "")
    assert keep_compiled(torch.device("cpu")) is None
    assert VARIABLE not in os.environ


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {**os.environ, OURS: str(tmp_path)}
    environment.pop(VARIABLE, None)

    def hits() -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        return sum(int(number) for number in done.stdout.split())

    assert hits() == 0
    assert any(Path(tmp_path).rglob("*"))
    assert hits() > 0
