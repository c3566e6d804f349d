"""The setting of a run: equal by value, small when pickled, and with costs that need no data."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from modebridge.errors import ModebridgeError
from modebridge.members import BridgeMember, Setting
from modebridge.recipes import DataFacts, RunData, find_recipe
from tests.runs.small import tiny


def test_it_is_equal_by_value_and_pickled_without_what_it_built() -> None:
    setting = Setting(tiny(), 3, device="cpu")
    assert setting.net is setting.net
    assert setting.data.facts == setting.facts
    raw = pickle.dumps(setting)
    assert len(raw) < 5000
    again = pickle.loads(raw)
    assert again == setting == Setting(tiny(), 3, None, "cpu")
    assert hash(again) == hash(setting)
    assert "net" not in vars(again)
    assert again != Setting(tiny(), 4, device="cpu")


def test_costs_of_a_named_set_need_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunData, "__init__", None)
    setting = Setting(find_recipe("digits"))
    setting.check()
    assert setting.base_cost.relative_flops == 1
    bridge = BridgeMember("I", 0, 1)
    assert bridge.chosen(setting).share == pytest.approx(0.05, abs=0.02)
    assert bridge.chosen(setting) is bridge.chosen(setting)


def test_inputs_by_name_have_no_example_without_data() -> None:
    setting = Setting(tiny(), known=DataFacts(4, None, ("0", "1", "2", "3"), {}))
    with pytest.raises(ModebridgeError, match="Expected the network to take images, but it takes several inputs"):
        _ = setting.example


def test_devices() -> None:
    assert Setting(tiny()).engine.device.type == "cpu", "the recipe's choice"
    with pytest.raises(ModebridgeError, match="auto, cpu or cuda, but got 'tpu'"):
        _ = Setting(tiny(), device="tpu").engine
    if not torch.cuda.is_available():
        with pytest.raises(ModebridgeError, match="torch sees none"):
            _ = Setting(tiny(), device="cuda").engine
        assert Setting(replace(tiny(), device="auto")).engine.device.type == "cpu"
