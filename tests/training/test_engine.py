"""Devices, and compiled programs that outlive their process."""

from __future__ import annotations

import pytest
import torch

from modebridge.errors import ModebridgeError
from modebridge.training import Engine
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
