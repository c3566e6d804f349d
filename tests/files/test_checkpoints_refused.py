"""Files that are no weights, or not of this network: one sentence each, and no code is run."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import pickle
import re
import warnings
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from modebridge.errors import ModebridgeError
from modebridge.files.checkpoint_search import find_places
from modebridge.files.checkpoints import load_checkpoint, load_checkpoints, read_state
from modebridge.modes import Mode
from tests.scenarios import tiny_net

NET = tiny_net(0, "bn")
STATE = tiny_net(1, "bn").state_dict()


def mlp(*sizes):
    return nn.Sequential(*[nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])


DIFFERENT = {
    "classes": (mlp(4, 5, 9), "'1.weight' is (9, 5) in the file and (3, 5) in the network: the number of classes"),
    "width": (mlp(4, 6, 3), "'0.weight' is (6, 4) in the file and (5, 4) in the network (and 2 more differ)"),
    "deeper": (mlp(4, 5, 3, 3), "but got '2.weight', '2.bias' extra"),
    "shallower": (mlp(4, 5), "but got '1.weight', '1.bias' missing"),
    "renamed": (
        nn.ModuleDict({"0": nn.Linear(4, 5), "11": nn.Linear(5, 3)}),
        "but got '1.weight', '1.bias' missing (did you mean 11.weight or 11.bias?) and '11.weight', '11.bias' extra",
    ),
    "other names": (
        nn.ModuleDict({"a": nn.ParameterList([torch.ones(1)])}),
        "the weights of Sequential, '0.weight', '0.bias', '1.weight' and 1 more, but got 'a.0'",
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
@pytest.mark.parametrize("form", ["bare", "nested"])
def test_differences_are_named(tmp_path, case, form):
    other, words = DIFFERENT[case]
    state = other.state_dict()
    torch.save(
        state if form == "bare" else {"model": {f"module.{name}": t for name, t in state.items()}}, tmp_path / "x.pt"
    )
    for load in (load_checkpoint, load_checkpoints):
        with pytest.raises(ModebridgeError) as caught:
            load(mlp(4, 5, 3), tmp_path / "x.pt")
        message = str(caught.value)
        if case != "other names":
            assert words in message
            assert ("below 'model.module'" in message) == (form == "nested")
        elif form == "bare":
            assert words in message
        assert message.startswith(f"Expected '{tmp_path / 'x.pt'}' to ")
        assert message.endswith(".")
        assert message.count(". ") == 0


def test_a_fitting_network_wins_over_one_of_another_shape():
    small, large = mlp(4, 5, 3), mlp(4, 5, 9)
    raw = {"teacher": large.state_dict(), "student": small.state_dict()}
    (found,) = find_places(raw, mlp(4, 5, 3))
    assert torch.equal(found.tensors["1.bias"], small.state_dict()["1.bias"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "but got an empty file"),
        (b"these are no weights at all", "torch.save or safetensors, but got neither"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "but got a Git LFS pointer"),
        (b"PK\x03\x04 and no more", "state dict, but got one that is damaged or truncated"),
        (b"\x80\x02junk", "state dict, but got one that is damaged or truncated"),
        ((20).to_bytes(8, "little") + b"{ this is not json!!", "state dict, but got one that is damaged"),
    ],
)
def test_files_that_are_no_weights(tmp_path, content, words):
    file = tmp_path / "x.pt"
    file.write_bytes(content)
    with pytest.raises(ModebridgeError, match=r"Expected '.*x\.pt' to .*; .*") as caught:
        load_checkpoint(NET, file)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_that_are_no_weights(tmp_path):
    for load in (load_checkpoint, load_checkpoints):
        with pytest.raises(ModebridgeError, match="to be a weight file, but got 'No such file or directory'; check"):
            load(NET, tmp_path / "none.pt")
        with pytest.raises(ModebridgeError, match="to be a weight file, but got 'File name too long'"):
            load(NET, tmp_path / ("a" * 300))
    with pytest.raises(ModebridgeError, match="to be a weight file, but got 'Is a directory'"):
        load_checkpoint(NET, tmp_path)
    with pytest.raises(ModebridgeError, match=r"to contain weight files \(\.safetensors, .*\), but got none"):
        load_checkpoints(NET, tmp_path)


def test_nothing_and_one():
    with pytest.raises(ModebridgeError, match="but it holds no tensor"):
        find_places({}, NET)
    with pytest.raises(ModebridgeError, match="Identity to have weights to load, but it has none"):
        find_places({}, nn.Identity())
    one = nn.PReLU()
    (found,) = find_places({"a": {"b.weight": torch.full((1,), 0.5)}}, one)
    assert found.tensors["weight"].item() == 0.5


def test_a_diverged_checkpoint_is_named(tmp_path):
    torch.save({**STATE, "head.bias": torch.full((3,), torch.nan)}, tmp_path / "x.pt")
    with pytest.raises(ModebridgeError, match=r"NaN or Inf in 'head\.bias'; .* \(in '.*x\.pt'\)\."):
        load_checkpoint(NET, tmp_path / "x.pt")


class Trap:
    """Unpickled, it would leave a folder behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_no_code_is_run(tmp_path, zipped):
    file, trace = tmp_path / "x.pt", tmp_path / "trace"
    torch.save({"state_dict": STATE, "trap": Trap(trace)}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModebridgeError, match=r"got the class posix\.mkdir, which is not loaded because"):
        read_state(file)
    assert not trace.exists()
    file.write_bytes(pickle.dumps(Trap(trace)))
    with pytest.raises(ModebridgeError, match="to hold a state dict, but got"):
        read_state(file)
    assert not trace.exists()
    pickle.loads(file.read_bytes())
    assert trace.exists()  # the trap works
    torch.save(tiny_net(1), file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModebridgeError, match=r"the class modebridge\.nets\.resnet\.ResNet.*only the state dict"):
        load_checkpoint(NET, file)


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))


