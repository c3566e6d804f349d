"""Checkpoints people have: every make of file, containers, prefixes, averages, several networks."""

import argparse

import pytest
import safetensors.torch
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from timm.utils import CheckpointSaver, ModelEmaV3
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader
from torch_uncertainty.methods import EMA, deep_ensembles
from torch_uncertainty.routines import ClassificationRoutine
from torch_uncertainty.transforms import RepeatTarget

import modebridge as mb
from modebridge.errors import ModebridgeError
from modebridge.files.checkpoint_search import find_places
from modebridge.files.checkpoints import load_checkpoint, load_checkpoints, weight_files
from modebridge.modes import Mode
from tests.scenarios import Vectors, blobs, tiny_net

NET = tiny_net(0, "bn")
UNCHANGED = Mode.from_module(NET).id
MODE, OTHER = Mode.from_module(tiny_net(1, "bn")), Mode.from_module(tiny_net(2, "bn"))
STATE, AVERAGE = ({name: t.contiguous() for name, t in mode.state.items()} for mode in (MODE, OTHER))


def prefixed(prefix, state=STATE):
    return {prefix + name: tensor for name, tensor in state.items()}


def trained():
    return MODE.load(NET)


def compiled(net):
    return torch.compile(net, backend="eager")  # never run: only its names matter


OPTIMIZER = {"state": {k: {"momentum_buffer": t} for k, t in enumerate(AVERAGE.values())}, "param_groups": [{"lr": 1}]}
CONTAINERS = ["state_dict", "model", "model_state_dict", "net", "network", "weights", "params", "module", "my_key"]
FORMS = {
    "bare": lambda: STATE,
    **{key: lambda key=key: {"epoch": 3, key: STATE, "optimizer": OPTIMIZER} for key in CONTAINERS},
    "two levels": lambda: {"checkpoint": {"model": STATE, "step": torch.tensor(7)}, "args": {"lr": 0.1}},
    "DataParallel": lambda: nn.DataParallel(trained()).state_dict(),
    "compiled": lambda: compiled(trained()).state_dict(),
    "compiled, then DDP": lambda: nn.DataParallel(compiled(trained())).state_dict(),
    "DDP, then compiled": lambda: compiled(nn.DataParallel(trained())).state_dict(),
    "a compiled part": lambda: {k.replace("layers.2.", "layers.2._orig_mod."): t for k, t in STATE.items()},
    "Lightning's": lambda: {"state_dict": {**prefixed("model."), "loss.weight": torch.ones(3), "n": torch.tensor(1)}},
    "any prefix": lambda: {"state_dict": prefixed("task.backbone.net_1."), "version": "2"},
    "named twice": lambda: prefixed("model.") | prefixed("loss.model."),
    "averaged alone": lambda: AveragedModel(trained()).state_dict(),
    "no counts of batches": lambda: {k: t for k, t in STATE.items() if not k.endswith("num_batches_tracked")},
}


@pytest.mark.parametrize("form", FORMS)
def test_one_network_is_found(tmp_path, form):
    torch.save(FORMS[form](), tmp_path / "x.pt")
    assert load_checkpoint(NET, tmp_path / "x.pt").id == MODE.id
    assert [mode.id for mode in mb.load_checkpoints(NET, str(tmp_path / "x.pt"))] == [MODE.id]
    assert Mode.from_module(NET).id == UNCHANGED


def test_a_compiled_or_wrapped_network_here_and_a_bare_file(tmp_path):
    torch.save(STATE, tmp_path / "x.pt")
    images = torch.rand(3, 1, 8, 8)
    for net in (nn.Sequential(tiny_net(0, "bn")), nn.DataParallel(tiny_net(0, "bn"))):
        assert torch.equal(load_checkpoint(net, tmp_path / "x.pt").load(net)(images), trained()(images))
    net = compiled(tiny_net(0, "bn"))
    assert load_checkpoint(net, tmp_path / "x.pt").state.keys() == net.state_dict().keys()


def test_a_wrapped_network_whose_numbers_occur_inside_of_others(tmp_path):
    """ "1.conv1.weight" of `Sequential(Normalize(), net)` is also the end of "layer1.1.conv1.weight"."""

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 1, 1)
            self.layer1 = nn.Sequential(nn.Identity(), nn.Module())
            self.layer1[1].conv1 = nn.Conv2d(1, 1, 1)

    torch.save(Blocks().state_dict(), tmp_path / "x.pt")
    wanted, mode = (
        torch.load(tmp_path / "x.pt"),
        load_checkpoint(nn.Sequential(nn.Identity(), Blocks()), tmp_path / "x.pt"),
    )
    assert {name.removeprefix("1."): tensor.tolist() for name, tensor in mode.state.items()} == {
        name: tensor.tolist() for name, tensor in wanted.items()
    }


