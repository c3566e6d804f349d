"""What lies beside the weights: plain data is read, extra tensors can be left out, broken files get a sentence."""

from __future__ import annotations

import argparse
import pathlib
import re
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from modebridge.data.weights import load_mode, load_modes, read_state
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from tests.data.test_weights_refused import Trap

NET = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
MODE = Mode.from_module(NET)
STATE = NET.state_dict()

BESIDE = {
    "best": np.float64(0.875),
    "loss": np.float32(1.5),
    "epoch": np.int64(7),
    "done": np.bool_(True),
    "name": np.str_("née"),
    "args": argparse.Namespace(out=pathlib.Path("runs") / "one", lr=np.float64(0.1)),
    "home": pathlib.PureWindowsPath("C:/data"),
}


@pytest.mark.parametrize("zipped", [True, False])
def test_numbers_and_paths_are_read(tmp_path, zipped):
    file = tmp_path / "x.pt"
    beside = BESIDE | {"random": np.random.default_rng(0).integers(0, 9, 5), "args2": {"out": [pathlib.Path("a")]}}
    torch.save({"state_dict": STATE, **beside}, file, _use_new_zipfile_serialization=zipped)
    assert load_mode(NET, file).id == MODE.id
    found = read_state(file)
    for name in ("best", "loss", "epoch", "done", "name"):
        assert found[name] == BESIDE[name].item()
        assert type(found[name]) is type(BESIDE[name].item())
    assert found["args"].lr == 0.1
    assert found["args"].out.parts == ("runs", "one")
    assert str(found["home"]) == "C:\\data"


@pytest.mark.parametrize("numpy", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
@pytest.mark.parametrize("paths", [b"pathlib", b"pathlib._local"])
def test_names_of_older_and_newer_releases(tmp_path, numpy, paths):
    """NumPy 1 and Python 3.13 call the same things otherwise; a legacy file holds the names as text."""
    file = tmp_path / "x.pt"
    beside = {"best": np.float64(0.5), "out": pathlib.PurePosixPath("a")}
    torch.save({"state_dict": STATE, **beside}, file, _use_new_zipfile_serialization=False)
    raw = re.sub(rb"cnumpy\._?core\.multiarray\n", b"c" + numpy + b"\n", file.read_bytes())
    changed = re.sub(rb"cpathlib(\._local)?\n", b"c" + paths + b"\n", raw)
    assert numpy + b"\nscalar" in changed
    assert paths + b"\nPure" in changed
    file.write_bytes(changed)
    found = read_state(file)
    assert (found["best"], found["out"]) == (0.5, pathlib.PurePosixPath("a"))
    assert load_mode(NET, file).id == MODE.id


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        (np.array([{"a": 1}], dtype=object), "data of NumPy type object; save only the state dict"),
        (np.datetime64("2020-01-01"), "data of NumPy type datetime64"),
        (slice(1), "the class (builtins.)?slice, which is not loaded"),
    ],
)
def test_other_things_are_not(tmp_path, beside, words):
    torch.save({"state_dict": STATE, "beside": beside}, tmp_path / "x.pt")
    with pytest.raises(ModebridgeError, match=words) as caught:
        load_mode(NET, tmp_path / "x.pt")
    check_sentence(caught)


def test_a_trap_among_plain_data_is_not_sprung(tmp_path):
    trace = tmp_path / "trace"
    for trap in (Trap(trace), np.array([Trap(trace)], dtype=object), argparse.Namespace(out=Trap(trace))):
        torch.save({"state_dict": STATE, **BESIDE, "trap": trap}, tmp_path / "x.pt")
        with pytest.raises(ModebridgeError):
            load_mode(NET, tmp_path / "x.pt")
        assert not trace.exists()


def check_sentence(caught):
    """One sentence of ours: never torch's advice to run the file's code."""
    message = str(caught.value)
    assert "weights_only" not in message
    assert "trust" not in message
    assert "\n" not in message
    assert message.startswith("Expected '")
    assert message.endswith(".")
    assert len(message) < 400


@pytest.mark.parametrize("form", ["zipped", "legacy", "safetensors"])
def test_truncated_files(tmp_path, form):
    file = tmp_path / "x.pt"
    if form == "safetensors":
        safetensors.torch.save_file(STATE, file)
    else:
        torch.save({"state_dict": STATE, **BESIDE}, file, _use_new_zipfile_serialization=form == "zipped")
    whole = file.read_bytes()
    said = set()
    for size in range(30, len(whole), len(whole) // 40):
        file.write_bytes(whole[:size])
        with pytest.raises(ModebridgeError) as caught:
            load_mode(NET, file)
        check_sentence(caught)
        said.add("damaged or truncated; copy or download it again" in str(caught.value))
    # A legacy file may be cut off in the middle of a name, which then is one that nobody knows.
    assert said == {True} or form == "legacy"


def test_archives_that_are_no_checkpoints(tmp_path):
    file = tmp_path / "x.pt"
    torch.export.save(torch.export.export(NET, (torch.rand(2, 3),)), tmp_path / "x.pt2")
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated; its files are still about
        torch.jit.save(torch.jit.trace(NET, torch.rand(2, 3)), str(file))
    torch.save(STATE, tmp_path / "x.ckpt", pickle_protocol=4)
    for name, words in (
        ("x.pt", r"got a TorchScript archive, whose code is not run; save only its weights, .*state_dict\(\)"),
        ("x.pt2", "got an archive of torch.export"),
        ("x.npz", "got another zip archive"),
        ("x.ckpt", "a pickle with a protocol other than torch's; save it without pickle_protocol"),
    ):
        with pytest.raises(ModebridgeError, match=words) as caught:
            load_mode(NET, tmp_path / name)
        check_sentence(caught)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_extra_tensors_are_ignored_by_name(tmp_path, prefix):
    file = tmp_path / "x.pt"
    extra = {"total_ops": torch.zeros(1), "0.total_ops": torch.zeros(1), "aux.fc.weight": torch.ones(2, 2)}
    torch.save({"state_dict": {prefix + name: t for name, t in {**STATE, **extra}.items()}}, file)
    with pytest.raises(ModebridgeError, match=r"'0\.total_ops'.* extra; .*, or leave them out by name with ignore="):
        load_mode(NET, file)
    for ignore in (
        ["total_ops", "0.total_ops", "aux.fc.weight"],
        ["*total_ops", "aux"],
        ["*total_ops", "aux.*"],
        [f"state_dict.{prefix}total_ops", "*.total_ops", f"state_dict.{prefix}aux"],
        "*",
    ):
        assert load_mode(NET, file, ignore=ignore).id == MODE.id
        assert [mode.id for mode in load_modes(NET, file, ignore=ignore)] == [MODE.id]
    for ignore in ("aux", ["total", "aux"], ["total_ops", "au"]):
        with pytest.raises(ModebridgeError, match=" extra; "):
            load_mode(NET, file, ignore=ignore)


def test_the_networks_own_are_never_ignored(tmp_path):
    torch.save({name: t for name, t in STATE.items() if name != "1.bias"} | {"aux": torch.ones(1)}, tmp_path / "x.pt")
    with pytest.raises(ModebridgeError, match=r"'1\.bias' missing; use a network"):
        load_mode(NET, tmp_path / "x.pt", ignore="*")
    torch.save(STATE, tmp_path / "x.pt")
    assert load_mode(NET, tmp_path / "x.pt", ignore=["1.bias", "0", "*"]).id == MODE.id
