"""Images as tensors: the digits, splits, batches, augmentation."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.datasets
import torch

from modebridge.data import ImageSet, Loader, cifar, crop_and_flip, load_digits, noisy_digits, read_cifar
from modebridge.data import digits as digits_module
from modebridge.errors import ModebridgeError
from tests.scenarios import blobs


def test_digits_are_those_of_scikit_learn():
    ours, theirs = load_digits(), sklearn.datasets.load_digits()
    assert ours.images.shape == (1797, 1, 8, 8)
    assert torch.equal(ours.images[:, 0] * 16, torch.tensor(theirs.images, dtype=torch.float32))
    assert torch.equal(ours.labels, torch.tensor(theirs.target))


def test_a_changed_file_is_noticed(monkeypatch):
    monkeypatch.setattr(digits_module, "SHA256", "0" * 64)
    with pytest.raises(ModebridgeError, match="checksum differs"):
        load_digits()


def test_noise_is_fixed_and_of_the_size_asked_for():
    clean, noisy = noisy_digits(0.0), noisy_digits(0.7)
    assert torch.equal(noisy.images, noisy_digits(0.7).images)
    assert torch.equal(clean.labels, noisy.labels)
    assert float((noisy.images - clean.images).std() / clean.images.std()) == pytest.approx(0.7, rel=0.01)
    assert noisy.labels[:500].bincount().min() > 30


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


def test_bytes_become_floats():
    data = ImageSet(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), 1)
    ((images, _),) = Loader(data, 8)
    assert torch.equal(images, torch.ones(1, 1, 2, 2))


def test_crops_are_crops_and_flips_are_flips():
    images = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4).float() + 1
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    for down in range(3):
        for across in range(3):
            for mirrored in (False, True):
                out = crop_and_flip(
                    images, torch.tensor([1, down]), torch.tensor([1, across]), torch.tensor([False, mirrored]), pad=1
                )
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


@pytest.mark.parametrize(("classes", "before"), [(10, 1), (100, 2)])
def test_cifar_in_its_binary_layout(tmp_path, monkeypatch, classes, before):
    rng = np.random.default_rng(0)
    folder = tmp_path / ("cifar-10-batches-bin" if classes == 10 else "cifar-100-binary")
    folder.mkdir()
    names = (
        [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
        if classes == 10
        else ["train.bin", "test.bin"]
    )
    records = {name: rng.integers(0, 10, (4, before + 3072), dtype=np.uint8) for name in names}
    for name, record in records.items():
        record.tofile(folder / name)
    with pytest.raises(ModebridgeError, match=r"to hold [15]0,000 images, but got 4"):
        read_cifar(tmp_path, classes)
    monkeypatch.setattr(cifar, "_RECORDS", dict.fromkeys((10, 100), (4, 4)))
    train, test = read_cifar(tmp_path, classes)
    assert len(train) == 4 * (len(names) - 1)
    assert train.images.dtype == torch.uint8
    last = records[names[-1]]
    assert test.labels.tolist() == last[:, before - 1].tolist()
    # The second green row of the third image: its plane comes after 1024 red bytes, 32 bytes a row.
    assert test.images[2, 1, 1].tolist() == last[2, before + 1024 + 32 : before + 1024 + 64].tolist()
    (folder / names[0]).write_bytes(b"123")
    with pytest.raises(ModebridgeError, match="damaged"):
        read_cifar(tmp_path, classes)
    (folder / names[0]).unlink()
    with pytest.raises(ModebridgeError, match=r"to exist, but it does not"):
        read_cifar(tmp_path, classes)
    with pytest.raises(ModebridgeError, match="10 or 100"):
        read_cifar(tmp_path, 20)


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
    with pytest.raises(ModebridgeError, match="batch_size to be at least 1"):
        Loader(blobs(), 0)
