"""Code of the README and the FAQ, run as it is printed."""

import re
from pathlib import Path

import timm
import torch

import modebridge as mb
from modebridge.deploy import DeployedEnsemble

README = Path(__file__).parents[1] / "README.md"


def test_the_lines_work_on_three_timm_checkpoints(tmp_path, monkeypatch, capsys):
    """The name is the README's; the network behind it is timm's own small one of the same family, to save time."""
    real = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, **options: real(f"test_{name[:-2]}", **options))
    (block,) = re.findall(r"```python\n(import timm.*?)```", README.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("best.pth", "second.pth", "third.pth")):
        torch.manual_seed(seed)
        # As timm's training script and a DDP wrapper leave them.
        state = timm.create_model("resnet18", num_classes=10).state_dict()
        torch.save({"state_dict": {f"module.{key}": tensor for key, tensor in state.items()}, "epoch": 3}, name)
    images, labels = torch.rand(4, 3, 32, 32), torch.arange(4)
    data = [(images, labels)]
    # What it was trained on it knows by heart, which says nothing about its temperature.
    space = {"train": data, "valid": [(images, torch.tensor([0, 1, 3, 2]))], "test": data, "images": images}
    exec(block, space)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:4] == ["cost", "params", "accuracy", "NLL"]
    assert [line.split("  ")[0] for line in printed[1:3]] == ["one network", "with heads"]
    assert space["bridge"].share <= 0.05
    assert space["bridge"].heads == 2
    said = DeployedEnsemble.load("fast.onnx")(images).probabilities
    torch.testing.assert_close(torch.from_numpy(said), space["fast"](images).detach(), atol=1e-5, rtol=0)


def test_the_faq_distills_from_teachers_of_different_architectures():
    page = (README.parent / "docs" / "faq.md").read_text()
    (lines,) = re.findall(r"```python\n(teachers = .*?)```", page, flags=re.DOTALL)
    torch.manual_seed(0)
    resnet = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    convnet = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 2), torch.nn.Flatten(), torch.nn.Linear(2, 3))
    first, second = (mb.Mode.from_module(net) for net in (resnet, convnet))
    train = [(torch.rand(6, 3, 2, 2), torch.arange(6) % 3)]
    space = {"mb": mb, "resnet": resnet, "convnet": convnet, "first": first, "second": second, "train": train}
    exec(lines, space)
    space["student"].check(resnet)
    assert space["student"].id != first.id
