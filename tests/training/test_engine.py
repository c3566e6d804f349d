"""Devices, and compiled programs that outlive their process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modebridge.errors import ModebridgeError
from modebridge.files.caches import VARIABLE as OURS
from modebridge.training import Engine
from modebridge.training.engine import VARIABLE, keep_compiled
from tests.plans import fit_mode
from tests.scenarios import loader, quick, tiny_net


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", r"to be 'cpu', 'cuda', 'cuda:1' or a torch\.device, but got 'gpu'"),
        ("cuda:99", r"torch sees none|GPUs of this machine"),
    ],
)
def test_devices_that_are_not_there(device, message):
    with pytest.raises(ModebridgeError, match=message):
        fit_mode(tiny_net(), loader(), quick(1, device=device))


def test_auto_is_plain_on_a_cpu():
    if not torch.cuda.is_available():
        assert Engine.of(quick()) == Engine()
    assert Engine.of(quick(device="cpu")) == Engine() == Engine(torch.device("cpu"))
    chosen = Engine.of(quick(device="cpu", precision="bf16", compile=True))
    assert (chosen.bf16, chosen.compile, chosen.graphs) == (True, True, False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_auto_is_a_compiled_graph_in_bf16_on_a_gpu():
    engine = Engine.of(quick(), tiny_net())
    assert (engine.device.type, engine.bf16, engine.compile, engine.graphs) == ("cuda", True, True, True)
    assert engine.way == "bf16 together"


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
