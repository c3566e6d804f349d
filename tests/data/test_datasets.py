"""The paper's data sets from small folders of the real layouts, and streams of image files."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modebridge.data import (
    ImageFiles,
    ImageSet,
    Stream,
    cifar,
    find_images,
    load_set,
    read_cifar,
    read_images,
    tiny_imagenet,
)
from modebridge.data.image_files import open_image
from modebridge.data.stream import centre_crop, random_crop
from modebridge.errors import ModebridgeError
from modebridge.training import fit_mode
from tests.scenarios import quick


def picture(path: Path, size: tuple[int, int], seed: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def folder_of_classes(root: Path, classes: int = 3, each: int = 4, ending: str = "png") -> Path:
    for k in range(classes):
        for n in range(each):
            picture(root / f"n{k}" / f"{n}.{ending}", (40 + 8 * k, 36 + 4 * n), seed=10 * k + n)
    return root


def as_official(monkeypatch: pytest.MonkeyPatch, folder: Path, records: int) -> None:
    """Take the small files in a folder for the official ones."""
    sums = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    monkeypatch.setattr(cifar, "_MD5", {**cifar._MD5, **sums})
    monkeypatch.setattr(cifar, "_RECORDS", dict.fromkeys((10, 100), (records, records)))


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_in_its_python_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / ("cifar-10-batches-py" if classes == 10 else "cifar-100-python")
    folder.mkdir()
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"] if classes == 10 else ["train", "test"]
    kept = {}
    for name in names:
        kept[name] = {
            b"data": rng.integers(0, 256, (6, 3072), dtype=np.uint8),
            b"labels" if classes == 10 else b"fine_labels": rng.integers(0, classes, 6).tolist(),
            b"filenames": [b"a.png"] * 6,
        }
        # Protocol 2 is what the official files have.
        (folder / name).write_bytes(pickle.dumps(kept[name], protocol=2))
    with pytest.raises(ModebridgeError, match="its checksum differs"):
        read_cifar(tmp_path, classes)
    as_official(monkeypatch, folder, 6)
    train, test = read_cifar(tmp_path, classes)
    assert len(train) == 6 * (len(names) - 1)
    assert test.images.flatten(1).tolist() == kept[names[-1]][b"data"].tolist()
    assert test.labels.tolist() == kept[names[-1]][b"labels" if classes == 10 else b"fine_labels"]
    splits = load_set(f"cifar{classes}", tmp_path)
    count = len(train) * 9 // 10
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (count, len(train) - count, 6)
    assert torch.equal(splits.valid.images, train.images[count:])


class Harmful:
    def __reduce__(self) -> object:
        return os.mkdir, (str(Harmful.place),)

    place = Path()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps({b"data": 1}), pickle.dumps([1])])
def test_damaged_python_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    for name in ["train", "test"]:
        (tmp_path / name).write_bytes(content)
    as_official(monkeypatch, tmp_path, 6)
    with pytest.raises(ModebridgeError, match="to be a batch of CIFAR-100"):
        read_cifar(tmp_path, 100)


def test_a_pickle_that_runs_code_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Harmful.place = tmp_path / "harm"
    for name in ["train", "test"]:
        (tmp_path / name).write_bytes(pickle.dumps({b"data": Harmful(), b"fine_labels": []}))
    as_official(monkeypatch, tmp_path, 6)
    with pytest.raises(ModebridgeError, match="mkdir, which is not plain data"):
        read_cifar(tmp_path, 100)
    assert not Harmful.place.exists()


def test_tiny_imagenet_is_shuffled_and_split(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    for k in range(4):
        for n in range(10):
            picture(
                root / "train" / f"n0{k}" / "images" / f"n0{k}_{n}.JPEG", (64, 64), seed=k, mode="L" if n else "RGB"
            )
    notes = []
    for n in range(5):
        picture(root / "val" / "images" / f"val_{n}.JPEG", (64, 64), seed=n)
        notes.append(f"val_{n}.JPEG\tn0{3 - n % 4}\t0\t0\t1\t1")
    (root / "val" / "val_annotations.txt").write_text("\n".join(notes) + "\n")
    # The file lists classes in no order; labels follow the sorted names.
    (root / "wnids.txt").write_text("n02\nn00\nn03\nn01\n")
    train, test = tiny_imagenet(tmp_path)
    assert train.labels.tolist() == [k for k in range(4) for _ in range(10)]
    assert test.labels.tolist() == [3, 2, 1, 0, 3]
    splits = load_set("tin200", root)
    assert isinstance(splits.train, ImageSet)
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (36, 4, 5)
    assert splits.train.images.shape == (36, 3, 64, 64)
    assert len(set(splits.train.labels[:10].tolist())) > 1, "still in the order of classes"
    assert torch.equal(splits.train.images, load_set("tin200", root).train.images)
    with pytest.raises(ModebridgeError, match=r"no 'wnids.txt'"):
        load_set("tin200", tmp_path / "train")


def test_imagenet_folders_are_split_as_the_authors_do(tmp_path: Path) -> None:
    folder_of_classes(tmp_path / "train", each=10)
    folder_of_classes(tmp_path / "val", each=2)
    splits = load_set("in1k", tmp_path)
    order = list(range(30))
    random.Random(42).shuffle(order)
    every = find_images(tmp_path / "train")
    assert splits.train.paths + splits.valid.paths == tuple(every.paths[k] for k in order)
    assert (len(splits.valid), len(splits.test)) == (1, 6)
    folder_of_classes(tmp_path / "val", classes=4, each=2)
    with pytest.raises(ModebridgeError, match="got 4 and 3"):
        load_set("in1k", tmp_path)


def test_mistakes_with_folders(tmp_path: Path) -> None:
    with pytest.raises(ModebridgeError, match="did you mean cifar10"):
        load_set("cifar1", tmp_path)
    with pytest.raises(ModebridgeError, match=r"neither 'test.bin' nor 'test'"):
        load_set("cifar100", tmp_path)
    with pytest.raises(ModebridgeError, match="but it does not exist"):
        find_images(tmp_path / "none")
    with pytest.raises(ModebridgeError, match="it has none"):
        find_images(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModebridgeError, match="images of class 'empty'"):
        find_images(tmp_path)
    (tmp_path / "empty" / "bad.png").write_bytes(b"no image")
    with pytest.raises(ModebridgeError, match=r"bad.png' to be an image"):
        read_images(find_images(tmp_path))
    mixed = find_images(folder_of_classes(tmp_path / "mixed"))
    with pytest.raises(ModebridgeError, match="stream data sets of mixed sizes"):
        read_images(mixed)
    with pytest.raises(ModebridgeError, match="resize to be at least size 32"):
        Stream(mixed, 2, size=32, resize=16)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_repeats_by_seed_and_epoch_whatever_the_workers(tmp_path: Path, workers: int) -> None:
    files = find_images(folder_of_classes(tmp_path))
    alone = Stream(files, 5, train=True, shuffle=True, seed=1, size=16, resize=16, workers=0)
    stream = Stream(files, 5, train=True, shuffle=True, seed=1, size=16, resize=16, workers=workers)
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


@pytest.mark.slow
def test_a_network_learns_from_a_stream(tmp_path: Path) -> None:
    files = find_images(folder_of_classes(tmp_path))
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 3))
    seen = []
    fit_mode(
        net,
        Stream(files, 4, train=True, shuffle=True, size=8, resize=8, workers=0),
        config=quick(3),
        report=lambda epoch: seen.append(epoch),
    )
    assert [epoch.images for epoch in seen] == [12] * 3
    assert seen[-1].losses["mode"] < seen[0].losses["mode"]


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


def test_files_know_themselves(tmp_path: Path) -> None:
    here, there = (find_images(folder_of_classes(tmp_path / name)) for name in ("here", "there"))
    assert here.fingerprint() == there.fingerprint() != here.shuffled(1).fingerprint()
    with pytest.raises(ModebridgeError, match="1 for 2"):
        ImageFiles(("a", "b"), torch.zeros(1), 2)
    with pytest.raises(ModebridgeError, match="to have images"):
        here.part(2, 2)
