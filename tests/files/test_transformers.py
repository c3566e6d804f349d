"""Models of transformers: folders of save_pretrained as modes, ensembles that are built again by their config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import modebridge as mb

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "num_labels": 3}


def vit(seed: int, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.ViTConfig(**{**SMALL, "image_size": 16, "patch_size": 4, **options})
    made: nn.Module = transformers.ViTForImageClassification(config)
    return made


def bert(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.BertConfig(**SMALL, vocab_size=50, max_position_embeddings=32)
    made: nn.Module = transformers.BertForSequenceClassification(config)
    return made


def inputs(net: nn.Module, n: int = 12) -> dict[str, Tensor]:
    if "ViT" in type(net).__name__:
        return {"pixel_values": torch.rand(n, 3, 16, 16)}
    return {"input_ids": torch.randint(50, (n, 10)), "attention_mask": torch.ones(n, 10, dtype=torch.long)}


@pytest.fixture
def runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    for kind in (vit, bert):
        for seed in range(2):
            kind(seed).save_pretrained(tmp_path / kind.__name__ / f"run{seed}")  # type: ignore[operator]
    capfd.readouterr()
    return tmp_path


@pytest.mark.parametrize("kind", [vit, bert])
def test_from_two_folders_to_one_file(kind: Any, runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = runs / kind.__name__
    net = type(kind(7)).from_pretrained(folder / "run0")
    capfd.readouterr()
    (folder / "run0" / "training_args.bin").write_bytes(b"Trainer writes one beside the weights")
    modes = mb.load_checkpoints(net, [folder / "run0", folder / "run1"])
    assert [mode.id for mode in modes] == [mb.Mode.from_module(kind(seed)).id for seed in range(2)]
    assert [mode.id for mode in mb.load_checkpoints(net, folder)] == [mode.id for mode in modes]
    assert mb.load_checkpoint(net, folder / "run1" / "model.safetensors").id == modes[1].id
    assert capfd.readouterr().err == "", "no progress bars"
    batch = inputs(net)
    train = [{**batch, "labels": torch.arange(12) % 3}]
    bridge = mb.fit_bridge(net, modes, train, budget=0.3, config=mb.TrainConfig(epochs=1))
    mb.distill(net, modes, train, mb.TrainConfig(epochs=1))
    fast = mb.Ensemble(net, modes[:1], [bridge])
    fast.save(runs / "fast")
    again = mb.load(runs / "fast")
    assert torch.equal(again(batch), fast(batch))
    assert mb.export(again, runs / "fast.onnx", example=batch).parity < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [({"num_hidden_layers": 30_000}, "larger than the stored weights"), ({"hidden_size": -1}, "to be built, but got")],
)
def test_configs_of_others(change: dict[str, Any], message: str, runs: Path) -> None:
    from modebridge.files.rebuilding import build, describe

    net = vit(0)
    description = describe(net)
    assert description is not None
    build(json.loads(json.dumps(description)), net.state_dict())
    config = {**description["config"], **change}
    with pytest.raises(mb.ModebridgeError, match=message):
        build({**description, "config": config}, net.state_dict())
    for name in ("pipeline", "AutoModel", "Trainer", "nothing"):
        with pytest.raises(mb.ModebridgeError, match="no model of transformers"):
            build({"class": name, "config": {}}, net.state_dict())
    evil = {**description["config"], "auto_map": {"AutoModel": "evil--code.Model"}, "attn_implementation": "evil/code"}
    assert build({**description, "config": evil}, net.state_dict()).config._attn_implementation in ("sdpa", "eager")


def test_folders_that_do_not_fit(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(mb.ModebridgeError, match="same shapes, but got"):
        mb.load_checkpoint(vit(0, hidden_size=48), runs / "vit" / "run0")
    backbone = tmp_path / "backbone"
    vit(0).vit.save_pretrained(backbone)  # type: ignore[union-attr,operator]
    with pytest.raises(mb.ModebridgeError, match="are missing; use a checkpoint of the fine-tuned network"):
        mb.load_checkpoint(vit(0), backbone)
    # Of the same shapes, other functions: what differs is named; what only training uses may differ.
    net = vit(0, id2label={0: "Cat", 1: "fish", 2: "owl"})
    for options, message in (
        ({"id2label": {0: "owl", 1: "fish", 2: "cat"}}, "class 0 of .* to be 'Cat', .* but got 'owl'; train both"),
        ({"hidden_act": "relu"}, "to have hidden_act gelu, as the network does, but got relu"),
        ({"num_attention_heads": 3}, "to have num_attention_heads 2, .* got 3"),
    ):
        vit(1, **options).save_pretrained(tmp_path / "other")  # type: ignore[operator]
        with pytest.raises(mb.ModebridgeError, match=message):
            mb.load_checkpoints(net, [runs / "vit" / "run0", tmp_path / "other"])
    vit(1, hidden_dropout_prob=0.5, initializer_range=0.1).save_pretrained(tmp_path / "other")  # type: ignore[operator]
    assert len(mb.load_checkpoints(net, [runs / "vit" / "run0", tmp_path / "other"])) == 2, "and labels without names"
    (runs / "vit" / "run1" / "model.safetensors").unlink()
    with pytest.raises(mb.ModebridgeError, match="in safetensors, but got"):
        mb.load_checkpoint(vit(0), runs / "vit" / "run1")
    changed = vit(0)
    changed.classifier = nn.Sequential(nn.Tanh(), nn.Linear(24, 3))
    mb.Ensemble(changed, [mb.Mode.from_module(changed)]).save(tmp_path / "own")
    with pytest.raises(mb.ModebridgeError, match="is not stored with its weights"):
        mb.load(tmp_path / "own")
