"""Decoded image sets: equal to what was decoded one by one, read from the cache the second time, never damaged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from modebridge.caches import VARIABLE, cache_folder
from modebridge.data import find_images, image_cache, read_images
from modebridge.data.image_files import ImageFiles
from modebridge.errors import ModebridgeError

COUNT = 12


@pytest.fixture
def files(tmp_path, monkeypatch) -> ImageFiles:
    """A few PNG files, of a set that counts as large."""
    monkeypatch.setattr(image_cache, "MANY", COUNT)
    monkeypatch.setattr(image_cache, "CHUNK", 5)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    draws = np.random.default_rng(0)
    for number in range(COUNT):
        folder = tmp_path / "set" / ("first" if number % 2 else "second")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(256, size=(6, 4, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
    return find_images(tmp_path / "set")


def entries(tmp_path) -> list:
    return list((tmp_path / "cache").rglob("*.safetensors"))


def broken(files: ImageFiles) -> torch.Tensor:
    raise AssertionError("decoded again")


def test_equal_to_pillow_and_kept(files, tmp_path, monkeypatch):
    expected = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in files.paths])
    images = read_images(files)
    assert images.images.dtype == torch.uint8
    assert np.array_equal(images.images.numpy(), expected)
    assert torch.equal(images.labels, files.labels)
    assert len(entries(tmp_path)) == 1
    monkeypatch.setattr(image_cache, "_decode", broken)
    assert np.array_equal(read_images(files).images.numpy(), expected)


def test_a_changed_file_is_decoded_again(files, tmp_path):
    before = read_images(files).images.clone()
    Image.fromarray(np.zeros((6, 4, 3), dtype=np.uint8)).save(files.paths[7])
    after = read_images(files).images
    assert not after[7].any()
    kept = [k for k in range(COUNT) if k != 7]
    assert torch.equal(after[kept], before[kept])


@pytest.mark.parametrize("where", [20, -1])
def test_damage_is_noticed(files, tmp_path, where):
    before = read_images(files).images.clone()
    (entry,) = entries(tmp_path)
    content = bytearray(entry.read_bytes())
    content[where] ^= 4
    entry.write_bytes(content)
    assert torch.equal(read_images(files).images, before)
    entry.write_bytes(b"")
    assert torch.equal(read_images(files).images, before)


def test_small_sets_and_no_cache(files, tmp_path, monkeypatch):
    read_images(files.part(0, COUNT - 1))
    assert entries(tmp_path) == []
    monkeypatch.setenv(VARIABLE, "")
    assert cache_folder("images") is None
    read_images(files)
    assert entries(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_no_error(files, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    assert len(read_images(files)) == COUNT


@pytest.mark.slow  # torch waits for the other workers
def test_mixed_sizes_are_refused_from_a_worker_too(files):
    Image.fromarray(np.zeros((5, 4, 3), dtype=np.uint8)).save(files.paths[7])
    with pytest.raises(ModebridgeError, match=r"Expected images of 4 x 6, but .* is 4 x 5"):
        read_images(files)