SMALL = small().state_dict()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda w: (w * 100).to(torch.int8), "got torch.int8; use the weights as they were trained"),
        (lambda w: w.long(), "got torch.int64"),
        (lambda w: w > 0, "got torch.bool"),
        (lambda w: w.to(torch.complex64), "got torch.complex64"),
        (lambda w: torch.zeros(1).expand(w.shape), r"got \(3, 16\) stored in 4 bytes; .* tensor.contiguous\(\)"),
        (lambda w: w.to_sparse(), "a sparse tensor"),
        (lambda w: w.to_sparse_csr(), "a sparse tensor"),
        (lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), "a quantized tensor"),
        (lambda w: w.to("meta"), "a tensor without values"),
        (lambda _: torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]), "a nested tensor"),
        (lambda _: torch.zeros(1).expand(10**10), r"'3.weight' is \(10000000000,\) in the file"),
    ],
)
def test_tensors_that_are_no_weights(tmp_path, make, words):
    state = {**SMALL, "3.weight": make(SMALL["3.weight"])}
    file = tmp_path / "x.pt"
    torch.save({"state_dict": state}, file)
    for load in (load_checkpoint, load_checkpoints):
        with pytest.raises(ModebridgeError, match=words) as caught:
            load(small(), file)
        assert f"'{file}'" in str(caught.value)
        assert "'3.weight'" in str(caught.value)
    if "in the file" not in words:
        with pytest.raises(ModebridgeError, match=words):
            Mode.from_state_dict(small(), state)


def test_numbers_that_can_be_meant_are_read(tmp_path):
    """Half precision throughout, counts as well; a wide tensor beside the network that nobody looks at."""
    torch.save(
        {"model": {name: t.half() for name, t in SMALL.items()}, "x": torch.ones(1).expand(10**10)}, tmp_path / "x"
    )
    mode = load_checkpoint(small(), tmp_path / "x")
    assert mode.params["3.weight"].dtype == torch.float32
    assert mode.buffers["1.num_batches_tracked"].dtype == torch.int64
    shared = nn.Linear(2, 2)
    shared.weight = nn.Parameter(torch.rand(1).expand(2, 2))  # where the network is made like that, so may the file be
    assert torch.equal(Mode.from_module(shared).params["weight"], shared.weight)


def test_a_small_file_that_unpacks_to_a_large_one_is_not_unpacked(tmp_path):
    torch.save({"state_dict": STATE, "rest": torch.zeros(2**22)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as old,
        zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    with pytest.raises(ModebridgeError, match="but got another or a compressed zip archive; save only the state dict"):
        load_checkpoint(NET, tmp_path / "x.pt")
    assert load_checkpoint(NET, tmp_path / "plain.pt").state.keys() == NET.state_dict().keys()


def test_lists_that_name_each_other_end(tmp_path):
    laughs: list[object] = [1]
    for _ in range(6):
        laughs = [laughs] * 1000
    torch.save({"state_dict": SMALL, "more": laughs}, tmp_path / "x.pt")
    with pytest.raises(ModebridgeError, match="but got more than 200,000 dicts and lists in it"):
        load_checkpoint(small(), tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("header", "length"),
    [
        ({"a": {"dtype": "F32", "shape": [2**30], "data_offsets": [0, 2**32]}}, None),
        ({"a": {"dtype": "F32", "shape": [2**30], "data_offsets": [0, 4]}}, None),
        ({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 4]}}, None),
        ({"a": 1}, 2**63 - 1),
        ({"a": 1}, 2**40),
    ],
)
def test_headers_that_promise_too_much(tmp_path, header, length):
    text = json.dumps(header).encode()
    file = tmp_path / "x.safetensors"
    file.write_bytes((length or len(text)).to_bytes(8, "little") + text + b"1234")
    with pytest.raises(ModebridgeError, match="but got one that is damaged or truncated"):
        load_checkpoint(small(), file)


