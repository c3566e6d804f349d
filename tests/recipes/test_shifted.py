"""Images that networks were not trained for: which, in what shape and range, from where, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from modebridge.data import CORRUPTIONS, SEVERITIES, corrupt, fitted, letters, load_digits, read_svhn, scrambled
from modebridge.errors import ModebridgeError
from modebridge.recipes import Recipe, RunData, ShiftedData, find_recipe, known_others, shifted
from modebridge.recipes.shifted import CORRUPTED

FUNCTION = """
import torch

def splits():
    images = torch.rand(30, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return [(images * 2 - 0.5, torch.arange(30) % 3)] * 3

def loaders():
    return [torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*part), 7) for part in splits()]

def texts():
    return [(torch.rand(30, 5), torch.arange(30) % 3)] * 3
"""


def own(folder: Path, name: str) -> Recipe:
    file = folder / "own.py"
    file.write_text(FUNCTION)
    recipe = find_recipe("digits")
    return replace(recipe, data=replace(recipe.data, name=f"{file}:{name}", train=0, valid=0, noise=0.0))


def test_all_test_images_are_corrupted_in_every_way() -> None:
    recipe = find_recipe("digits")
    recipe = replace(recipe, data=replace(recipe.data, test=300))  # two batches
    data = RunData(recipe)
    shifted = ShiftedData(recipe, data)
    test = data.splits.test.images
    assert shifted.span == (float(test.min()), float(test.max())), "the digits' noise goes beyond black and white"
    assert torch.equal(shifted.numbers, torch.arange(len(test)))
    parts: dict[str, list[torch.Tensor]] = {}
    for name, images in shifted.batches(CORRUPTED):
        parts.setdefault(name, []).append(images)
    assert list(parts) == [f"{name}-{severity}" for name in CORRUPTIONS for severity in SEVERITIES]
    assert sum(map(len, parts.values())) == shifted.count(CORRUPTED)
    for name in ("noise", "jpeg"):
        whole = corrupt(test, name, 4, span=shifted.span)
        torch.testing.assert_close(torch.cat(parts[f"{name}-4"]), whole, atol=0, rtol=0)


@pytest.mark.parametrize("name", ["splits", "loaders"])
def test_few_of_many_and_users_own_images(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = own(tmp_path, name)
    data = RunData(recipe)
    whole = ShiftedData(recipe, data)
    noisy = torch.cat([images for table, images in whole.batches(CORRUPTED) if table == "noise-2"])
    monkeypatch.setattr(shifted, "LOGITS", 33)  # of 3 classes: 11 images
    few = ShiftedData(recipe, data)
    assert len(few.numbers) == 11
    assert (few.numbers.tolist() == list(range(11))) == (name == "loaders"), "of a loader the first"
    part = torch.cat([images for table, images in few.batches(CORRUPTED) if table == "noise-2"])
    assert torch.equal(part, noisy[few.numbers]), "an image has its noise wherever it is asked for"
    assert few.key(CORRUPTED) != whole.key(CORRUPTED)
    low, high = few.span
    assert (low < -0.4) & (high > 1.4)
    # Other images are in [0, 1]; here they are brought to the values of these.
    black = tmp_path / "cats" / "deep"
    black.mkdir(parents=True)
    Image.new("L", (20, 16), 0).save(black / "a.png")
    Image.new("RGB", (9, 9), (255, 255, 255)).save(black / "b.jpg")
    images = few.other(f"folder:{tmp_path / 'cats'}")
    assert images.shape == (2, 3, 8, 8)
    assert images[0].unique().tolist() == pytest.approx([low])
    assert images[1].unique().tolist() == pytest.approx([high], abs=1e-5)
    assert few.other("scrambled").shape == (11, 3, 8, 8)


def test_scrambled_images_have_the_same_pixels() -> None:
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    mixed = scrambled(images, [4, 9, 2])
    assert torch.equal(mixed.flatten(2).sort().values, images.flatten(2).sort().values)
    assert not torch.equal(mixed, images)
    where = [(mixed[0, 0] == value).nonzero()[0].tolist() for value in images[0, 0].flatten()]
    assert [mixed[0, 2, i, j].item() for i, j in where] == images[0, 2].flatten().tolist(), "channels stay together"
    assert torch.equal(scrambled(images[1:2], [9])[0], mixed[1])


def test_letters_are_drawn_alike_every_time() -> None:
    images = letters(200)
    assert images.shape == (200, 1, 8, 8)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    assert torch.equal(images[:1], letters(200)[:1])
    assert len(images.flatten(1).unique(dim=0)) > 190
    recipe = find_recipe("digits")
    others = ShiftedData(recipe, RunData(recipe)).other("letters")
    noise = others - letters(len(others))
    assert float(noise.std()) == pytest.approx(0.7 * float(load_digits().images.std()), rel=0.02), "the digits' noise"


def test_shapes_are_fitted() -> None:
    colours = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    grey = fitted(colours, (1, 8, 8))
    wanted = 0.299 * colours[:, 0] + 0.587 * colours[:, 1] + 0.114 * colours[:, 2]
    torch.testing.assert_close(grey[:, 0], wanted)
    assert torch.equal(fitted(grey, (3, 8, 8))[:, 1], grey[:, 0])
    torch.testing.assert_close(fitted(torch.full((1, 1, 16, 12), 0.4), (1, 8, 8)), torch.full((1, 1, 8, 8), 0.4))
    with pytest.raises(ModebridgeError, match="1 or 3 channels"):
        fitted(torch.zeros(1, 2, 8, 8), (1, 8, 8))


def test_svhn_is_read_from_its_own_file(tmp_path: Path) -> None:
    with pytest.raises(ModebridgeError, match=r"no 'test_32x32\.mat'; pass its folder"):
        read_svhn(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": np.ones((4, 1))})
    images = read_svhn(tmp_path)
    assert images.dtype == torch.uint8
    assert np.array_equal(images[3].permute(1, 2, 0).numpy(), pixels[..., 3])
    recipe = find_recipe("digits")
    name = known_others([f"svhn={tmp_path}"], recipe)[0]
    assert ShiftedData(recipe, RunData(recipe)).other(name).shape == (4, 1, 8, 8)
    savemat(tmp_path / "test_32x32.mat", {"X": pixels[..., 0]})
    with pytest.raises(ModebridgeError, match=r"to hold images of \(32, 32, 3\)"):
        read_svhn(tmp_path)
    (tmp_path / "test_32x32.mat").write_bytes(b"no such format" * 20)
    with pytest.raises(ModebridgeError, match="to be SVHN's"):
        read_svhn(tmp_path)


def test_names_of_other_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = find_recipe("digits")
    monkeypatch.chdir(tmp_path)
    names = known_others(["letters", "cifar10=sets", "folder:cats", "letters"], recipe)
    assert names == ["letters", f"cifar10={tmp_path / 'sets'}", f"folder:{tmp_path / 'cats'}"]
    assert known_others([], recipe) == ["letters", "scrambled"]
    with pytest.raises(ModebridgeError, match=r"but got 'leters'; did you mean letters"):
        known_others(["leters"], recipe)
    with pytest.raises(ModebridgeError, match="a set other than the run's own"):
        known_others(["digits"], recipe)
    shifted = ShiftedData(recipe, RunData(recipe))
    with pytest.raises(ModebridgeError, match="Expected images below"):
        shifted.other("folder:nowhere")
    with pytest.raises(ModebridgeError, match="Expected CIFAR-10 in"):
        shifted.other(names[1])


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    recipe = own(tmp_path, "texts")
    shifted = ShiftedData(recipe, RunData(recipe))
    for look in (lambda: shifted.other("scrambled"), lambda: shifted.key(CORRUPTED)):
        with pytest.raises(ModebridgeError, match="Expected images with 1 or 3 channels to corrupt, but the inputs"):
            look()
