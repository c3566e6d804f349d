"""Modes out of real checkpoints of Lightning and torch-uncertainty, written by their own trainers."""

from __future__ import annotations

import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn
from torch.utils.data import DataLoader
from torch_uncertainty.methods import EMA, CheckpointCollector, deep_ensembles
from torch_uncertainty.routines import ClassificationRoutine
from torch_uncertainty.transforms import RepeatTarget

from modebridge.data.weights import load_mode, load_modes
from modebridge.modes import Mode
from tests.scenarios import blobs, tiny_net
from tests.their_trainer import pairs, quiet, trainer

pytestmark = quiet
NET = tiny_net(0, "bn")


def train(model, path, *, callbacks=(), members=1):
    """One epoch with the library's own routine and trainer; the checkpoint is theirs."""
    routine = ClassificationRoutine(
        model=model,
        num_classes=3,
        loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        is_ensemble=members > 1,
        format_batch_fn=RepeatTarget(members) if members > 1 else None,
        optim_recipe=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    )
    data = DataLoader(pairs(blobs(24)), batch_size=8)
    worker = trainer(path.parent, callbacks)
    worker.fit(routine, data, data)
    worker.save_checkpoint(path)


def ids(*nets):
    return [Mode.from_module(net).id for net in nets]


def test_a_routine_with_one_network(tmp_path):
    model = tiny_net(1, "bn")
    begin = ids(model)
    train(model, tmp_path / "last.ckpt")
    raw = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert "loss.weight" in raw["state_dict"]  # beside the network, as said
    assert "optimizer_states" in raw
    assert [load_mode(NET, tmp_path / "last.ckpt").id] == ids(model) != begin


def test_a_deep_ensemble(tmp_path):
    ensemble = deep_ensembles([tiny_net(seed, "bn") for seed in range(3)])
    train(ensemble, tmp_path / "last.ckpt", members=3)
    found = load_modes(NET, tmp_path / "last.ckpt")
    assert [mode.id for mode in found] == ids(*ensemble.core_models)
    images = blobs(5).images
    expected = ensemble.eval()(images)
    torch.testing.assert_close(torch.cat([mode.load(NET)(images) for mode in found]), expected)
    assert load_mode(NET, tmp_path / "last.ckpt", prefix="model.core_models.1").id == found[1].id


def test_an_average_beside_the_network(tmp_path):
    model = EMA(tiny_net(1, "bn"), momentum=0.5)
    train(model, tmp_path / "last.ckpt")
    assert [load_mode(NET, tmp_path / "last.ckpt").id] == ids(model.ema_model)
    assert [load_mode(NET, tmp_path / "last.ckpt", ema=False).id] == ids(model.core_model)
    assert ids(model.core_model) != ids(model.ema_model)


def test_networks_along_a_training(tmp_path):
    model = CheckpointCollector(tiny_net(1, "bn"))
    with torch.no_grad():
        model.update_wrapper(0)
        model.core_model.head.bias.add_(1)
    torch.save(model.state_dict(), tmp_path / "x.pt")
    assert [mode.id for mode in load_modes(NET, tmp_path / "x.pt")] == ids(model.core_model, *model.saved_models)


def test_lightning_s_average_lies_where_the_weights_were(tmp_path):
    class Middle(EMAWeightAveraging):
        def on_train_epoch_end(self, trainer, module):
            super().on_train_epoch_end(trainer, module)
            trainer.save_checkpoint(tmp_path / "middle.ckpt")

    train(tiny_net(1, "bn"), tmp_path / "last.ckpt", callbacks=(Middle(decay=0.5),))
    raw = torch.load(tmp_path / "middle.ckpt", weights_only=True)
    for ema, key in [(None, "state_dict"), (True, "state_dict"), (False, "current_model_state")]:
        state = load_mode(NET, tmp_path / "middle.ckpt", ema=ema).state
        assert all(torch.equal(t, raw[key][f"model.{name}"]) for name, t in state.items())
    assert not torch.equal(raw["state_dict"]["model.head.bias"], raw["current_model_state"]["model.head.bias"])
