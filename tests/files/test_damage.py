"""Folders that are damaged, foreign, newer, half written or in the way: one sentence, and nothing is lost."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch

import modebridge as mb
from modebridge.errors import ModebridgeError
from modebridge.files import stored_folder
from modebridge.files.stored_folder import CONFIG, WEIGHTS, _seal
from modebridge.modes import Mode
from tests.files.objects import bridge, ensemble
from tests.scenarios import modes


@pytest.fixture
def folder(tmp_path) -> Path:
    modes(1)[0].save(tmp_path / "mode")
    return tmp_path / "mode"


def refused(path, message, **options):
    with pytest.raises(ModebridgeError, match=message) as caught:
        mb.load(path, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.startswith("Expected ")


def rewritten(folder: Path, **changes) -> None:
    """A config.json by hand, with a seal that fits."""
    config = json.loads((folder / CONFIG).read_text()) | changes
    config["seal"] = _seal(config)
    (folder / CONFIG).write_text(json.dumps(config))


def test_flipped_bytes_are_noticed(tmp_path):
    mode = Mode({"w": torch.arange(4.0)}, {})
    mode.save(tmp_path / "mode")
    for name, step in ((WEIGHTS, 1), (CONFIG, 7)):
        whole = (tmp_path / "mode" / name).read_bytes()
        for k in range(0, len(whole), step):
            (tmp_path / "mode" / name).write_bytes(whole[:k] + bytes([whole[k] ^ 4]) + whole[k + 1 :])
            with suppress(ModebridgeError):
                # White space between the entries of config.json means nothing.
                assert (name, mb.load(tmp_path / "mode").id) == (CONFIG, mode.id)
        for end in (0, 1, 8, len(whole) // 2, len(whole) - 1):
            (tmp_path / "mode" / name).write_bytes(whole[:end])
            if not (name == CONFIG and end == len(whole) - 1):  # its last byte ends the line
                refused(tmp_path / "mode", "Expected '.*' to be")
        (tmp_path / "mode" / name).write_bytes(whole)
    assert mb.load(tmp_path / "mode").id == mode.id


def test_missing_and_foreign(tmp_path, folder):
    refused(tmp_path / "nowhere" / "at" / "all", "but it does not exist; check the path")
    refused(folder / WEIGHTS, "to be a folder written by save, but it is a file")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "but it has no config.json")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("")
    refused(tmp_path / "run", "it is a run folder; convert it: modebridge push")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / CONFIG).write_text('{"model_type": "bert"}')
    (tmp_path / "theirs" / WEIGHTS).write_bytes(safetensors.torch.save({"w": torch.ones(1)}))
    refused(tmp_path / "theirs", "to be written by modebridge, but it is not; .*load_mode")
    (folder / WEIGHTS).unlink()
    refused(folder, "but it has no model.safetensors")


def test_a_pickle_under_our_name_is_not_read(folder):
    torch.save({"w": torch.ones(1)}, folder / WEIGHTS)
    refused(folder, "does not match its hash")


def test_newer_and_unknown(folder):
    rewritten(folder, format=2, kind="galaxy", object=None)
    refused(folder, "of format 1 or older, but got 2; install a newer modebridge")
    rewritten(folder, format=1, object={})
    refused(folder, "to hold one of mode, bezier, polychain, bridge, ensemble, but got 'galaxy'")
    with pytest.raises(ModebridgeError, match=r"to hold a Mode, but it holds a stored galaxy; use modebridge.load"):
        Mode.from_pretrained(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "nonsense", "[" * 100_000, '{"library": "modebridge"}', "\ufeff{}", '{"format": 1' + "1" * 5000]
)
def test_config_that_is_no_config(folder, text):
    (folder / CONFIG).write_text(text)
    refused(folder, "config.json' to be")


@pytest.mark.parametrize(
    "changes",
    [
        {"tensors": ["params.nothing"]},
        {"tensors": 3},
        {"strides": {"params.head.weight": [10**12, 1]}},
        {"strides": {"params.head.weight": [0, 0]}},
        {"object": 7},
        {"strides": None},
    ],
)
def test_config_that_lies(folder, changes):
    rewritten(folder, **changes)
    refused(folder, "to hold the tensors that its config.json names, but got")


def test_a_git_lfs_pointer(folder):
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refused(folder, "is only a Git LFS pointer; run git lfs pull")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "fast"
    ensemble().save(folder)
    return folder


def hostile(stored, path):
    """The description of an ensemble, changed at one place."""
    *way, last = path[:-1]
    inner = stored
    for step in way:
        inner = inner[step]
    inner[last] = path[-1]


@pytest.mark.parametrize(
    "path",
    [
        ("net", "resnet", "stages", [10**9, 1]),
        ("net", "resnet", "widths", [10**6, 10**6]),
        ("net", "resnet", "norm", "no such"),
        ("net", "resnet", "unknown", 1),
        ("net", {"name": "timm:test_resnet(pretrained=True)"}),
        ("net", {"name": "timm:test_resnet(checkpoint_path='/etc/passwd')"}),
        ("net", {"name": "timm:hf-hub:somebody/something"}),
        ("net", {"name": "os:system('true')"}),
        ("net", {"name": "torchvision:resnet18(weights='DEFAULT')"}),
        ("net", 3),
        ("modes", 10**9),
        ("mean", "median"),
        ("bridges", 0, "body", "class", "Popen"),
        ("bridges", 0, "body", "arguments", "body", "arguments", "blocks", [[4, 1]] * 10_000),
        ("bridges", 0, "body", "arguments", "body", "arguments", "inputs", 10**9),
        ("bridges", 0, "inputs", [7]),
        ("bridges", 0, "taps", ["no.such.tap"]),
        ("bridges", 0, "reads", []),
        ("bridges", None),
    ],
)
def test_hostile_descriptions_are_one_sentence(tmp_path, saved, path):
    shutil.copytree(saved, tmp_path / "fast")
    stored = json.loads((tmp_path / "fast" / CONFIG).read_text())["object"]
    hostile(stored, path)
    rewritten(tmp_path / "fast", object=stored)
    refused(tmp_path / "fast", "Expected")


def test_only_names_that_we_registered_are_built(tmp_path):
    bridge().save(tmp_path / "bridge")
    stored = json.loads((tmp_path / "bridge" / CONFIG).read_text())["object"]
    stored["body"] = {"class": "Linear", "arguments": {"in_features": 2, "out_features": 3}}
    rewritten(tmp_path / "bridge", object=stored)
    refused(tmp_path / "bridge", "to describe a Bridge, but got KeyError: ''Linear''")


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(4))
def test_killed_while_an_earlier_one_is_replaced(tmp_path, monkeypatch, step):
    """Whatever has been renamed: the old object is there, or the new one, never a mixture."""
    old, new = modes(2)
    old.save(tmp_path / "mode")
    (tmp_path / "mode" / "notes.txt").write_text("mine")
    real, done = Path.replace, []

    def stopping(self, target):
        if len(done) == step:
            raise Killed
        done.append(target)
        return real(self, target)

    # A killed process removes nothing behind itself.
    monkeypatch.setattr(Path, "replace", stopping)
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
    try:
        new.save(tmp_path / "mode")
    except Killed:
        assert step < 2
    monkeypatch.undo()
    assert mb.load(tmp_path / "mode").id == (old.id if step == 0 else new.id)
    new.save(tmp_path / "mode")
    assert mb.load(tmp_path / "mode").id == new.id
    assert (tmp_path / "mode" / "notes.txt").read_text() == "mine"
    assert not list((tmp_path / "mode").glob("*.new"))


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    old, new = modes(2)
    old.save(tmp_path / "old")
    monkeypatch.setattr(stored_folder, "_config", full)
    for place in (tmp_path / "deep" / "down" / "mode", tmp_path / "old"):
        with pytest.raises(ModebridgeError, match=r"Expected to write '.*No space left on device'; check space"):
            new.save(place)
    monkeypatch.undo()
    assert not (tmp_path / "deep").exists()
    assert mb.load(tmp_path / "old").id == old.id
    assert len(list((tmp_path / "old").iterdir())) == 2


def test_places_that_cannot_be_written(tmp_path, folder):
    (mode,) = modes(1)
    (tmp_path / "file").write_text("")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / CONFIG).write_text('{"model_type": "bert"}')
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / WEIGHTS).write_text("somebody's")
    for place, message in (
        ("", "Expected the path of a folder, but got ''"),
        ("a\0b", "Expected the path of a folder"),
        (None, "Expected the path of a folder, but got 'None'"),
        (b"bytes", "Expected the path of a folder"),
        (tmp_path / "file", "it is a file; choose another name"),
        (tmp_path / "file" / "below", "Expected to write"),
        (tmp_path / ("long" * 100), "Expected to write"),
        (tmp_path / "theirs", "of another program; choose another folder"),
        (tmp_path / "weights", "of another program; choose another folder"),
    ):
        with pytest.raises(ModebridgeError, match=message):
            mode.save(place)
    assert (tmp_path / "weights" / WEIGHTS).read_text() == "somebody's"
    for place in ("", "a\0b", None, b"bytes"):
        refused(place, "Expected the path of a folder")


def test_odd_but_sound_places(tmp_path, monkeypatch):
    (mode,) = modes(1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for place in ("plain", "with space/\u00fcml\u00e4ut", "./dotted/../up", "~/in-home", "link", "-dash", "a.b/"):
        (tmp_path / "dotted").mkdir(exist_ok=True)
        mode.save(place)
        assert mb.load(place).id == mode.id
    assert (tmp_path / "home" / "in-home" / CONFIG).is_file()
    assert (tmp_path / "link").is_symlink()
    mode.save("owner/name")
    assert mb.load("owner/name").id == mode.id, "a path that exists wins over a name on the hub"
    with pytest.raises(ModebridgeError, match="Expected revision only for names on the hub"):
        mb.load("owner/name", revision="main")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.eye(2).to_sparse(), "dense tensor of real numbers, but got torch.float32 of layout torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "on meta; convert it before saving"),
        (torch.zeros(2, dtype=torch.complex64), "torch.complex64"),
        ("text", "Expected 'params.w' to be a tensor, but got str"),
    ],
)
def test_tensors_that_cannot_be_stored(tmp_path, tensor, message):
    with pytest.raises(ModebridgeError, match=re.escape(message)):
        Mode({"w": tensor}, {}).save(tmp_path / "mode")
    assert not (tmp_path / "mode").exists()


def test_values_that_json_cannot_hold(tmp_path):
    one = bridge()
    one.share = torch.tensor(0.5)
    with pytest.raises(ModebridgeError, match="Expected plain numbers and text beside the tensors, but got 'Object of"):
        one.save(tmp_path / "bridge")
    assert not (tmp_path / "bridge").exists()
    one.share, one.name = float("nan"), "a \ud800 half \u2028 line"
    one.save(tmp_path / "bridge")
    again = mb.load(tmp_path / "bridge")
    assert again.share != again.share
    assert again.name == one.name
