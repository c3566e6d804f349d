"""The schedule, options that cannot be, and the engine that they ask for."""

from dataclasses import replace

import pytest
import torch

from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.training import Checkpoints, Engine, TrainConfig, fit_bridge, fit_curve, fit_modes
from tests.scenarios import blobs, fit_mode, loader, quick, tiny_net


def test_schedule_of_the_facts():
    config = TrainConfig(epochs=200)
    assert [config.factor(e) for e in range(5)] == pytest.approx([0.01, 0.2575, 0.505, 0.7525, 1.0])
    assert config.factor(199) == pytest.approx(6.4e-5, rel=0.01)
    assert TrainConfig(epochs=1, warmup=5).factor(0) == 1.0


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("epochs", -1, "an integer of at least 0"),
        ("epochs", 2.5, "an integer of at least 0"),
        ("lr", float("nan"), "a number of at least 0"),
        ("momentum", -0.1, "a number of at least 0"),
        ("weight_decay", float("inf"), "a number of at least 0"),
        ("warmup", 0, "an integer of at least 1"),
        ("average_from", 2, "at most the 1 epochs"),
        ("seed", 2**63, "an integer up to"),
        ("keep", "all", "'best' or 'last', but got 'all'"),
        ("mixup", -1.0, "a number of at least 0 .* but got -1"),
        ("cutmix", "a", "a number of at least 0"),
        ("checkpoints", "c.pt", r"Checkpoints, but got str; pass Checkpoints\('c.pt'\)"),
        ("callbacks", print, "a tuple of functions of an epoch"),
        ("callbacks", ("log",), "a tuple of functions of an epoch"),
    ],
)
def test_bad_configs(field, value, rule):
    with pytest.raises(ModebridgeError, match=f"Expected {field} to be {rule}"):
        replace(TrainConfig(epochs=1), **{field: value})


def test_its_key_names_what_determines_numbers():
    config = TrainConfig(epochs=3)
    how = replace(config, device="cpu", compile=True, progress=False, callbacks=(print,), checkpoints=Checkpoints("c"))
    assert how.key == config.key
    for other in (replace(config, seed=1), replace(config, mixup=0.4), replace(config, precision="bf16")):
        assert other.key != config.key


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", r"to be 'cpu', 'cuda', 'cuda:1' or a torch\.device, but got 'gpu'"),
        ("cuda:99", "a GPU for device .*, but torch sees"),
        ("mps", r"Expected a GPU for device 'mps', but torch sees none"),
    ],
)
def test_devices_that_are_not_there(device, message):
    with pytest.raises(ModebridgeError, match=message):
        fit_mode(tiny_net(), loader(), quick(1, device=device))


def test_auto_is_plain_on_a_cpu():
    if not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        assert Engine.of(quick()) == Engine()
    assert Engine.of(quick(device="cpu")) == Engine() == Engine(torch.device("cpu"))
    chosen = Engine.of(quick(device="cpu", precision="bf16", compile=True))
    assert (chosen.bf16, chosen.compile, chosen.graphs) == (True, True, False)


def test_auto_is_apples_gpu_where_there_is_no_other(monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        engine = Engine.of(TrainConfig(epochs=1))
        assert (engine.device.type, engine.bf16, engine.compile) == ("mps", False, False)


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs Apple's GPU")
def test_everything_trains_on_apples_gpu():
    net, two = tiny_net(), fit_modes([tiny_net(0), tiny_net(1)], loader(), quick(2))
    curve = fit_curve(net, *two, loader(), quick(1))
    bridge = fit_bridge(net, curve, loader(), valid=loader(), config=quick(1))
    assert torch.isfinite(Ensemble(net, two[:1], [bridge])(blobs().images)).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_auto_is_a_compiled_graph_in_bf16_on_a_gpu():
    engine = Engine.of(quick(), tiny_net())
    assert (engine.device.type, engine.bf16, engine.compile, engine.graphs) == ("cuda", True, True, True)
    assert engine.way == "bf16 together"
