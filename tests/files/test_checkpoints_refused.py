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
from modebridge.files.checkpoints import load_checkpoint, load_checkpoints
from modebridge.modes import Mode
from tests.scenarios import tiny_net

torch.manual_seed(0)
NET = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
STATE = NET.state_dict()
MODE = Mode.from_module(NET)
CUT = "but got one that is damaged or truncated; copy or download it again"


def refused(file, words, net=NET, **options):
    """One sentence of ours: never torch's advice to run the file's code."""
    for load in (load_checkpoint, load_checkpoints):
        with pytest.raises(ModebridgeError, match=words) as caught:
            load(net, file, **options)
        assert re.fullmatch(r"Expected (?!.*(weights_only|trust|\. ))[^\n]{,450}\.", str(caught.value))


def mlp(*sizes):
    return nn.Sequential(*[nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])


DIFFERENT = {
    "'1.weight' is (9, 5) in the file and (3, 5) in the network: the number of classes": mlp(4, 5, 9),
    "'0.weight' is (6, 4) in the file and (5, 4) in the network (and 2 more differ)": mlp(4, 6, 3),
    "but got '2.weight', '2.bias' extra": mlp(4, 5, 3, 3),
    "but got '1.weight', '1.bias' missing": mlp(4, 5),
    "but got '1.weight', '1.bias' missing (did you mean 11.weight?) and '11.weight', '11.bias' extra": (
        nn.ModuleDict({"0": nn.Linear(4, 5), "11": nn.Linear(5, 3)})
    ),
    "'1.weight' and 1 more, but got 'a.0'": nn.ModuleDict({"a": nn.ParameterList([torch.ones(1)])}),
}


@pytest.mark.parametrize("words", DIFFERENT)
def test_differences_are_named(tmp_path, words):
    state = DIFFERENT[words].state_dict()
    torch.save(state, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", re.escape(words), mlp(4, 5, 3))
    torch.save({"model": {f"module.{name}": t for name, t in state.items()}}, tmp_path / "x.pt")
    refused(
        tmp_path / "x.pt", "but got 'model.module.a" if "a.0" in words else "below 'model.module', but", mlp(4, 5, 3)
    )


def test_another_first_layer_is_no_other_number_of_classes():
    """An embedding of another length; the head fits."""
    net, other = (nn.Sequential(nn.Embedding(length, 4), nn.Linear(4, 3)) for length in (7, 9))
    with pytest.raises(ModebridgeError, match=r"'0\.weight' is \(9, 4\) in the file and \(7, 4\) in the network; use"):
        find_places(other.state_dict(), net)


def test_nothing_one_and_a_network_beside_another():
    with pytest.raises(ModebridgeError, match="but it holds no tensor"):
        find_places({}, NET)
    with pytest.raises(ModebridgeError, match="Identity to have weights to load, but it has none"):
        find_places({}, nn.Identity())
    (found,) = find_places({"a": {"b.weight": torch.full((1,), 0.5)}}, nn.PReLU())
    assert found.tensors["weight"].item() == 0.5
    fitting, large = mlp(4, 5, 3).state_dict(), mlp(4, 5, 9).state_dict()
    (found,) = find_places({"teacher": large, "student": fitting}, mlp(4, 5, 3))
    assert torch.equal(found.tensors["1.bias"], fitting["1.bias"])


def header(shape: list[int], end: int, length: int | None = None) -> bytes:
    text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    return (length or len(text)).to_bytes(8, "little") + text + b"1234"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "but got an empty file"),
        (b"these are no weights at all", "torch.save or safetensors, but got neither"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "but got a Git LFS pointer"),
        *((content, CUT) for content in (b"PK\x03\x04 and no more", b"\x80\x02junk", b"12345678{ not json!!")),
        *((content, CUT) for content in (header([2**30], 2**32), header([2**62, 4], 4), header([1], 4, 2**63 - 1))),
    ],
)
def test_files_that_are_no_weights(tmp_path, content, words):
    (tmp_path / "x.pt").write_bytes(content)
    refused(tmp_path / "x.pt", words)


def test_paths_that_are_no_weights(tmp_path):
    refused(tmp_path / "none.pt", "to be a weight file, but got 'No such file or directory'; check")
    refused(tmp_path / ("a" * 300), "to be a weight file, but got 'File name too long'")
    refused(NET, "net to be a torch.nn.Module, but got str; pass the network first", net="first.pth")
    with pytest.raises(ModebridgeError, match="to be a weight file, but got 'Is a directory'"):
        load_checkpoint(NET, tmp_path)
    with pytest.raises(ModebridgeError, match=r"to contain weight files \(\.safetensors, .*\), or one in each"):
        load_checkpoints(NET, tmp_path)


