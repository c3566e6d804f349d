"""Folders that are foreign, hostile or describe what they do not hold, and places that cannot be written: one sentence.

Damage is in test_atomic.py.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import modebridge as mb
from modebridge.bridges import Bridge
from modebridge.errors import ModebridgeError
from modebridge.files import atomic
from modebridge.files.hub import CONFIG, WEIGHTS
from modebridge.modes import Mode
from tests.files.objects import Own, batch, bridge, ensemble
from tests.scenarios import modes, tiny_net


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    modes(1)[0].save(tmp_path / "mode")
    return tmp_path / "mode"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "fast"
    ensemble().save(folder)
    return folder


def refused(path: Any, message: str, **options: Any) -> None:
    with pytest.raises(ModebridgeError, match=message) as caught:
        mb.load(path, **options)
    assert re.fullmatch(r"Expected [^\n]*", str(caught.value))


def rewritten(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """A config.json by hand, with a hash that fits."""
    config = json.loads((folder / CONFIG).read_text())
    del config["hash"]
    change(config)
    config["hash"] = atomic._hash(config, safetensors.torch.load_file(folder / WEIGHTS))
    (folder / CONFIG).write_text(json.dumps(config))


def test_missing_and_foreign(tmp_path: Path, folder: Path) -> None:
    refused(tmp_path / "nowhere" / "at" / "all", "but it does not exist; check the path")
    refused(folder / WEIGHTS, "to be a folder written by save, but it is a file")
    for name, text, message in (
        ("notes", "", "to be written by modebridge, but it is not"),
        ("recipe.toml", "", "it is a run folder; convert it: modebridge push"),
        (CONFIG, '{"model_type": "bert"}', r"to be written by modebridge, but it is not; .*load_checkpoint"),
    ):
        (tmp_path / f"of {name}").mkdir()
        (tmp_path / f"of {name}" / name).write_text(text)
        refused(tmp_path / f"of {name}", message)
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refused(folder, "is only a Git LFS pointer; run git lfs pull")


@pytest.mark.parametrize(
    "change", [{"format": 1}, {"format": 3}, {"kind": "galaxy"}, {"kind": None}, {"object": 7}, {"object": None}]
)
def test_other_formats_and_kinds(folder: Path, change: dict[str, object]) -> None:
    rewritten(folder, lambda config: config.update(change))
    refused(folder, "to hold one of mode, .*, cascade in format 2, but got")


@pytest.mark.parametrize(
    "tensors", [["params.nothing"], 3, [["params.nothing", None]], [["params.head.weight", [0, 0]]]]
)
def test_tensors_that_are_not_there(folder: Path, tensors: object) -> None:
    rewritten(folder, lambda config: config.update(tensors=tensors))
    refused(folder, "does not hold the tensors that it names")


def _at(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Set the last but one step of a path to its last."""

    def change(config: dict[str, Any]) -> None:
        inner = config["object"]
        for step in path[:-2]:
            inner = inner[step]
        inner[path[-2]] = path[-1]

    return change


SPEC = ("net", "arguments", "spec", "arguments")
LARGER = "a network that is larger than the stored weights"
INSIDE = ("bridges", 0, "body", "arguments", "body", "arguments")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_at(*SPEC, "stages", [10**9, 1]), LARGER),
        (_at(*SPEC, "widths", [10**6, 10**6]), LARGER),
        (_at(*SPEC, "norm", "no such"), "Expected norm to be"),
        (_at(*SPEC, "unknown", 1), "TypeError"),
        (_at("net", {"name": "timm:test_resnet(pretrained=True)"}), "loads other weights"),
        (_at("net", {"name": "timm:test_resnet(checkpoint_path='/etc/passwd')"}), "loads other weights"),
        (_at("net", {"name": "timm:hf-hub:somebody/something"}), "loads other weights"),
        (_at("net", {"name": "os:system('true')"}), "Expected net to be a known network"),
        (_at("net", {"name": "torchvision:resnet18(weights='DEFAULT')"}), "loads other weights"),
        (_at("net", {"name": "timm:vit_tiny_patch16_224(depth=20000)"}), LARGER),
        (_at("net", {"name": "timm:vit_tiny_patch16_224(img_size=160000)"}), LARGER),
        (_at("net", {"name": "torchvision:regnet_y_128gf"}), LARGER),  # it cannot be built without values
        (_at("net", {"name": "timm:test_resnet(no_such_option=1)"}), "to be built, but got TypeError"),
        (_at("net", 3), "TypeError"),
        (_at("modes", 10**9), "Expected"),
        (_at("mean", "median"), "median"),
        (_at("bridges", 0, "body", "class", "Popen"), "KeyError: ''Popen''"),
        (_at(*INSIDE, "blocks", [[4, 1]] * 10_000), LARGER),
        (_at(*INSIDE, "inputs", 10**9), LARGER),
        (_at(*INSIDE, "inputs", 17), "as the stored weights do, but got shape"),
        (_at("bridges", 0, "taps", ["no.such.tap"]), "no.such.tap"),
        (_at("bridges", 0, "inputs", [7]), "IndexError"),
        (_at("bridges", 0, "reads", []), "Expected a bridge to read one mode"),
        (_at("bridges", None), "TypeError"),
    ],
)
def test_hostile_descriptions(tmp_path: Path, saved: Path, change: Any, message: str) -> None:
    """Two modes, a bridge with two heads and one of type II; the hash fits."""
    shutil.copytree(saved, tmp_path / "fast")
    rewritten(tmp_path / "fast", change)
    refused(tmp_path / "fast", re.escape(message))