PAIR = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
PAIR_MODE = Mode.from_module(PAIR)
PAIR_STATE = PAIR.state_dict()

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
    torch.save({"state_dict": PAIR_STATE, **beside}, file, _use_new_zipfile_serialization=zipped)
    assert load_checkpoint(PAIR, file).id == PAIR_MODE.id
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
    torch.save({"state_dict": PAIR_STATE, **beside}, file, _use_new_zipfile_serialization=False)
    raw = re.sub(rb"cnumpy\._?core\.multiarray\n", b"c" + numpy + b"\n", file.read_bytes())
    changed = re.sub(rb"cpathlib(\._local)?\n", b"c" + paths + b"\n", raw)
    assert numpy + b"\nscalar" in changed
    assert paths + b"\nPure" in changed
    file.write_bytes(changed)
    found = read_state(file)
    assert (found["best"], found["out"]) == (0.5, pathlib.PurePosixPath("a"))
    assert load_checkpoint(PAIR, file).id == PAIR_MODE.id


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        (np.array([{"a": 1}], dtype=object), "data of NumPy type object; save only the state dict"),
        (np.datetime64("2020-01-01"), "data of NumPy type datetime64"),
        (slice(1), "the class (builtins.)?slice, which is not loaded"),
    ],
)
def test_other_things_are_not(tmp_path, beside, words):
    torch.save({"state_dict": PAIR_STATE, "beside": beside}, tmp_path / "x.pt")
    with pytest.raises(ModebridgeError, match=words) as caught:
        load_checkpoint(PAIR, tmp_path / "x.pt")
    check_sentence(caught)


def test_a_trap_among_plain_data_is_not_sprung(tmp_path):
    trace = tmp_path / "trace"
    for trap in (Trap(trace), np.array([Trap(trace)], dtype=object), argparse.Namespace(out=Trap(trace))):
        torch.save({"state_dict": PAIR_STATE, **BESIDE, "trap": trap}, tmp_path / "x.pt")
        with pytest.raises(ModebridgeError):
            load_checkpoint(PAIR, tmp_path / "x.pt")
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
        safetensors.torch.save_file(PAIR_STATE, file)
    else:
        torch.save({"state_dict": PAIR_STATE, **BESIDE}, file, _use_new_zipfile_serialization=form == "zipped")
    whole = file.read_bytes()
    said = set()
    for size in range(30, len(whole), len(whole) // 40):
        file.write_bytes(whole[:size])
        with pytest.raises(ModebridgeError) as caught:
            load_checkpoint(PAIR, file)
        check_sentence(caught)
        said.add("damaged or truncated; copy or download it again" in str(caught.value))
    # A legacy file may be cut off in the middle of a name, which then is one that nobody knows.
    assert said == {True} or form == "legacy"


def test_archives_that_are_no_checkpoints(tmp_path):
    file = tmp_path / "x.pt"
    torch.export.save(torch.export.export(PAIR, (torch.rand(2, 3),)), tmp_path / "x.pt2")
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated; its files are still about
        torch.jit.save(torch.jit.trace(PAIR, torch.rand(2, 3)), str(file))
    torch.save(PAIR_STATE, tmp_path / "x.ckpt", pickle_protocol=4)
    for name, words in (
        ("x.pt", "got a TorchScript archive, whose code is not run; save only the state dict"),
        ("x.pt2", "got another or a compressed zip archive"),
        ("x.npz", "got another or a compressed zip archive"),
        ("x.ckpt", "a pickle with a protocol other than torch's; save it without pickle_protocol"),
    ):
        with pytest.raises(ModebridgeError, match=words) as caught:
            load_checkpoint(PAIR, tmp_path / name)
        check_sentence(caught)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_extra_tensors_are_ignored_by_name(tmp_path, prefix):
    file = tmp_path / "x.pt"
    extra = {"total_ops": torch.zeros(1), "0.total_ops": torch.zeros(1), "aux.fc.weight": torch.ones(2, 2)}
    torch.save({"state_dict": {prefix + name: t for name, t in {**PAIR_STATE, **extra}.items()}}, file)
    with pytest.raises(ModebridgeError, match=r"'0\.total_ops'.* extra; .*, or leave them out by name with ignore="):
        load_checkpoint(PAIR, file)
    for ignore in (
        ["total_ops", "0.total_ops", "aux.fc.weight"],
        ["*total_ops", "aux"],
        ["*total_ops", "aux.*"],
        [f"state_dict.{prefix}total_ops", "*.total_ops", f"state_dict.{prefix}aux"],
        "*",
    ):
        assert load_checkpoint(PAIR, file, ignore=ignore).id == PAIR_MODE.id
        assert [mode.id for mode in load_checkpoints(PAIR, file, ignore=ignore)] == [PAIR_MODE.id]
    for ignore in ("aux", ["total", "aux"], ["total_ops", "au"]):
        with pytest.raises(ModebridgeError, match=" extra; "):
            load_checkpoint(PAIR, file, ignore=ignore)


def test_the_networks_own_are_never_ignored(tmp_path):
    torch.save(
        {name: t for name, t in PAIR_STATE.items() if name != "1.bias"} | {"aux": torch.ones(1)}, tmp_path / "x.pt"
    )
    with pytest.raises(ModebridgeError, match=r"'1\.bias' missing; use a network"):
        load_checkpoint(PAIR, tmp_path / "x.pt", ignore="*")
    torch.save(PAIR_STATE, tmp_path / "x.pt")
    assert load_checkpoint(PAIR, tmp_path / "x.pt", ignore=["1.bias", "0", "*"]).id == PAIR_MODE.id
