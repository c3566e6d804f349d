"""Files of other tools and versions are refused, or read; what a file says of itself is in it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path

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


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_other_files(suffix, tmp_path, capfd):
    """What people give to `predict` by mistake; damage is in tests/files."""
    weights = io.BytesIO()
    torch.save(nn.Linear(2, 2).state_dict(), weights)
    for content in (weights.getvalue(), b"", b"Hello.\n" * 9, bytes(5000)):
        (tmp_path / f"other{suffix}").write_bytes(content)
        assert "download it again, or export it again" in refused(tmp_path / f"other{suffix}")
    seal(tmp_path / f"other{suffix}")
    assert "to load, but got" in refused(tmp_path / f"other{suffix}")
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"link{suffix}").symlink_to("nowhere")
    for name, words in (("pipe", "is not one"), ("link", "does not exist")):
        assert f"to be a file, but it {words}" in refused(tmp_path / f"{name}{suffix}")
    refused(tmp_path / f"{'long' * 100}{suffix}")
    assert "ending in .onnx or .pt2" in refused(tmp_path / "weights.pt")
    captured = capfd.readouterr()
    assert captured.out + captured.err == "", "the runtimes say nothing of their own"


def test_files_of_other_versions(little_onnx, little_pt2, tmp_path):
    """Of 0.2, .onnx files are read and .pt2 files are not; of later versions, neither."""
    meta = DeployedEnsemble.load(little_onnx).meta
    for name, format in (("new.onnx", FORMAT + 1), ("old.onnx", 4)):
        model = onnx.load(little_onnx)
        onnx.helper.set_model_props(model, {"modebridge": json.dumps(meta | {"format": format})})
        onnx.save(model, tmp_path / name)
        assert "intact" in refused(tmp_path / name), "changed with other tools"
        seal(tmp_path / name)
    assert "install a newer modebridge" in refused(tmp_path / "new.onnx")
    told, wanted = (DeployedEnsemble.load(path)(images(3)) for path in (tmp_path / "old.onnx", little_onnx))
    np.testing.assert_array_equal(told.probabilities, wanted.probabilities)
    with zipfile.ZipFile(little_pt2) as old, zipfile.ZipFile(tmp_path / "a.pt2", "w") as new:
        assert old.testzip() is None
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data.replace(f'"format": {FORMAT}'.encode(), b'"format": 4'))
    seal(tmp_path / "a.pt2")
    assert f"to be of format {FORMAT}, but got 4; export it again" in refused(tmp_path / "a.pt2")


def test_the_seal_is_what_the_documentation_says(little_onnx, little_pt2):
    for file in (little_onnx, little_pt2):
        data = file.read_bytes()
        assert data[-DIGITS:].decode() == hashlib.sha256(data[:-DIGITS]).hexdigest()
    entries = {one.key: one.value for one in onnx.load(little_onnx).metadata_props}
    assert entries[NAME.decode()] == little_onnx.read_bytes()[-DIGITS:].decode()
    with zipfile.ZipFile(little_pt2) as archive:
        assert archive.comment.startswith(NAME + b": ")
    # Torch notes a trace at every node; a file does not tell where it was made.
    for trace in (b"stack_trace", str(Path(modebridge.__file__).parent).encode()):
        assert trace not in little_onnx.read_bytes()
