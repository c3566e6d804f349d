"""Every kind of stored thing, with each of its bytes flipped and cut off at many places: refused, or the same.

What says that a file is damaged must name it in one sentence; nothing else may come back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import modebridge as mb
from modebridge.deploy import DeployedEnsemble, export
from modebridge.errors import ModebridgeError
from modebridge.files.atomic import (
    read_sealed,
    read_stored,
    read_tensor_file,
    sealed,
    stored_files,
    tensor_file,
    write_file,
    write_folder,
)
from modebridge.files.hub import CONFIG
from modebridge.modes import Mode
from tests.deploy.scenes import images, tied

TENSORS = {"w": torch.arange(4.0), "n": torch.tensor([[1, 2], [3, 4]]).t()}
META = {"seconds": 1.5, "parents": ["x"]}


class Stored(NamedTuple):
    """How a kind of thing is written at a path, and read as something that can be compared."""

    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    name: str = "it"


def _values(read: tuple[dict[str, torch.Tensor], dict[str, Any]]) -> Any:
    return {name: (tensor.tolist(), tensor.stride()) for name, tensor in read[0].items()}, read[1]


def _exported(path: Path) -> Any:
    return DeployedEnsemble.load(path)(images(2)).probabilities.tolist()


KINDS = {
    "saved object": Stored(lambda path: Mode(TENSORS, {}).save(path), lambda path: mb.load(path).id),
    "artefact of a run": Stored(
        lambda path: write_folder(path, stored_files(TENSORS, META)), lambda path: _values(read_stored(path))
    ),
    "checkpoint": Stored(
        lambda path: write_file(path, tensor_file(TENSORS, META)), lambda path: _values(read_tensor_file(path))
    ),
    "record": Stored(lambda path: write_file(path, sealed(META)), read_sealed),
    "ONNX": Stored(lambda path: export(tied(), path, images(2)), _exported, "it.onnx"),
    "program": Stored(lambda path: export(tied(), path, images(2)), _exported, "it.pt2"),
}


@pytest.fixture(scope="module", params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Stored, Path, Any]:
    """How it is stored, its place, and what is read from it."""
    kind = KINDS[request.param]
    place = tmp_path_factory.mktemp("damage") / kind.name
    kind.write(place)
    return kind, place, kind.read(place)


def test_no_damage_goes_unnoticed(stored: tuple[Stored, Path, Any]) -> None:
    kind, place, wanted = stored
    for file in sorted(place.iterdir()) if place.is_dir() else [place]:
        whole = file.read_bytes()
        places = range(0, len(whole), max(2, len(whole) // 400))
        flips = [whole[:k] + bytes([whole[k] ^ 1 << k % 8]) + whole[k + 1 :] for k in places]
        cuts = [whole[:end] for end in {0, 1, 8, len(whole) // 2, len(whole) - 2}]
        refused = []
        for content in [*flips, *cuts, whole + whole]:
            file.write_bytes(content)
            try:
                assert kind.read(place) == wanted, "white space and padding mean nothing"
            except ModebridgeError as error:
                refused.append(str(error))
        assert len(refused) > 0.6 * len(flips)
        assert all(re.fullmatch(f"Expected '{place}[^\n]*", sentence) for sentence in refused)
        file.unlink()
        with pytest.raises(ModebridgeError, match=r"is missing|it is not|does not exist"):
            kind.read(place)
        file.mkdir()
        with pytest.raises(ModebridgeError, match=r"^Expected"):
            kind.read(place)
        file.rmdir()
        file.write_bytes(whole)
    assert kind.read(place) == wanted


def test_what_is_written_over_damage_is_whole(stored: tuple[Stored, Path, Any]) -> None:
    kind, place, wanted = stored
    for file in sorted(place.iterdir()) if place.is_dir() else [place]:
        if file.name != CONFIG:  # such a folder could be another program's
            file.write_bytes(b"")
    kind.write(place)
    assert kind.read(place) == wanted
    assert [entry.name for entry in place.parent.iterdir()] == [place.name]
