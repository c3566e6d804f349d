"""Files that are no weights, or not of this network: one sentence each, and no code is run."""

from __future__ import annotations

import itertools
import os
import pickle

import pytest
import torch
from torch import nn

from modebridge.data.checkpoint_search import find_places
from modebridge.data.weights import load_mode, load_modes, read_state, weight_files
from modebridge.errors import ModebridgeError
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
    for load in (load_mode, load_modes):
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
        (b"PK\x03\x04 and no more", "to be a complete file, but got one that is damaged or truncated"),
        (b"\x80\x02junk", "plain tensors, but got one that is damaged or truncated"),
        ((20).to_bytes(8, "little") + b"{ this is not json!!", "plain tensors, but got one that is damaged"),
    ],
)
def test_files_that_are_no_weights(tmp_path, content, words):
    file = tmp_path / "x.pt"
    file.write_bytes(content)
    with pytest.raises(ModebridgeError, match=r"Expected '.*x\.pt' to .*; .*") as caught:
        load_mode(NET, file)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_that_are_no_weights(tmp_path):
    for load in (load_mode, load_modes):
        with pytest.raises(ModebridgeError, match="to be a weight file, but it does not exist"):
            load(NET, tmp_path / "none.pt")
    with pytest.raises(ModebridgeError, match="it is a folder; use load_modes"):
        load_mode(NET, tmp_path)
    with pytest.raises(ModebridgeError, match=r"to contain weight files \(\.safetensors, .*\), but got none"):
        load_modes(NET, tmp_path)
    with pytest.raises(ModebridgeError, match="to be a folder"):
        weight_files(tmp_path / "none")
    index = tmp_path / "m.index.json"
    for text, words in [("[]", "weight_map, but got TypeError"), ('{"weight_map": {"a": "b.pt"}}', "does not exist")]:
        index.write_text(text)
        with pytest.raises(ModebridgeError, match=words):
            load_mode(NET, index)
    torch.save({}, tmp_path / "b.pt")
    with pytest.raises(ModebridgeError, match=r"'b\.pt' to hold 'a' as"):
        load_mode(NET, index)


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
        load_mode(NET, tmp_path / "x.pt")


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
    with pytest.raises(ModebridgeError, match="state dict of plain tensors"):
        read_state(file)
    assert not trace.exists()
    pickle.loads(file.read_bytes())
    assert trace.exists()  # the trap works
    torch.save(tiny_net(1), file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModebridgeError, match=r"the class modebridge\.nets\.resnet\.ResNet.*only the state dict"):
        load_mode(NET, file)
