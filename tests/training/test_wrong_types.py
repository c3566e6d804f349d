"""What people pass by mistake, and the sentence that names the right call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import modebridge as mb
from modebridge.bridges import plan_bridge
from modebridge.training import fit_many, fit_students
from tests.scenarios import quick

X, Y = torch.rand(12, 1, 4, 4), torch.arange(12) % 3
DATA = [(X, Y)]
SET = torch.utils.data.TensorDataset(X, Y)


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def says() -> nn.Module:
    """A network that returns classes instead of logits."""
    found = net()
    found.register_forward_hook(lambda module, given, logits: logits.argmax(1))
    return found


def modes() -> list[mb.Mode]:
    return [mb.Mode.from_module(net()) for _ in range(2)]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: mb.fit_bridge(net(), modes(), DATA, config={}), "config to be a TrainConfig, but got dict; pass Trai"),
        (lambda: mb.distill(modes(), net(), DATA), "net to be a torch.nn.Module, but got list; pass the network first"),
        (lambda: mb.export("a.onnx", mb.Ensemble(net(), modes()), example=X), "path of a file, but got Ensemble; pass"),
        (lambda: mb.evaluate(net(), (X, Y)), r"yield batches \(images, labels\), but got one batch"),
        (lambda: mb.compare({"one": net()}, "test"), r"yield batches \(images, labels\), but got a str"),
        (lambda: fit_many(net(), [plan_bridge(net(), modes(), X)], DATA), "bridges by name to train, but got list"),
        (lambda: mb.TrainConfig(1, optimizer=torch.optim.SGD(net().parameters())), "got SGD; choose one, or pass a fu"),
        (lambda: mb.fit_bridge(net(), modes(), DATA, tap=net()[1]), "got Linear; pass one such as 'layer2'"),
        (lambda: mb.distill(net(), modes(), DATA, student=net), "student to be a torch.nn.Module, but got function"),
        (lambda: mb.distill(net(), mb.TrainConfig(epochs=1), DATA), "path of a checkpoint, but got TrainConfig"),
        (lambda: mb.fit_bridge(nn.Linear, modes(), DATA), r"but got type; build it, as in Linear\(\.\.\.\)"),
        (lambda: mb.compare({"one": "a.onnx"}, DATA), "but got str; open a file with DeployedEnsemble.load"),
        (lambda: torch.inference_mode()(mb.distill)(net(), modes(), DATA), "train outside of torch.inference_mode"),
        (lambda: mb.load_checkpoints(net(), []), "paths of checkpoints to load, but got none"),
        (lambda: mb.Ensemble(net(), [{"model": net().state_dict(), "epoch": 1}]), r"pass checkpoint\['model'\]"),
        (lambda: mb.fit_bridge(net(), modes(), DATA, budget="5%"), "budget to be a share .* but got '5%'; 0.05 is 5 %"),
        (lambda: mb.fit_modes([net()], DATA, {}), "config to be a TrainConfig, but got dict"),
        (lambda: mb.fit_curve(net(), *modes(), DATA, 3), "config to be a TrainConfig, but got int"),
        (lambda: mb.distill(net(), modes(), DATA, 30), "config to be a TrainConfig, but got int"),
        (lambda: mb.fit_modes([net()], SET, quick(1)), "one image and its label; wrap the data set in a torch.utils.d"),
        (lambda: mb.evaluate(net(), SET), "one image and its label; wrap the data set"),
        (lambda: mb.Ensemble(net(), modes()).calibrate(SET), "one image and its label; wrap the data set"),
        (lambda: mb.fit_modes([net()], "data/train", quick(1)), "to yield batches .* but got a str; pass a DataLoader"),
        (lambda: mb.fit_bridge(net(), modes(), X), "to yield batches .* but got a Tensor"),
        (lambda: mb.fit_bridge(net(), modes(), (X, Y)), "to yield batches .* but got one batch; pass a DataLoader or"),
        (lambda: mb.fit_modes([net()], [{"image": X, "label": Y}], quick(1)), "name the tensors of a dict as the argu"),
        (lambda: mb.evaluate(net(), [{"image": X, "label": Y}]), "name the tensors of a dict as the arguments"),
        (lambda: mb.fit_modes(net(), DATA, quick(1)), "Expected a list of networks, but got one module; put it in a"),
        (lambda: mb.fit_modes((net() for _ in range(2)), DATA), "networks, but got a generator; put its networks in a"),
        (lambda: mb.fit_bridge(nn.DataParallel(net()), modes(), DATA, quick(1)), r"but got DataParallel; pass net\.mo"),
        (lambda: mb.fit_modes([nn.DataParallel(net())], DATA, quick(1)), r"but got DataParallel; pass net\.module"),
        (lambda: mb.fit_bridge(net().to("meta"), modes(), DATA, quick(1)), "a network with values, but it is on the m"),
        (lambda: mb.fit_bridge(says(), [says(), says()], DATA, quick(1)), r"\(batch, classes\), but got \(batch,\)"),
        (lambda: fit_many(net(), {"a": plan_bridge(net(), modes(), X)}, DATA, {}), "config to be a TrainConfig"),
        (lambda: fit_students(net(), {"a": None}, DATA, {}), "config to be a TrainConfig, but got dict"),
        (lambda: mb.Ensemble(net(), "a.pt"), "Expected a list of modes, but got one str; put it in a list"),
        (lambda: mb.Ensemble(net(), net()), "Expected a list of modes, but got one Sequential"),
        (lambda: mb.fit_bridge("resnet18", modes(), DATA), "net to be a torch.nn.Module, but got str; pass the networ"),
        (lambda: mb.Ensemble(modes()[0], modes()), "net to be a torch.nn.Module, but got Mode"),
        (lambda: mb.Ensemble(net(), [3]), "a module, a state dict or the path of a checkpoint, but got int"),
        (lambda: mb.export(net(), "a.pt2", X), "Ensemble or a Cascade to export, but got Sequential"),
    ],
)
def test_the_right_call_is_named(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(mb.ModebridgeError, match=sentence):
        call()


def test_modes_may_be_modules_state_dicts_or_paths(tmp_path: Path) -> None:
    base, trained = net(), net()
    torch.save(trained.state_dict(), tmp_path / "b.pt")
    given = [base, trained.state_dict(), tmp_path / "b.pt", str(tmp_path / "b.pt"), mb.Mode.from_module(trained)]
    wanted = mb.Mode.from_module(trained).id
    assert [mb.modes.to_mode(base, one).id for one in given[1:]] == [wanted] * 4
    bridge = mb.fit_bridge(base, given[:2], DATA, budget=0.9, target="labels", config=quick(1))
    fast = mb.Ensemble(base, given[:1], [bridge])
    assert torch.equal(fast(X), mb.Ensemble(base, [mb.Mode.from_module(base)], [bridge])(X))
    curve = mb.fit_curve(base, base, tmp_path / "b.pt", DATA, quick(1))
    assert curve.end.id == wanted
    assert mb.distill(base, given[:3], DATA, quick(0)).params.keys() == curve.end.params.keys()
