"""Adapters of peft: folders as modes on one base, ensembles that store the adapters and only the name of the base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import modebridge as mb
from modebridge.files.adapters import quiet
from tests.files.test_transformers import bert, inputs

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


def base(folder: Path) -> nn.Module:
    with quiet():
        net: nn.Module = transformers.BertForSequenceClassification.from_pretrained(folder / "base")
    return net


def adapted(folder: Path, seed: int, **options: Any) -> nn.Module:
    """A network with an adapter that changes its outputs; LoRA starts as the identity."""
    config = {"task_type": "SEQ_CLS", "r": 2, "lora_alpha": 4, "target_modules": ["query", "value"], **options}
    with quiet():
        net: nn.Module = peft.get_peft_model(base(folder), peft.LoraConfig(**config))
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return net.eval()


def with_first(folder: Path) -> nn.Module:
    with quiet():
        net: nn.Module = peft.PeftModel.from_pretrained(base(folder), folder / "adapter0")
    return net


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with quiet():
        bert(0).save_pretrained(tmp_path / "base")  # type: ignore[operator]
        for seed in range(2):
            adapted(tmp_path, seed).save_pretrained(tmp_path / f"adapter{seed}")  # type: ignore[operator]
    return tmp_path


def batch() -> dict[str, Tensor]:
    return inputs(bert(0))


def test_from_two_adapters_to_one_file(folder: Path) -> None:
    net = with_first(folder)
    before, tokens = {name: tensor.clone() for name, tensor in net.state_dict().items()}, batch()
    modes = mb.load_checkpoints(net, [folder / "adapter0", folder / "adapter1"])
    assert [mode.id for mode in mb.load_checkpoints(net, folder / "adapter1")] == [modes[1].id]
    for seed, mode in enumerate(modes):
        with torch.no_grad():
            theirs = adapted(folder, seed)(**tokens).logits.softmax(dim=-1)
        torch.testing.assert_close(mb.Ensemble(net, [mode])(tokens), theirs)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    train = [{**tokens, "labels": torch.arange(12) % 3}]
    bridge = mb.fit_bridge(net, modes, train, budget=0.3, config=mb.TrainConfig(epochs=1))
    fast = mb.Ensemble(net, modes[:1], [bridge])
    assert mb.export(fast, folder / "fast.onnx", example=tokens).parity < 1e-5
    logits = fast.as_transformers()(**tokens).logits
    torch.testing.assert_close(logits.softmax(dim=-1), fast(tokens))


def test_only_the_adapter_is_stored(folder: Path) -> None:
    net = with_first(folder)
    both = mb.Ensemble(net, mb.load_checkpoints(net, [folder / "adapter0", folder / "adapter1"]))
    both.save(folder / "both")
    stored = (folder / "both" / "model.safetensors").stat().st_size
    assert stored < (folder / "base" / "model.safetensors").stat().st_size / 2
    assert torch.equal(mb.load(folder / "both")(tokens := batch()), both(tokens))
    assert torch.equal(mb.load(folder / "both", net=adapted(folder, 5))(tokens), both(tokens))
    with quiet():
        bert(1).save_pretrained(folder / "base")  # type: ignore[operator]
    with pytest.raises(mb.ModebridgeError, match="to have the weights that the adapter was saved with"):
        mb.load(folder / "both")
    # The adapter may have any name.
    with quiet():
        named = peft.PeftModel.from_pretrained(base(folder), folder / "adapter0", adapter_name="mine")
    own = mb.Ensemble(named, mb.load_checkpoints(named, [folder / "adapter0", folder / "adapter1"]))
    own.save(folder / "own")
    assert torch.equal(mb.load(folder / "own")(tokens), own(tokens))
    # What its base's name no longer gives is stored whole.
    both.save(folder / "whole")
    assert torch.equal(mb.load(folder / "whole", net=net)(tokens), both(tokens))


def test_a_base_with_another_head(folder: Path) -> None:
    options = {"num_labels": 5, "ignore_mismatched_sizes": True}
    with quiet():
        net = transformers.BertForSequenceClassification.from_pretrained(folder / "base", **options)
        lora = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
        net = peft.get_peft_model(net, lora).eval()
    one = mb.Ensemble(net, [mb.Mode.from_module(net)])
    one.save(folder / "one")
    again = mb.load(folder / "one")
    assert torch.equal(again(tokens := batch()), one(tokens))
    assert again(tokens).shape == (12, 5)


def test_adapters_train_alone(folder: Path) -> None:
    net = adapted(folder, 0)
    train = [{**batch(), "labels": torch.arange(12) % 3}]
    (mode,) = mb.fit_modes([net], train, mb.TrainConfig(epochs=1))
    moved = {name for name, tensor in mode.params.items() if not torch.equal(tensor, net.state_dict()[name])}
    assert moved
    assert all("lora_" in name or "modules_to_save" in name for name in moved)


def test_adapters_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    net = adapted(folder, 0)
    bert(0).save_pretrained(folder / "moved")  # type: ignore[operator]
    config = (folder / "adapter1" / "adapter_config.json").read_text()
    (folder / "adapter1" / "adapter_config.json").write_text(config.replace(f"{folder}/base", f"{folder}/moved"))
    with pytest.warns(UserWarning, match="was trained on '.*moved', but the network's base is '.*base'"):
        mb.load_checkpoint(net, folder / "adapter1")
    with pytest.raises(mb.ModebridgeError, match="for all; load its adapter with is_trainable=True"):
        mb.fit_modes([net.requires_grad_(False)], [{**batch(), "labels": torch.arange(12) % 3}])
    with pytest.raises(mb.ModebridgeError, match="Expected a network with an adapter"):
        mb.load_checkpoint(base(folder), folder / "adapter0")
    for name, options, message in (
        ("alpha", {"lora_alpha": 9}, "lora_alpha 4, as the network does, but got 9"),
        ("rank", {"r": 3}, "to have r 2"),
        ("places", {"target_modules": ["query"]}, "target_modules"),
    ):
        with quiet():
            adapted(folder, 1, **options).save_pretrained(tmp_path / name)  # type: ignore[operator]
        with pytest.raises(mb.ModebridgeError, match=message):
            mb.load_checkpoints(net, [tmp_path / name])
    (folder / "adapter0" / "adapter_config.json").write_text("[]")
    with pytest.raises(mb.ModebridgeError, match="to hold an adapter"):
        mb.load_checkpoint(net, folder / "adapter0")
    (folder / "adapter1" / "adapter_model.safetensors").unlink()
    with pytest.raises(mb.ModebridgeError, match=r"to hold adapter_model\.safetensors"):
        mb.load_checkpoint(net, folder / "adapter1")


def test_a_file_cannot_name_other_classes(folder: Path) -> None:
    net = adapted(folder, 0)
    mb.Ensemble(net, [mb.Mode.from_module(net)]).save(folder / "one")
    config = json.loads((folder / "one" / "config.json").read_text())
    assert config["object"]["net"]["base"]["class"] == "BertForSequenceClassification"
    from modebridge.files.adapters import build_adapted

    description = config["object"]["net"]
    with pytest.raises(ValueError, match="no model of transformers"):
        build_adapted({**description, "base": {**description["base"], "class": "Trainer"}})
    with pytest.raises(mb.ModebridgeError, match="to be found and built"):
        build_adapted({**description, "base": {**description["base"], "name": str(folder / "gone")}})
