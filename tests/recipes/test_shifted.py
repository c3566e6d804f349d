"""Images that networks were not trained for: corruptions against scipy and closed forms, and other sets."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

from modebridge.data import load_digits, noisy_digits
from modebridge.errors import ModebridgeError
from modebridge.recipes import Recipe, RunData, ShiftedData, find_recipe, known_others, shifted
from modebridge.recipes.shifted import CORRUPTED, SEVERITIES, STRENGTHS, _fitted, corrupt, tables_of

CPU = torch.device("cpu")
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


def pictures(shape: tuple[int, ...], count: int = 8) -> torch.Tensor:
    """Images with structure at every scale: digits, or a coarse pattern and noise on it."""
    if shape == (1, 8, 8):
        images = noisy_digits(0.7).images
        return (images - images.min()) / (images.max() - images.min())
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, shape[0], 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=shape[1:], mode="bilinear")
    return (0.8 * smooth + 0.2 * torch.rand(count, *shape, generator=generator)).clamp(0, 1)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 64, 48), (1, 224, 224)])
@pytest.mark.parametrize("name", list(STRENGTHS))
def test_it_grows_with_severity_and_keeps_shape_type_and_range(name: str, shape: tuple[int, ...]) -> None:
    images, before = pictures(shape), torch.get_rng_state()
    apart = [0.0]
    for severity in SEVERITIES:
        result = corrupt(images, name, severity)
        assert (result.shape, result.dtype) == (images.shape, images.dtype)
        assert 0 <= float(result.min()) <= float(result.max()) <= 1
        assert torch.equal(result, corrupt(images, name, severity))
        apart.append(float((result - images).square().mean()))
    assert all(below < above for below, above in itertools.pairwise(apart))
    assert torch.equal(torch.get_rng_state(), before)


def test_corruptions_are_what_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    images, grey = pictures((3, 64, 64), 2).double(), torch.full((1, 3, 224, 224), 0.5)
    assert float(corrupt(grey, "noise", 2).std()) == pytest.approx(0.08, rel=0.01)
    assert not torch.equal(corrupt(grey, "noise", 2), corrupt(grey, "noise", 2, seed=1))
    impulses = corrupt(grey, "impulses", 5)
    assert [float((impulses == value).double().mean()) for value in (0, 1)] == pytest.approx([0.07, 0.07], rel=0.05)
    blurred = gaussian_filter(images.numpy(), sigma=(0, 0, 1.25, 1.25), mode="nearest", radius=(0, 0, 5, 5))
    np.testing.assert_allclose(corrupt(images, "blur", 4).numpy(), blurred, atol=1e-12)
    torch.testing.assert_close(corrupt(images, "brightness", 3), (images + 0.3).clamp(max=1))
    spread = [table.var(dim=(2, 3)) for table in (corrupt(images, "contrast", 3), images)]
    torch.testing.assert_close(spread[0], 0.2**2 * spread[1])
    halves = images.reshape(2, 3, 32, 2, 32, 2).mean(dim=(3, 5)).repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    monkeypatch.setitem(STRENGTHS, "pixelate", (0.5,))
    torch.testing.assert_close(corrupt(images, "pixelate", 1), halves)
    monkeypatch.undo()
    sides = [len(corrupt(pictures((1, 8, 8))[:1], "pixelate", k).unique()) ** 0.5 for k in SEVERITIES]
    assert sides == [7, 6, 5, 3, 2]


def test_all_test_images_are_corrupted_in_every_way() -> None:
    recipe = find_recipe("digits")
    recipe = replace(recipe, data=replace(recipe.data, test=300))  # two batches
    data = RunData(recipe)
    shifted = ShiftedData(recipe, data)
    test = data.splits.test.images
    low, high = shifted.span
    assert (low, high) == (float(test.min()), float(test.max())), "the digits' noise goes beyond black and white"
    assert torch.equal(shifted.numbers, torch.arange(len(test)))
    parts: dict[str, list[torch.Tensor]] = {}
    for name, images in shifted.batches(CORRUPTED, CPU):
        parts.setdefault(name, []).append(images)
    assert list(parts) == tables_of(CORRUPTED)
    brighter = torch.cat(parts["brightness-2"])
    torch.testing.assert_close(brighter, (test + 0.2 * (high - low)).clamp(max=high))


@pytest.mark.parametrize("name", ["splits", "loaders"])
def test_few_of_many_and_users_own_images(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = own(tmp_path, name)
    data = RunData(recipe)
    whole = ShiftedData(recipe, data)
    assert len(whole.images(CORRUPTED)) == 30
    monkeypatch.setattr(shifted, "LOGITS", 33)  # of 3 classes: 11 images
    few = ShiftedData(recipe, data)
    assert len(few.numbers) == 11
    assert few.numbers.tolist() != list(range(11))
    assert torch.equal(few.images(CORRUPTED), whole.images(CORRUPTED)[few.numbers])
    assert few.key(CORRUPTED) != whole.key(CORRUPTED)
    low, high = few.span
    # Other images are in [0, 1]; here they are brought to the values of these.
    black = tmp_path / "cats" / "deep"
    black.mkdir(parents=True)
    Image.new("L", (20, 16), 0).save(black / "a.png")
    Image.new("RGB", (9, 9), (255, 255, 255)).save(black / "b.jpg")
    images = few.images(f"folder:{tmp_path / 'cats'}")
    assert images.shape == (2, 3, 8, 8)
    assert images[0].unique().tolist() == pytest.approx([low])
    assert images[1].unique().tolist() == pytest.approx([high], abs=1e-5)
    mixed, clean = few.images("scrambled"), few.images(CORRUPTED)
    torch.testing.assert_close(few.images("inverted") + clean, torch.full_like(clean, low + high))
    assert torch.equal(mixed.flatten(2).sort().values, clean.flatten(2).sort().values)
    assert not torch.equal(mixed, clean)
    where = [(mixed[0, 0] == value).nonzero()[0].tolist() for value in clean[0, 0].flatten()]
    assert [mixed[0, 2, i, j].item() for i, j in where] == clean[0, 2].flatten().tolist(), "channels stay together"


def test_shapes_and_noise_are_fitted(tmp_path: Path) -> None:
    colours = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    grey = _fitted(colours, (1, 8, 8))
    torch.testing.assert_close(grey[:, 0], colours.mean(dim=1))
    assert torch.equal(_fitted(grey, (3, 8, 8))[:, 1], grey[:, 0])
    torch.testing.assert_close(_fitted(torch.full((1, 1, 16, 12), 0.4), (1, 8, 8)), torch.full((1, 1, 8, 8), 0.4))
    recipe = own(tmp_path, "splits")
    assert ShiftedData(recipe, RunData(recipe)).images("digits").shape == (839, 3, 8, 8), "a named set"
    (tmp_path / "black").mkdir()
    for k in range(200):
        Image.new("L", (8, 8), 0).save(tmp_path / "black" / f"{k}.png")
    recipe = find_recipe("digits")
    noise = ShiftedData(recipe, RunData(recipe)).images(f"folder:{tmp_path / 'black'}")
    assert float(noise.std()) == pytest.approx(0.7 * float(load_digits().images.std()), rel=0.02), "the digits' noise"


def test_names_of_other_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = find_recipe("digits")
    monkeypatch.chdir(tmp_path)
    assert known_others(["inverted", "folder:cats"], recipe) == ["inverted", f"folder:{tmp_path / 'cats'}"]
    assert known_others([], recipe) == ["scrambled", "inverted"]
    for names, message in [
        (["invert"], "but got 'invert'; did you mean inverted"),
        (["digits"], "another data set or folder:PATH, but got 'digits'"),
        (["folder:a/cats", "folder:b/cats"], "each set once"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            known_others(names, recipe)
    for name, message in [("folder:nowhere", "Expected images below"), ("cifar10", "Expected CIFAR-10 in")]:
        with pytest.raises(ModebridgeError, match=message):
            ShiftedData(recipe, RunData(recipe)).images(name)
    recipe = own(tmp_path, "texts")
    with pytest.raises(ModebridgeError, match="Expected images with 1 or 3 channels to corrupt, but the inputs"):
        ShiftedData(recipe, RunData(recipe))
