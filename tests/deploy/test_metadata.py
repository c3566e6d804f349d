"""Papers that are damaged, and files that are not ours: always one sentence with the path, never a traceback."""

from __future__ import annotations

import copy
import io
import json
import os
import zipfile
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import modebridge
from modebridge.deploy import Deployed, export
from modebridge.deploy.metadata import RULES, read_metadata
from modebridge.errors import ModebridgeError
from tests.deploy.damage import metadata_in, with_metadata
from tests.deploy.scenes import images, tied

JUNK = [None, True, -1, 0, 1.5, 10**30, float("nan"), float("inf"), 1e308, "x", "", "\ud800"]
JUNK += [[], [1], ["x"], [[1]], [None], [-1], [10**30], [float("nan")], {}, {"x": 1}, {"x": {"shape": [1]}}]
PLACE = Path("some/fast.onnx")


def test_any_entry_may_be_anything(source):
    """No value leads to anything but good metadata or a sentence with the path and the entry."""
    metadata = metadata_in(source)
    assert read_metadata(json.dumps(metadata), PLACE, sealed=True) == metadata
    assert set(metadata) <= set(RULES), "each has a rule"
    for name in metadata:
        rest = {key: value for key, value in metadata.items() if key != name}
        cases = [rest, *[{**rest, name: value} for value in JUNK]]
        refused = 0
        for case in cases:
            message = said_of(case)
            refused += bool(message)
            assert message == "" or (f"'{PLACE}'" in message and len(message) < 300)
        # An object or a list of names takes a few of them.
        assert refused >= 18, name


def said_of(metadata):
    try:
        read_metadata(json.dumps(metadata), PLACE, sealed=True)
    except ModebridgeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 99}, "to be of format 4 or older, but got 99; install a newer modebridge"),
        ({"mean": "median"}, "'mean' in the metadata .* to be probability or logarithmic, but got"),
        ({"temperature": float("nan")}, "'temperature' in the metadata .* to be a positive number, but got NaN"),
        ({"temperatures": [1.0, -1.0]}, "to be a list of positive numbers"),
        ({"temperatures": [1.0]}, "number of temperatures in the metadata .* to be 2, .* but got 1"),
        ({"members": ["a"]}, "number of members in the metadata .* to be 2, .* but got 1"),
        ({"bridges": 2}, "number of members"),
        ({"image": [1, 9, 9]}, r"the image in the metadata .* to be \[1, 8, 8\], .* but got \[1, 9, 9\]"),
        ({"image": [10**9, 10**9, 1]}, "'image' in the metadata .* null or a shape"),
        ({"inputs": {"images": {"shape": [1, 8, 8], "type": "float64"}}}, "shapes and types"),
        ({"outputs": ["probabilities"]}, "with probabilities and used"),
        ({"classes": ["ant", "\ud800"]}, "'classes' in the metadata .* a list of names"),
        ({"threshold": -0.5}, "null or a number of at least 0, but got -0.5"),
    ],
)
def test_what_does_not_fit_is_named(little_onnx, change, words):
    metadata = metadata_in(little_onnx) | change
    with pytest.raises(ModebridgeError, match=words):
        read_metadata(json.dumps(metadata), PLACE, sealed=True)


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "3", "NaN", '"x"', "[" * 100_000, '{"a":' * 100_000, '{"format": ' + "9" * 5000 + "}"],
    ids=lambda text: text[:8] or "empty",
)
def test_text_that_is_no_object(text):
    with pytest.raises(ModebridgeError, match=r"Expected the metadata of 'some/fast.onnx' to be (JSON|an object)"):
        read_metadata(text, PLACE, sealed=False)


def test_nested_up_to_the_limit(little_onnx):
    """Python reads some depths that it cannot write again."""
    metadata = metadata_in(little_onnx)
    for depth in (100, 900, 950, 980, 2000):
        text = json.dumps(metadata | {"classes": 0}).replace('"classes": 0', f'"classes": {"[" * depth}{"]" * depth}')
        with pytest.raises(ModebridgeError, match=r"'some/fast.onnx'"):
            read_metadata(text, PLACE, sealed=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": ["ant", "bee"]}, r"'probabilities' in the graph of '.*' to be tensor\(float\) \[2\], .* but got"),
        ({"elastic": False}, r"'bridges' in the graph of '.*' to be none, .* but got tensor\(int64\) \[\]"),
        ({"outputs": ["probabilities", "used"]}, "'members' in the graph of '.*' to be none"),
        ({"inputs": {"x": {"shape": [1, 8, 8], "type": "float32"}}}, "'x' in the graph of '.*' to be tensor"),
    ],
)
def test_a_graph_that_is_not_what_its_metadata_says(little_onnx, tmp_path, change, words):
    text = json.dumps({key: value for key, value in metadata_in(little_onnx).items() if key != "seal"} | change)
    with pytest.raises(ModebridgeError, match=words):
        Deployed.load(with_metadata(little_onnx, tmp_path / "a.onnx", text))


