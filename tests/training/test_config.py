"""The schedule, and options that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modebridge.errors import ModebridgeError
from modebridge.training import Checkpoints, TrainConfig


def test_schedule_of_the_facts():
    config = TrainConfig(epochs=200)
    assert [config.factor(e) for e in range(5)] == pytest.approx([0.01, 0.2575, 0.505, 0.7525, 1.0])
    assert config.factor(199) == pytest.approx(6.4e-5, rel=0.01)
    assert TrainConfig(epochs=1, warmup=5).factor(0) == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", -1),
        ("epochs", 2.5),
        ("lr", float("nan")),
        ("momentum", -0.1),
        ("weight_decay", float("inf")),
        ("warmup", 0),
    ],
)
def test_bad_configs(field, value):
    with pytest.raises(ModebridgeError, match=f"Expected {field} to be (a number|an integer) of at least"):
        replace(TrainConfig(epochs=1), **{field: value})
    with pytest.raises(ModebridgeError, match="'best' or 'last'"):
        TrainConfig(epochs=1, keep="all")  # type: ignore[arg-type]


def test_its_key_names_what_determines_numbers():
    config = TrainConfig(epochs=3)
    how = replace(config, device="cpu", compile=True, progress=False, callbacks=(print,), checkpoints=Checkpoints("c"))
    assert how.key == config.key
    for other in (replace(config, seed=1), replace(config, mixup=0.4), replace(config, precision="bf16")):
        assert other.key != config.key


def test_one_kind_of_mixing_turns_the_default_off():
    assert TrainConfig(epochs=1).mixing(0.4) == (0.4, 0.0)
    assert TrainConfig(epochs=1, cutmix=1.0).mixing(0.4) == (0.0, 1.0)
    assert TrainConfig(epochs=1, mixup=0.0).mixing(0.4) == (0.0, 0.0)
    with pytest.raises(ModebridgeError, match="cutmix to be at least 0, but got -1"):
        TrainConfig(epochs=1, cutmix=-1)