def test_formats(tmp_path):
    """Also under another ending; half precision is converted to the network's own."""
    file = tmp_path / "x.pt"
    safetensors.torch.save_file(prefixed("model."), file)
    assert load_checkpoint(NET, file).id == MODE.id
    torch.save(STATE, file, _use_new_zipfile_serialization=False)
    assert load_checkpoint(NET, file).id == MODE.id
    small = {k: t.bfloat16() if t.is_floating_point() else t for k, t in STATE.items()}
    torch.save(small, file)
    found = load_checkpoint(NET, file)
    assert all(t.dtype == STATE[name].dtype for name, t in found.state.items())
    assert all(torch.equal(t, small[name].to(t.dtype)) for name, t in found.state.items())


BOTH = {
    **{
        key: lambda key=key: {"model": prefixed("module."), key: prefixed("module.", AVERAGE)}
        for key in ("state_dict_ema", "model_ema", "ema", "ema_state_dict", "params_ema", "swa_model")
    },
    "torch's": lambda: {"model": STATE, "second": AveragedModel(OTHER.load(NET)).state_dict()},
}


@pytest.mark.parametrize("form", BOTH)
def test_averaged_weights(tmp_path, form):
    file = tmp_path / "x.pt"
    torch.save(BOTH[form](), file)
    assert load_checkpoint(NET, file).id == load_checkpoint(NET, file, ema=True).id == OTHER.id
    assert load_checkpoint(NET, file, ema=False).id == MODE.id
    assert [mode.id for mode in load_checkpoints(NET, file, ema=False)] == [MODE.id]


def test_averages_of_parameters_and_averages_that_are_not_there(tmp_path):
    file = tmp_path / "x.pt"
    torch.save({"model": STATE, "ema": {"decay": 0.9, "shadow": dict(OTHER.params)}}, file)
    assert load_checkpoint(NET, file).id == Mode(OTHER.params, MODE.buffers).id, "with the buffers of the others"
    torch.save({"model": STATE}, file)
    with pytest.raises(ModebridgeError, match=r"averaged \(EMA\) weights of ResNet, but got only others, 'model'"):
        load_checkpoint(NET, file, ema=True)
    torch.save({"ema": STATE}, file)
    with pytest.raises(ModebridgeError, match=r"other than averaged .* got only averaged ones, 'ema'"):
        load_checkpoint(NET, file, ema=False)


def test_timm_s_own_checkpoint(tmp_path):
    net, ema = trained(), ModelEmaV3(OTHER.load(NET))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    args = argparse.Namespace(model="resnet", lr=0.1)
    saver = CheckpointSaver(net, optimizer, args=args, model_ema=ema, checkpoint_dir=str(tmp_path), recovery_dir="")
    saver.save_checkpoint(0, metric=1.0)
    (file,) = [file for file in weight_files(tmp_path) if file.name.endswith("last.pth.tar")]
    assert load_checkpoint(NET, file).id == OTHER.id
    assert load_checkpoint(NET, file, ema=False).id == MODE.id


def test_a_wrapper_with_constants_loads_what_was_saved_without_it(tmp_path):
    """As when the normalization of a loader becomes the first layer of a network that is trained already."""
    torch.save(STATE, tmp_path / "bare.pth")
    first = nn.Module()
    first.register_buffer("mean", torch.tensor(0.4))
    mode = load_checkpoint(nn.Sequential(first, NET), tmp_path / "bare.pth")
    assert all(torch.equal(mode.state[f"1.{name}"], tensor) for name, tensor in MODE.state.items())
    assert mode.state["0.mean"] == torch.tensor(0.4)


def test_several_networks(tmp_path):
    ids = [MODE.id, OTHER.id]
    torch.save([STATE, AVERAGE], tmp_path / "list.pt")
    torch.save({"models": {"10": AVERAGE, "2": STATE}}, tmp_path / "numbers.pt")
    torch.save(nn.ModuleList([trained(), OTHER.load(NET)]).state_dict(), tmp_path / "modules.pt")
    for file in tmp_path.iterdir():
        assert [mode.id for mode in load_checkpoints(NET, file)] == ids
    file = tmp_path / "modules.pt"
    assert [mode.id for mode in load_checkpoints(NET, [file, OTHER.load(NET), STATE, OTHER])] == [*ids, ids[1], *ids]
    with pytest.raises(ModebridgeError, match=r"to hold one ResNet, but got 2, '0', '1'; choose one with prefix="):
        load_checkpoint(NET, file)
    assert [load_checkpoint(NET, file, prefix=prefix).id for prefix in ("0", "1.")] == ids
    with pytest.raises(ModebridgeError, match=r"prefix to be a place in .*, but got '2'; choose one of 0, 1"):
        load_checkpoint(NET, file, prefix="2")
    torch.save(STATE, tmp_path / "plain.pt")
    with pytest.raises(ModebridgeError, match=r"but got 'modle'; leave it out, as the names have none\."):
        load_checkpoint(NET, tmp_path / "plain.pt", prefix="modle")