@torch.no_grad()
def test_an_unchanged_description_loads(tmp_path: Path, saved: Path) -> None:
    shutil.copytree(saved, tmp_path / "fast")
    rewritten(tmp_path / "fast", lambda config: None)
    assert torch.equal(mb.load(tmp_path / "fast")(batch()), ensemble()(batch()))


@pytest.mark.parametrize("temperature", [-1.0, 0.0, float("nan"), float("inf"), [1.0, 2.0]])
def test_temperatures_and_weights_that_are_none(tmp_path: Path, temperature: Any) -> None:
    whole = ensemble()
    whole.temperature = torch.tensor(temperature)
    whole.save(tmp_path / "it")
    refused(tmp_path / "it", "stored temperature to be one number above 0, but got|got NaN in 'temperature'")
    Mode({"w": torch.tensor([1.0, float("nan")])}, {}).save(tmp_path / "mode")
    refused(tmp_path / "mode", "to hold numbers, but got NaN in 'params.w'; use one saved before training diverged")


def changed(**layers: nn.Module) -> Own:
    own = Own()
    for name, layer in layers.items():
        setattr(own, name, layer)
    return own


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("bodies", "message"),
    [
        (Own(), "bodies to be a list of modules, but got one Own"),
        (None, "bodies to be a list of modules, but got one NoneType"),
        ([Own], "bodies to be a list of modules, but got the class Own; pass one module per bridge"),
        ([], "a body for 'mine', because its Own is a custom module"),
        ([Own(), Own()], "but got 1 too many; leave them out."),
        ([nn.Linear(2, 3)], "the body of 'mine' to be of class Own, as was saved, but got Linear"),
        (
            [changed(first=nn.Linear(8, 8, bias=False))],
            "the body of 'mine' to have 'first.weight' of shape (16, 16), as the stored weights do",
        ),
        (
            [changed(extra=nn.Linear(3, 3))],
            "the body of 'mine' to have the tensors of the stored weights, but it also has 'extra.weight'",
        ),
    ],
)
def test_bodies_that_do_not_fit(tmp_path: Path, bodies: Any, message: str, whole: bool) -> None:
    one: Any = Bridge(Own(), modes(1), "layers.2", None, "mine")
    (mb.Ensemble(tiny_net(), modes(1), [one]) if whole else one).save(tmp_path / "it")
    refused(tmp_path / "it", re.escape(message), bodies=bodies)
    refused(tmp_path / "it", "Expected net to be a module, but got the class Linear", net=nn.Linear, bodies=[Own()])


def test_places_that_cannot_be_written(tmp_path: Path, folder: Path) -> None:
    (mode,) = modes(1)
    (tmp_path / "file").write_text("")
    for name, file in (("theirs", CONFIG), ("weights", WEIGHTS), ("home", "notes.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("somebody's")
    (folder / "notes.txt").write_text("mine")
    for place, message in (
        ("", "Expected the path of a folder, but got ''"),
        ("a\0b", "Expected the path of a folder"),
        (None, "Expected the path of a folder, but got 'None'"),
        (b"bytes", "Expected the path of a folder"),
        (tmp_path / "file", "it is a file; choose another name"),
        (tmp_path / ("long" * 100), "Expected to write"),
        (tmp_path / "theirs", "it holds other files, such as 'config.json'; choose another folder"),
        (tmp_path / "weights", "it holds other files"),
        (tmp_path / "home", "it holds other files, such as 'notes.txt'"),
        (folder, "it holds other files, such as 'notes.txt'"),
    ):
        with pytest.raises(ModebridgeError, match=message):
            mode.save(place)  # type: ignore[arg-type]
    assert (tmp_path / "weights" / WEIGHTS).read_text() == "somebody's"
    for path in ("", "a\0b", None, b"bytes"):
        refused(path, "Expected the path of a folder")


def test_odd_but_sound_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mode,) = modes(1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for place in ("plain", "with space/\u00fcml\u00e4ut", "./real/../up", "~/in-home", "link", "-dash", "a.b/"):
        mode.save(place)
        assert mb.load(place).id == mode.id
    assert (tmp_path / "home" / "in-home" / CONFIG).is_file()
    assert (tmp_path / "link").is_symlink()


def test_odd_values_are_stored(tmp_path: Path) -> None:
    one = bridge()
    one.share, one.name = float("nan"), "a \ud800 half \u2028 line"
    one.save(tmp_path / "it")
    again = mb.load(tmp_path / "it")
    assert again.share != again.share
    assert again.name == one.name
