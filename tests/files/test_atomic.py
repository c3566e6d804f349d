"""Whole or not at all: what a failing or killed writer leaves; and every kind of stored thing, damaged anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import modebridge as mb
from modebridge.deploy import DeployedEnsemble, export
from modebridge.errors import ModebridgeError
from modebridge.files import atomic
from modebridge.files.atomic import (
    Damage,
    read_sealed,
    read_stored,
    read_tensor_file,
    remove_leftovers,
    sealed,
    stored_files,
    tensor_file,
    write_file,
    write_folder,
)
from modebridge.files.hub import CONFIG
from modebridge.modes import Mode
from tests.deploy.scenes import images, tied

TENSORS = {
    "b": torch.arange(6.0).view(1, 2, 3, 1).to(memory_format=torch.channels_last),
    "a": torch.tensor([], dtype=torch.bfloat16),
    "c": torch.tensor(3, dtype=torch.int64),
}
META = {"seconds": 1.5, "parents": ["x"], "nested": {"é": None}}


def the_same(tensors: dict[str, Tensor], meta: dict[str, object]) -> bool:
    """Order, strides, types and bits."""
    bits = all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    kinds = [(name, t.dtype, t.stride()) for name, t in tensors.items()]
    return bits and kinds == [(name, t.dtype, t.stride()) for name, t in TENSORS.items()] and meta == META


def names(folder: Path) -> list[str]:
    return sorted(place.name for place in folder.iterdir())


def test_what_is_written_comes_back_and_replaces_what_was_there(tmp_path: Path) -> None:
    for _ in range(2):
        write_folder(tmp_path / "new" / "folder", stored_files(TENSORS, META))
        assert the_same(*read_stored(tmp_path / "new" / "folder"))
        write_file(tmp_path / "file", tensor_file(TENSORS, META))
        assert the_same(*read_tensor_file(tmp_path / "file"))
        write_file(tmp_path / "record.json", sealed(META))
        assert read_sealed(tmp_path / "record.json") == META
        assert names(tmp_path) == ["file", "new", "record.json"]
        (tmp_path / "new" / "folder" / "other").touch()
    write_file(tmp_path / "file", tensor_file(TENSORS, {}), keep=tmp_path / "earlier")
    assert the_same(*read_tensor_file(tmp_path / "earlier"))
    assert read_tensor_file(tmp_path / "file")[1] == {}
    assert names(tmp_path) == ["earlier", "file", "new", "record.json"]
    write_folder(tmp_path / "record.json", {})  # also a folder in the place of a file
    assert names(tmp_path / "record.json") == []
    assert read_tensor_file(tmp_path / "file")[0].keys() == TENSORS.keys()


def test_nothing_at_all(tmp_path: Path) -> None:
    write_folder(tmp_path / "empty", stored_files({}, {}))
    assert read_stored(tmp_path / "empty") == ({}, {})
    write_file(tmp_path / "file", "")
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt, ModebridgeError])
def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path, kind: type[BaseException]) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise kind("disk full")

    expected = ModebridgeError if kind is OSError else kind
    write_file(tmp_path / "file", "old")
    write_folder(tmp_path / "folder", {"file": "old"})
    with pytest.raises(expected, match="disk full"):
        write_file(tmp_path / "file", fail)
    with pytest.raises(expected, match="disk full"):
        write_folder(tmp_path / "folder", {"file": "new", "last": fail})
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "file").read_text() == "old"


def test_a_writer_killed_at_any_rename_leaves_one_of_the_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """No clean-up runs after SIGKILL."""

    folder, replace = tmp_path / "folder", Path.replace
    old, new = (Mode({"w": torch.full((1,), value)}, {}) for value in (1.0, 2.0))
    old.save(folder)
    for renames in range(3):
        left = [renames]

        def counted(path: Path, target: Path, left: list[int] = left) -> Path:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return replace(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", counted)
            patch.setattr(atomic, "_remove", lambda path: None)
            with suppress(Killed):
                new.save(folder)
        assert folder.exists() == (renames != 1)
        assert mb.load(folder).id == (new if renames == 2 else old).id
        remove_leftovers(tmp_path)
        assert names(tmp_path) == ["folder"]
        assert mb.load(folder).id == (new if renames == 2 else old).id


def test_what_cannot_be_stored(tmp_path: Path) -> None:
    one = torch.ones(1)
    for tensor in (one.to(torch.complex64), torch.eye(2).to_sparse(), one.to("meta"), "text"):
        with pytest.raises(ModebridgeError, match="Expected 'w' to be a dense tensor of real numbers, but got"):
            tensor_file({"w": tensor}, {})  # type: ignore[dict-item]
    with pytest.raises(ModebridgeError, match="Expected plain numbers and text"):
        sealed({"score": one})
    (tmp_path / "file").touch()
    with pytest.raises(ModebridgeError, match=r"Expected to write '.*below', but got .*; check space"):
        write_file(tmp_path / "file" / "below", "")


def test_a_reader_says_what_is_wrong(tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", stored_files(TENSORS, META))
    meta = tmp_path / "folder" / "meta.json"
    record = meta.read_text()
    for broken, reason in (
        ("", "folder has no readable hash"),
        ("[]", "folder has no readable hash"),
        (record.replace("1.5", "1.6"), "folder does not match its hash"),
    ):
        meta.write_text(broken)
        with pytest.raises(Damage, match="to be as it was written, but it") as damage:
            read_stored(tmp_path / "folder")
        assert damage.value.reason == reason


# Each byte flipped and cut off at many places: what says that a file is damaged names it, nothing else comes back.


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
