"""Images in memory and as files, decoded like Pillow does; and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modebridge.data import ImageFiles, ImageSet, find_images, read_images
from modebridge.errors import ModebridgeError
from tests.data.pictures import folder_of_classes


def test_bad_sets():
    for images, labels, message in (
        (torch.zeros(3, 1, 2, 2), [0, 1], "2 for 3"),
        (torch.zeros(0, 1, 2, 2), [], "to have images, but got none"),
        (torch.full((2, 1, 2, 2), float("nan")), [0, 1], "NaN or Inf"),
        (torch.zeros(2, 1, 2, 2), [0, 2], r"in \[0, 2\), but got 0 to 2"),
    ):
        with pytest.raises(ModebridgeError, match=message):
            ImageSet(images, torch.tensor(labels), 2)


def test_files_know_themselves(tmp_path: Path) -> None:
    here, there = (find_images(folder_of_classes(tmp_path / name)) for name in ("here", "there"))
    assert here.fingerprint() == there.fingerprint() != here.shuffled(1).fingerprint()
    assert replace(here, size=8).fingerprint() != here.fingerprint()
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
        read_images(find_images(tmp_path), 8)


@pytest.mark.parametrize("count", [12, 1001])  # in this process, or by workers
def test_images_in_memory_are_pillows(tmp_path: Path, count: int) -> None:
    before, draws = torch.get_rng_state(), np.random.default_rng(0)
    (tmp_path / "only").mkdir()
    for number in range(count):
        pixels = draws.integers(256, size=(6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "only" / f"{number:04}.png")
    files = find_images(tmp_path)
    expected = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in files.paths])
    decoded = read_images(files, 6)
    assert decoded.images.dtype == torch.uint8
    assert np.array_equal(decoded.images.numpy(), expected)
    assert torch.equal(decoded.labels, files.labels)
    assert torch.equal(torch.get_rng_state(), before)
    Image.fromarray(np.full((12, 30, 3), 7, dtype=np.uint8)).save(files.paths[3])
    assert read_images(files, 6).images[3].unique().tolist() == [7], "of another shape: scaled and cropped"