class Trap:
    """Unpickled, it would leave a folder behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_no_code_is_run(tmp_path, zipped):
    file, trace = tmp_path / "x.pt", tmp_path / "trace"
    for trap in (Trap(trace), np.array([Trap(trace)], dtype=object), argparse.Namespace(out=Trap(trace))):
        torch.save({"state_dict": STATE, "trap": trap}, file, _use_new_zipfile_serialization=zipped)
        refused(file, r"got the class posix\.mkdir, which is not loaded because")
    file.write_bytes(pickle.dumps(Trap(trace)))
    refused(file, "to hold a state dict, but got")
    assert not trace.exists()
    pickle.loads(file.read_bytes())
    assert trace.exists()  # the trap works
    torch.save(tiny_net(1), file, _use_new_zipfile_serialization=zipped)
    refused(file, r"the class modebridge\.nets\.resnet\.ResNet.*only the state dict")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda w: (w * 100).to(torch.int8), "got torch.int8; use the weights as they were trained"),
        (lambda w: w.to(torch.complex64), "got torch.complex64"),
        (lambda w: torch.zeros(1).expand(w.shape), r"got \(3, 16\) stored in 4 bytes; .* tensor.contiguous\(\)"),
        (lambda w: w.to_sparse(), "a sparse tensor"),
        (lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), "a quantized tensor"),
        (lambda w: w.to("meta"), "a tensor without values"),
        (lambda _: torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]), "a nested tensor|_rebuild_nested"),
        (lambda _: torch.zeros(1).expand(10**10), r"'3.weight' is \(10000000000,\) in the file"),
        (lambda w: torch.full_like(w, torch.nan), r"NaN or Inf in '3\.weight'; .* \(in '.*x\.pt'\)\."),
    ],
)
def test_tensors_that_are_no_weights(tmp_path, make, words):
    torch.save({"state_dict": {**STATE, "3.weight": make(STATE["3.weight"])}}, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", words)


def test_what_is_large_or_endless(tmp_path):
    file = tmp_path / "x.pt"
    torch.save({"state_dict": STATE, "x": torch.ones(1).expand(10**10), "rest": torch.zeros(2**22)}, tmp_path / "plain")
    assert load_checkpoint(NET, tmp_path / "plain").id == MODE.id, "nobody looks at what is beside the network"
    with zipfile.ZipFile(tmp_path / "plain") as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    refused(file, "but got another or a compressed zip archive; save only the state dict")
    laughs: list[object] = [1]
    for _ in range(6):
        laughs = [laughs] * 1000
    torch.save({"state_dict": STATE, "more": laughs}, file)
    refused(file, "but got more than 200,000 dicts and lists in it")


BESIDE = {
    "numbers": [np.float64(0.875), np.float32(1.5), np.int64(7), np.bool_(True), np.str_("née")],
    "args": argparse.Namespace(out=pathlib.PurePosixPath("runs") / "one", lr=np.float64(0.1)),
    "home": pathlib.PureWindowsPath("C:/data"),
    "random": np.random.default_rng(0).integers(0, 9, 5),
}


@pytest.mark.parametrize("names", [None, (b"numpy.core", b"pathlib"), (b"numpy._core", b"pathlib._local")])
def test_numbers_and_paths_beside_the_weights_are_skipped(tmp_path, names):
    """NumPy 1 and Python 3.13 call the same things otherwise; a legacy file holds the names as text."""
    file = tmp_path / "x.pt"
    torch.save({"state_dict": STATE, **BESIDE}, file, _use_new_zipfile_serialization=names is None)
    if names is not None:
        raw = re.sub(rb"cnumpy\._?core\.multiarray\n", b"c" + names[0] + b".multiarray\n", file.read_bytes())
        file.write_bytes(re.sub(rb"cpathlib(\._local)?\n", b"c" + names[1] + b"\n", raw))
    assert load_checkpoint(NET, file).id == MODE.id
    torch.save({"state_dict": STATE, "beside": slice(1)}, file)
    refused(file, "slice, which is")


@pytest.mark.parametrize("form", ["zipped", "legacy", "safetensors"])
def test_truncated_files(tmp_path, form):
    file = tmp_path / "x.pt"
    if form == "safetensors":
        safetensors.torch.save_file(STATE, file)
    else:
        torch.save({"state_dict": STATE, **BESIDE}, file, _use_new_zipfile_serialization=form == "zipped")
    whole = file.read_bytes()
    for size in range(30, len(whole), len(whole) // 20):
        file.write_bytes(whole[:size])
        # A legacy file may be cut off in the middle of a name, which then is one that nobody knows.
        refused(file, "but got" if form == "legacy" else CUT)


def test_archives_that_are_no_checkpoints(tmp_path):
    net = mlp(3, 4, 2)
    torch.export.save(torch.export.export(net, (torch.rand(2, 3),)), tmp_path / "x.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated; its files are still about
        torch.jit.save(torch.jit.trace(net, torch.rand(2, 3)), str(tmp_path / "x.pt"))
    torch.save(STATE, tmp_path / "x.ckpt", pickle_protocol=4)
    refused(tmp_path / "x.pt", "got a TorchScript archive, whose code is not run; save only the state dict")
    refused(tmp_path / "x.pt2", "got another or a compressed zip archive")
    refused(tmp_path / "x.ckpt", "a pickle with a protocol other than torch's; save it without pickle_protocol")


@pytest.mark.parametrize("prefix", ["", "model."])
def test_extra_tensors_are_ignored_by_name(tmp_path, prefix):
    file = tmp_path / "x.pt"
    extra = {"total_ops": torch.zeros(1), "0.total_ops": torch.zeros(1), "aux.fc.weight": torch.ones(2, 2)}
    torch.save({"state_dict": {prefix + name: t for name, t in {**STATE, **extra}.items()}}, file)
    refused(file, r"'0\.total_ops'.* extra; .*, or leave them out by name with ignore=")
    for ignore in (
        ["total_ops", "0.total_ops", "aux.fc.weight"],
        ["*total_ops", "aux.*"],
        [f"state_dict.{prefix}total_ops", "*.total_ops", f"state_dict.{prefix}aux"],
        "*",
    ):
        assert load_checkpoint(NET, file, ignore=ignore).id == MODE.id
    for ignore in ("aux", ["total", "aux"], ["total_ops", "au"]):
        refused(file, " extra; ", ignore=ignore)
    torch.save({name: t for name, t in STATE.items() if name != "3.bias"} | {"aux": torch.ones(1)}, file)
    refused(file, r"'3\.bias' missing; use a network", ignore="*")  # the network's own are never ignored