def test_programs_that_are_not_what_their_metadata_says(little_pt2, tmp_path):
    metadata = {key: value for key, value in metadata_in(little_pt2).items() if key != "seal"}
    plan = copy.deepcopy(metadata["plan"])
    plan["reads"][0] = [[1, "nowhere"]]
    for change, words in (
        ({"elastic": False}, "but 'model' is missing"),
        ({"plan": plan}, "the list of taps that bridges read but no base has"),
        ({"plan": {}}, "to be taps by base and reads by bridge"),
    ):
        with pytest.raises(ModebridgeError, match=words):
            Deployed.load(with_metadata(little_pt2, tmp_path / "a.pt2", json.dumps(metadata | change)))


def others(folder: Path, data: bytes, suffix: str) -> list[Path]:
    """What people give to `predict` by mistake."""
    weights = io.BytesIO()
    torch.save(nn.Linear(2, 2).state_dict(), weights)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a/b.txt", "text")
    contents = {"weights": weights.getvalue(), "archive": archive.getvalue(), "empty": b"", "text": b"Hello.\n" * 9}
    contents |= {"half": data[: len(data) // 2], "page": b"<!DOCTYPE html><html></html>", "zeros": bytes(5000)}
    for name, content in contents.items():
        (folder / f"{name}{suffix}").write_bytes(content)
    (folder / f"folder{suffix}").mkdir()
    os.mkfifo(folder / f"pipe{suffix}")
    (folder / f"link{suffix}").symlink_to("nowhere")
    return [*folder.iterdir(), folder / f"{'long' * 100}{suffix}", folder / f"absent{suffix}"]


def test_files_of_other_tools(source, tmp_path, capfd):
    for path in others(tmp_path, source.read_bytes(), source.suffix):
        with pytest.raises(ModebridgeError) as caught:
            Deployed.load(path)
        assert f"'{path}'" in str(caught.value)
        assert "\n" not in str(caught.value)
    weights = (tmp_path / f"weights{source.suffix}").rename(tmp_path / "weights.pt")
    with pytest.raises(ModebridgeError, match=r"ending in .onnx or .pt2, but got '.*weights.pt'; create one"):
        Deployed.load(weights)
    captured = capfd.readouterr()
    assert captured.out + captured.err == "", "the runtimes say nothing of their own"


def test_good_files_of_other_tools(tmp_path):
    """A model of any other exporter; a .pt2 archive's programs, which are code, are not loaded for this."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(model, tmp_path / "a.onnx")
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)), tmp_path / "a.pt2")
    for name in ("a.onnx", "a.pt2"):
        with pytest.raises(
            ModebridgeError, match=rf"{name}' to be written by modebridge, but it has no modebridge metadata"
        ):
            Deployed.load(tmp_path / name)
    entry = model.metadata_props.add(key="modebridge", value="?" * 5)
    assert entry.value == "?????"
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString().replace(b"?????", b"\xff\xfe{}\xff"))
    with pytest.raises(ModebridgeError, match=r"a.onnx' to be an ONNX file, but got ''utf-8' codec"):
        Deployed.load(tmp_path / "a.onnx")


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"scores": {"accuracy": torch.ones(1)}}, "to store in '.*fast.onnx', but got 'Object of type Tensor"),
        ({"classes": ["\ud800"] * 10}, "'classes' in the metadata of '.*fast.onnx' to be a list of names"),
        (
            {"threshold": float("nan")},
            "'threshold' in .*fast.onnx' .* but got NaN; check what you pass to export",
        ),
        ({"names": [1, 2]}, "'members' in the metadata of '.*fast.onnx'"),
    ],
)
def test_what_no_reader_would_take_is_not_written(tmp_path, wish, words):
    with pytest.raises(ModebridgeError, match=words):
        export(tied(), tmp_path / "fast.onnx", images(2), **wish)
    assert list(tmp_path.iterdir()) == []


def test_the_file_does_not_tell_where_it_was_made(little_onnx):
    """Torch notes a trace at every node."""
    data = little_onnx.read_bytes()
    assert b"stack_trace" not in data
    assert str(Path(modebridge.__file__).parent).encode() not in data
