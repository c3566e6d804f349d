"""Batches: each image once an epoch, the same by seed and epoch, crops and flips at the places drawn."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modebridge.data import ImageSet, Loader, find_images
from modebridge.data.images import centre_crop, open_image
from modebridge.data.loaders import crop_and_flip, random_crop
from modebridge.errors import ModebridgeError
from tests.data.pictures import folder_of_classes, picture


def test_loader_covers_the_set_once_and_repeats_by_seed_and_epoch():
    data = ImageSet(torch.arange(10.0).view(10, 1, 1, 1), torch.zeros(10, dtype=torch.int64), 1)
    loader = Loader(data, 4, shuffle=True, seed=1)
    first, second = (torch.cat([x for x, _ in loader]).flatten().tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    loader.set_epoch(0)
    assert torch.cat([x for x, _ in loader]).flatten().tolist() == first
    other = Loader(data, 4, shuffle=True, seed=2)
    assert torch.cat([x for x, _ in other]).flatten().tolist() != first
    assert len(loader) == 3
    with pytest.raises(ModebridgeError, match="batch_size to be at least 1"):
        Loader(data, 0)


def test_crops_are_crops_and_flips_are_flips():
    images = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4).float() + 1
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    for down, across, mirrored in itertools.product(range(3), range(3), (False, True)):
        places = torch.tensor([1, down]), torch.tensor([1, across]), torch.tensor([False, mirrored])
        out = crop_and_flip(images, *places, pad=1)
        expected = padded[1, :, down : down + 4, across : across + 4].flip([-1] if mirrored else [])
        assert torch.equal(out[1], expected)
        assert torch.equal(out[0], images[0])


def test_augmentation_reaches_every_place_and_repeats_by_seed():
    image = torch.arange(16.0).view(1, 1, 4, 4) + 1
    data = ImageSet(image.expand(3000, 1, 4, 4), torch.zeros(3000, dtype=torch.int64), 1)
    loader = Loader(data, 3000, pad=1, flip=True, seed=4)
    ((one, _),) = loader
    loader.set_epoch(0)
    ((same, _),) = loader
    ((other, _),) = loader
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    kinds, counts = one.flatten(1).unique(dim=0, return_counts=True)
    assert len(kinds) == 18
    assert int(counts.min()) > 100


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_repeats_by_seed_and_epoch_whatever_the_workers(tmp_path: Path, workers: int) -> None:
    files = replace(find_images(folder_of_classes(tmp_path)), size=16)
    alone, stream = (Loader(files, 5, shuffle=True, seed=1, crop=True, workers=count) for count in (0, workers))
    first, second = list(stream), list(stream)
    assert [len(labels) for _, labels in first] == [5, 5, 2]
    assert not all(torch.equal(a, b) for (a, _), (b, _) in zip(first, second, strict=True))
    stream.set_epoch(0)
    for ours, again, theirs in zip(first, stream, alone, strict=True):
        for a, b, c in zip(ours, again, theirs, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a, c)
    labels = torch.cat([labels for _, labels in first])
    assert sorted(labels.tolist()) == files.labels.tolist()


def test_crops_keep_what_they_promise(tmp_path: Path) -> None:
    picture(tmp_path / "wide.png", (300, 20), 0)
    picture(tmp_path / "any.png", (90, 60), 1)
    for name in ("wide.png", "any.png"):
        image = open_image(str(tmp_path / name))
        for seed in range(20):
            assert random_crop(image, 24, random.Random(seed)).size == (24, 24)
        assert centre_crop(image, 16, 20).size == (16, 16)
    # 90 x 60 scaled to 30 x 20, the middle 16 x 16 of it.
    image = open_image(str(tmp_path / "any.png"))
    by_hand = image.resize((30, 20), Image.Resampling.BILINEAR).crop((7, 2, 23, 18))
    assert np.array_equal(np.asarray(centre_crop(image, 16, 20)), np.asarray(by_hand))
