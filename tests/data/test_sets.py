"""The digits, and the paper's data sets from small folders of the real layouts."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch

from modebridge.data import ImageSet, find_images, load_digits, load_set, noisy_digits, read_cifar, sets
from modebridge.errors import ModebridgeError
from tests.data.pictures import folder_of_classes, picture
from tests.files.test_checkpoints_refused import Trap


def test_digits_are_those_of_scikit_learn():
    ours, theirs = load_digits(), sklearn.datasets.load_digits()
    assert ours.images.shape == (1797, 1, 8, 8)
    assert torch.equal(ours.images[:, 0] * 16, torch.tensor(theirs.images, dtype=torch.float32))
    assert torch.equal(ours.labels, torch.tensor(theirs.target))


def test_noise_is_fixed_and_of_the_size_asked_for():
    clean, noisy = noisy_digits(0.0), noisy_digits(0.7)
    assert torch.equal(noisy.images, noisy_digits(0.7).images)
    assert torch.equal(clean.labels, noisy.labels)
    assert float((noisy.images - clean.images).std() / clean.images.std()) == pytest.approx(0.7, rel=0.01)
    assert noisy.labels[:500].bincount().min() > 30


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_in_both_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int, binary: bool) -> None:
    draws = np.random.default_rng(0)
    folder = tmp_path / sets._CIFAR[classes][0][0 if binary else 1]
    folder.mkdir()
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"] if classes == 10 else ["train", "test"]
    files = [folder / f"{name}{'.bin' if binary else ''}" for name in names]
    for file in files:
        pixels = draws.integers(0, 256, (6, 3072), dtype=np.uint8)
        labels = draws.integers(0, classes, 6, dtype=np.uint8)
        if binary:  # coarse labels first, then the fine ones
            np.column_stack([labels, pixels] if classes == 10 else [labels // 5, labels, pixels]).tofile(file)
        else:  # protocol 2 is what the official files have
            batch = {b"data": pixels, b"labels" if classes == 10 else b"fine_labels": labels.tolist(), b"names": [b"a"]}
            file.write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(ModebridgeError, match=r"50,000 images in .*, but got"):
        read_cifar(tmp_path, classes)
    monkeypatch.setattr(sets, "_COUNTS", (6 * (len(names) - 1), 6))
    train, test = read_cifar(tmp_path, classes)
    assert train.images.dtype == torch.uint8
    assert len(train) == 6 * (len(names) - 1)
    assert test.labels.tolist() == labels.tolist()
    # The second green row of the third image: its plane comes after 1024 red bytes, 32 bytes a row.
    assert test.images[2, 1, 1].tolist() == pixels[2, 1024 + 32 : 1024 + 64].tolist()
    splits, count = load_set(f"cifar{classes}", tmp_path), len(train) * 9 // 10
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (count, len(train) - count, 6)
    assert torch.equal(splits.valid.images, train.images[count:])
    files[0].write_bytes(files[0].read_bytes()[:-5])
    with pytest.raises(ModebridgeError, match=r"to hold the official files of CIFAR-.*; download them again"):
        read_cifar(tmp_path, classes)
    files[0].unlink()
    with pytest.raises(ModebridgeError, match=r"the official files of CIFAR-.*, but got .*No such file"):
        read_cifar(tmp_path, classes)


def test_a_pickle_that_runs_code_does_not(tmp_path: Path) -> None:
    for name in ["train", "test"]:
        (tmp_path / name).write_bytes(pickle.dumps({b"data": Trap(tmp_path / "harm"), b"fine_labels": []}))
    with pytest.raises(ModebridgeError, match="mkdir, which is not plain data"):
        read_cifar(tmp_path, 100)
    assert not (tmp_path / "harm").exists()


def test_tiny_imagenet_is_shuffled_and_split(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    for k in range(4):
        for n in range(10):
            image = root / "train" / f"n0{k}" / "images" / f"n0{k}_{n}.JPEG"
            picture(image, (64, 64), seed=k, mode="L" if n else "RGB")
    notes = []
    for n in range(5):
        picture(root / "val" / "images" / f"val_{n}.JPEG", (64, 64), seed=n)
        notes.append(f"val_{n}.JPEG\tn0{3 - n % 4}\t0\t0\t1\t1")
    (root / "val" / "val_annotations.txt").write_text("\n".join(notes) + "\n")
    # The file lists classes in no order; labels follow the sorted names.
    (root / "wnids.txt").write_text("n02\nn00\nn03\nn01\n")
    train, test = sets.tiny_imagenet(tmp_path)
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
    folder_of_classes(tmp_path / "train", classes=4, each=2)
    with pytest.raises(ModebridgeError, match=r"images below '.*val/n3'"):
        load_set("in1k", tmp_path)


def test_mistakes_with_names(tmp_path: Path) -> None:
    with pytest.raises(ModebridgeError, match="did you mean cifar10"):
        load_set("cifar1", tmp_path)
    with pytest.raises(ModebridgeError, match=r"neither 'test.bin' nor 'test'"):
        load_set("cifar100", tmp_path)
    with pytest.raises(ModebridgeError, match="10 or 100"):
        read_cifar(tmp_path, 20)