def test_a_prefix_wins(tmp_path):
    raw = {"state_dict": {**prefixed("student."), **prefixed("ema.", AVERAGE)}, "last": STATE}
    torch.save(raw, tmp_path / "x.pt")
    assert load_checkpoint(NET, tmp_path / "x.pt").id == OTHER.id
    for prefix in ("student", "student.", "state_dict.student", "last"):
        assert load_checkpoint(NET, tmp_path / "x.pt", prefix=prefix).id == MODE.id
    assert load_checkpoint(NET, tmp_path / "x.pt", prefix="").id == MODE.id
    with pytest.raises(ModebridgeError, match="only averaged ones"):
        load_checkpoint(NET, tmp_path / "x.pt", prefix="ema", ema=False)


def test_folders(tmp_path):
    for name, mode in [("2.pt", MODE), ("10.ckpt", OTHER)]:
        torch.save(mode.state, tmp_path / name)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "11").mkdir()
    (tmp_path / "12").mkdir()
    safetensors.torch.save_file(STATE, tmp_path / "11" / "model.safetensors")
    torch.save(OTHER.state, tmp_path / "12" / "best.pth")
    assert [mode.id for mode in load_checkpoints(NET, tmp_path)] == [MODE.id, OTHER.id, MODE.id, OTHER.id]
    files = [str(tmp_path / "10.ckpt"), tmp_path / "2.pt"]
    assert [mode.id for mode in load_checkpoints(NET, files)] == [OTHER.id, MODE.id]
    torch.save({"state": {0: {"step": torch.ones(1)}}}, tmp_path / "optimizer.pt")
    with pytest.raises(ModebridgeError, match=r"optimizer\.pt.*or leave that file out"):
        load_checkpoints(NET, tmp_path)
    with pytest.raises(ModebridgeError, match="one path, but got list; load_checkpoints takes"):
        load_checkpoint(NET, files)


def test_tied_weights_under_any_of_their_names(tmp_path):
    net = Vectors()
    want = Mode.from_module(net).id
    for gone in ("first.weight", "second.weight", "none"):  # safetensors keeps one of the two
        torch.save({k: t for k, t in net.state_dict().items() if k != gone}, tmp_path / "x.pt")
        assert load_checkpoint(Vectors(), tmp_path / "x.pt").id == want


def test_buffers_that_are_not_kept_may_be_in_the_file():
    net, old = nn.Linear(2, 3), nn.Linear(2, 3)
    net.register_buffer("positions", torch.arange(2), persistent=False)
    old.register_buffer("positions", torch.arange(2))
    (found,) = find_places(old.state_dict(), net)
    assert found.tensors.keys() == {"weight", "bias"}


# Written by the trainers of Lightning and torch-uncertainty.

SILENT = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}

# Notices that Lightning gives on itself: of a logger that is not there, of workers, of torch's trees.
quiet = pytest.mark.filterwarnings(
    "ignore:You called .self.log", "ignore:.*does not have many workers", "ignore:.*LeafSpec"
)


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
    data = DataLoader(list(zip(blobs(24).images, blobs(24).labels, strict=True)), batch_size=8)
    worker = Trainer(max_epochs=1, accelerator="cpu", callbacks=list(callbacks), default_root_dir=path.parent, **SILENT)
    worker.fit(routine, data, data)
    worker.save_checkpoint(path)


def ids(*nets):
    return [Mode.from_module(net).id for net in nets]


@quiet
def test_a_deep_ensemble(tmp_path):
    ensemble = deep_ensembles([tiny_net(seed, "bn") for seed in range(3)])
    train(ensemble, tmp_path / "last.ckpt", members=3)
    found = load_checkpoints(NET, tmp_path / "last.ckpt")
    assert [mode.id for mode in found] == ids(*ensemble.core_models)
    images = blobs(5).images
    expected = ensemble.eval()(images)
    torch.testing.assert_close(torch.cat([mode.load(NET)(images) for mode in found]), expected)
    assert load_checkpoint(NET, tmp_path / "last.ckpt", prefix="model.core_models.1").id == found[1].id


@quiet
def test_an_average_beside_the_network(tmp_path):
    model = EMA(tiny_net(1, "bn"), momentum=0.5)
    train(model, tmp_path / "last.ckpt")
    assert [load_checkpoint(NET, tmp_path / "last.ckpt").id] == ids(model.ema_model)
    assert [load_checkpoint(NET, tmp_path / "last.ckpt", ema=False).id] == ids(model.core_model)
    assert ids(model.core_model) != ids(model.ema_model)


@quiet
def test_lightning_s_average_lies_where_the_weights_were(tmp_path):
    class Middle(EMAWeightAveraging):
        def on_train_epoch_end(self, trainer, module):
            super().on_train_epoch_end(trainer, module)
            trainer.save_checkpoint(tmp_path / "middle.ckpt")

    train(tiny_net(1, "bn"), tmp_path / "last.ckpt", callbacks=(Middle(decay=0.5),))
    raw = torch.load(tmp_path / "middle.ckpt", weights_only=True)
    for ema, key in [(None, "state_dict"), (True, "state_dict"), (False, "current_model_state")]:
        state = load_checkpoint(NET, tmp_path / "middle.ckpt", ema=ema).state
        assert all(torch.equal(t, raw[key][f"model.{name}"]) for name, t in state.items())
    assert not torch.equal(raw["state_dict"]["model.head.bias"], raw["current_model_state"]["model.head.bias"])
