"""A file that was damaged after it was written is refused, whichever bit it was, and so are files of other tools."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import modebridge
from modebridge.deploy import DeployedEnsemble
from modebridge.deploy.metadata import DIGITS, FORMAT, NAME, seal
from modebridge.errors import ModebridgeError
from tests.deploy.scenes import images


def refused(path):
    with pytest.raises(ModebridgeError) as caught:
        DeployedEnsemble.load(path)
    message = str(caught.value)
    assert f"'{path}'" in message
    assert "\n" not in message
    return message


def test_other_damage_and_other_files(source, tmp_path, capfd):
    """What people give to `predict` by mistake."""
    data, suffix = source.read_bytes(), source.suffix
    weights, archive = io.BytesIO(), io.BytesIO()
    torch.save(nn.Linear(2, 2).state_dict(), weights)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a/b.txt", "text")
    contents = {"weights": weights.getvalue(), "archive": archive.getvalue(), "empty": b"", "text": b"Hello.\n" * 9}
    contents |= {"zeros": bytes(5000), "more": data + b"\0", "hole": data[:3000] + bytes(512) + data[3512:]}
    contents |= {
        f"less{n}": data[:-n] for n in (1, DIGITS, DIGITS + 2 + len(NAME), 5000, len(data) // 2, len(data) - 3)
    }
    for name, content in contents.items():
        (tmp_path / f"{name}{suffix}").write_bytes(content)
        assert "download it again, or export it again" in refused(tmp_path / f"{name}{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"link{suffix}").symlink_to("nowhere")
    for name, words in (
        ("folder", "is not one"),
        ("pipe", "is not one"),
        ("link", "does not exist"),
        ("none", "does not exist"),
    ):
        assert f"to be a file, but it {words}" in refused(tmp_path / f"{name}{suffix}")
    refused(tmp_path / f"{'long' * 100}{suffix}")
    assert "ending in .onnx or .pt2" in refused(tmp_path / "weights.pt")
    captured = capfd.readouterr()
    assert captured.out + captured.err == "", "the runtimes say nothing of their own"


def test_files_of_other_versions(little_onnx, little_pt2, tmp_path):
    """Of 0.2, .onnx files are read and .pt2 files are not; of later versions, neither."""
    for format, words in ((FORMAT + 1, "install a newer modebridge"), (4, "")):
        model = onnx.load(little_onnx)
        entries = {one.key: one.value for one in model.metadata_props}
        meta = json.loads(entries["modebridge"]) | {"format": format}
        onnx.helper.set_model_props(model, {"modebridge": json.dumps(meta)})
        onnx.save(model, tmp_path / "a.onnx")
        assert "intact" in refused(tmp_path / "a.onnx"), "changed with other tools"
        seal(tmp_path / "a.onnx")
        if words:
            assert words in refused(tmp_path / "a.onnx")
        else:
            told, wanted = (DeployedEnsemble.load(path)(images(3)) for path in (tmp_path / "a.onnx", little_onnx))
            np.testing.assert_array_equal(told.probabilities, wanted.probabilities)
    with zipfile.ZipFile(little_pt2) as old, zipfile.ZipFile(tmp_path / "a.pt2", "w") as new:
        assert old.testzip() is None
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data.replace(f'"format": {FORMAT}'.encode(), b'"format": 4'))
    seal(tmp_path / "a.pt2")
    assert f"to be of format {FORMAT}, but got 4; export it again" in refused(tmp_path / "a.pt2")


def test_good_files_of_other_tools_with_a_hash(tmp_path):
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(
        onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 18)]),
        tmp_path / "a.onnx",
    )
    seal(tmp_path / "a.onnx")
    assert "to load, but got" in refused(tmp_path / "a.onnx")


def test_the_seal_is_what_the_documentation_says(source):
    data = source.read_bytes()
    assert data[-DIGITS:].decode() == hashlib.sha256(data[:-DIGITS]).hexdigest()
    if source.suffix == ".onnx":
        entries = {one.key: one.value for one in onnx.load(source).metadata_props}
        assert entries[NAME.decode()] == data[-DIGITS:].decode()
        # Torch notes a trace at every node; a file does not tell where it was made.
        assert b"stack_trace" not in data
        assert os.path.dirname(modebridge.__file__).encode() not in data  # noqa: PTH120
    else:
        with zipfile.ZipFile(source) as archive:
            assert archive.comment.startswith(NAME + b": ")
