"""Images in memory and as files: decoded like Pillow does, read from the cache the second time, never damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modebridge.data import ImageFiles, ImageSet, find_images, images, read_images
from modebridge.errors import ModebridgeError
from tests.data.pictures import folder_of_classes
from tests.scenarios import blobs

COUNT = 12


def test_bad_sets():
    labels = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ModebridgeError, match="2 for 3"):
        ImageSet(torch.zeros(3, 1, 2, 2), labels, 2)
    with pytest.raises(ModebridgeError, match="to have images, but got none"):
        blobs().part(3, 3)
    with pytest.raises(ModebridgeError, match="NaN or Inf"):
        ImageSet(torch.full((2, 1, 2, 2), float("nan")), labels, 2)
    with pytest.raises(ModebridgeError, match=r"in \[0, 2\), but got 0 to 2"):
        ImageSet(torch.zeros(2, 1, 2, 2), torch.tensor([0, 2]), 2)


def test_files_know_themselves(tmp_path: Path) -> None:
    here, there = (find_images(folder_of_classes(tmp_path / name)) for name in ("here", "there"))
    assert here.fingerprint() == there.fingerprint() != here.shuffled(1).fingerprint()
    with pytest.raises(ModebridgeError, match="1 for 2"):
        ImageFiles(("a", "b"), torch.zeros(1), 2)
    with pytest.raises(ModebridgeError, match="to have images"):
        here.part(2, 2)


def test_mistakes_with_folders(tmp_path: Path) -> None:
    with pytest.raises(ModebridgeError, match="one folder per class, but it has none"):
        find_images(tmp_path / "none")
    with pytest.raises(ModebridgeError, match="it has none"):
        find_images(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModebridgeError, match=r"images below '.*empty'"):
        find_images(tmp_path)
    (tmp_path / "empty" / "bad.png").write_bytes(b"no image")
    with pytest.raises(ModebridgeError, match=r"bad.png' to be an image"):
        read_images(find_images(tmp_path))
    mixed = find_images(folder_of_classes(tmp_path / "mixed"))
    with pytest.raises(ModebridgeError, match="stream data sets of mixed sizes"):
        read_images(mixed)


@pytest.fixture
def files(tmp_path, monkeypatch) -> ImageFiles:
    """A few PNG files, of a set that counts as large."""
    monkeypatch.setattr(images, "MANY", COUNT)
    monkeypatch.setattr(images, "CHUNK", 5)
    monkeypatch.setenv(images.VARIABLE, str(tmp_path / "cache"))
    draws = np.random.default_rng(0)
    for number in range(COUNT):
        folder = tmp_path / "set" / ("first" if number % 2 else "second")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(256, size=(6, 4, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
    return find_images(tmp_path / "set")


def entries(tmp_path) -> list:
    return list((tmp_path / "cache").rglob("*.safetensors"))


def test_equal_to_pillow_and_kept(files, tmp_path, monkeypatch):
    expected = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in files.paths])
    decoded = read_images(files)
    assert decoded.images.dtype == torch.uint8
    assert np.array_equal(decoded.images.numpy(), expected)
    assert torch.equal(decoded.labels, files.labels)
    assert len(entries(tmp_path)) == 1
    monkeypatch.setattr(images, "_decode", None)  # not called again
    assert np.array_equal(read_images(files).images.numpy(), expected)


def test_a_changed_file_is_decoded_again(files, tmp_path):
    before = read_images(files).images.clone()
    Image.fromarray(np.zeros((6, 4, 3), dtype=np.uint8)).save(files.paths[7])
    after = read_images(files).images
    assert not after[7].any()
    kept = [k for k in range(COUNT) if k != 7]
    assert torch.equal(after[kept], before[kept])


def test_damage_is_noticed(files, tmp_path):
    before = read_images(files).images.clone()
    (entry,) = entries(tmp_path)
    for content in (entry.read_bytes()[:-1] + b"?", b""):
        entry.write_bytes(content)
        assert torch.equal(read_images(files).images, before)


def test_small_sets_and_no_cache(files, tmp_path, monkeypatch):
    read_images(files.part(0, COUNT - 1))
    assert entries(tmp_path) == []
    monkeypatch.setenv(images.VARIABLE, "")
    read_images(files)
    assert entries(tmp_path) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(images.VARIABLE, str(tmp_path / "file"))
    assert len(read_images(files)) == COUNT, "a cache that cannot be written is no error"


@pytest.mark.slow  # torch waits for the other workers
def test_mixed_sizes_are_refused_from_a_worker_too(files):
    Image.fromarray(np.zeros((5, 4, 3), dtype=np.uint8)).save(files.paths[7])
    with pytest.raises(ModebridgeError, match=r"Expected images of 4 x 6, but .* is 4 x 5"):
        read_images(files)
