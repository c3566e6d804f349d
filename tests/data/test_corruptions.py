"""Corruptions against scipy, Pillow and closed forms; determinism, ranges, and what is refused."""

from __future__ import annotations

import io
import itertools
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor

from modebridge.data import CORRUPTIONS, SEVERITIES, corrupt, noisy_digits
from modebridge.data.corruptions import parameter
from modebridge.errors import ModebridgeError

SHAPES = [(1, 8, 8), (3, 32, 32), (3, 64, 48), (1, 224, 224)]


def pictures(shape: tuple[int, ...], count: int = 2) -> Tensor:
    """Images with structure at every scale, floats in [0, 1]: digits, or a coarse pattern and noise on it."""
    if shape == (1, 8, 8):
        images = noisy_digits(0.7).images
        return ((images - images.min()) / (images.max() - images.min()))[:count]
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, shape[0], 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=shape[1:], mode="bilinear")
    return (0.8 * smooth + 0.2 * torch.rand(count, *shape, generator=generator)).clamp(0, 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", list(CORRUPTIONS))
def test_it_grows_with_severity_and_keeps_shape_type_and_range(name: str, shape: tuple[int, ...]) -> None:
    images = pictures(shape, 64 if shape[1] == 8 else 2)
    apart = []
    for severity in SEVERITIES:
        result = corrupt(images, name, severity)
        assert result.shape == images.shape
        assert result.dtype == images.dtype
        assert 0 <= float(result.min()) <= float(result.max()) <= 1
        apart.append(float((result - images).square().mean()))
        as_bytes = corrupt((images * 255).round().to(torch.uint8), name, severity)
        assert as_bytes.dtype == torch.uint8
        assert (as_bytes.double() / 255 - result).abs().mean() < 0.02, "bytes and floats are the same corruption"
    assert apart[0] > 0
    assert all(below < above for below, above in itertools.pairwise(apart))


@pytest.mark.parametrize("name", list(CORRUPTIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_it_is_the_same_every_time_and_in_any_batch(name: str, dtype: torch.dtype) -> None:
    images = pictures((3, 32, 32), 5)
    images = (images * 255).round().to(dtype) if dtype == torch.uint8 else images
    numbers = [7, 3, 11, 0, 5]
    before = torch.get_rng_state()
    whole = corrupt(images, name, 3, numbers=numbers, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(whole, corrupt(images, name, 3, numbers=numbers, seed=4))
    for k, number in enumerate(numbers):
        assert torch.equal(corrupt(images[k : k + 1], name, 3, numbers=[number], seed=4)[0], whole[k])
    turned = corrupt(images.flip(0), name, 3, numbers=numbers[::-1], seed=4)
    assert torch.equal(turned.flip(0), whole)
    if name == "noise":
        assert not torch.equal(whole, corrupt(images, name, 3, numbers=numbers, seed=5))
        assert not torch.equal(whole, corrupt(images, name, 3, numbers=[8, *numbers[1:]], seed=4))


def test_noise_has_the_standard_deviation_of_its_severity() -> None:
    grey = torch.full((1, 3, 224, 224), 0.5)
    for severity, sigma in ((1, 0.08), (2, 0.12)):
        noise = corrupt(grey, "noise", severity) - grey
        assert float(noise.std()) == pytest.approx(sigma, rel=0.01)
    one, two = (corrupt(grey, "noise", k) - grey for k in (1, 2))
    inside = two.abs() < 0.5  # beyond is clipped
    torch.testing.assert_close(two[inside] / 0.12, one[inside] / 0.08, atol=1e-5, rtol=0)
    # A span of three units, three times the noise.
    wide = corrupt(torch.zeros(1, 1, 224, 224), "noise", 1, span=(-1.5, 1.5))
    assert float(wide.std()) == pytest.approx(0.24, rel=0.01)


def test_blur_is_scipys() -> None:
    images = pictures((3, 32, 40)).double()
    wanted = gaussian_filter(images.numpy(), sigma=(0, 0, 0.8, 0.8), mode="nearest", truncate=4)
    np.testing.assert_allclose(corrupt(images, "blur", 4).numpy(), wanted, atol=1e-12)
    constant = torch.full((1, 1, 8, 8), 0.3, dtype=torch.float64)
    torch.testing.assert_close(corrupt(constant, "blur", 5), constant, atol=1e-15, rtol=0)


def test_contrast_scales_the_variance_of_each_channel() -> None:
    images = pictures((3, 32, 32)).double()
    for severity, factor in zip(SEVERITIES, (0.75, 0.5, 0.4, 0.3, 0.15), strict=True):
        result = corrupt(images, "contrast", severity)
        torch.testing.assert_close(result.var(dim=(2, 3)), factor**2 * images.var(dim=(2, 3)), atol=1e-14, rtol=1e-12)
        torch.testing.assert_close(result.mean(dim=(2, 3)), images.mean(dim=(2, 3)), atol=1e-14, rtol=0)


def test_pixelate_is_block_means_and_pillows_box() -> None:
    images = pictures((1, 64, 64)).double()
    blocks = images.reshape(2, 1, 32, 2, 32, 2).mean(dim=(3, 5))
    halved = blocks.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    torch.testing.assert_close(corrupt(images, "pixelate", 5), halved, atol=1e-14, rtol=0)
    for severity, share in ((1, 0.9), (3, 0.7)):
        small = (int(64 * share), int(64 * share))
        picture = Image.fromarray(images[0, 0].float().numpy())
        back = picture.resize(small, Image.Resampling.BOX).resize((64, 64), Image.Resampling.BOX)
        np.testing.assert_allclose(corrupt(images, "pixelate", severity)[0, 0], np.array(back), atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_pillows_own(channels: int) -> None:
    pixels = (pictures((channels, 32, 32)) * 255).round().to(torch.uint8)
    result = corrupt(pixels, "jpeg", 5)
    for image, back in zip(pixels, result, strict=True):
        picture = Image.fromarray(image[0].numpy() if channels == 1 else image.permute(1, 2, 0).contiguous().numpy())
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=40)
        wanted = torch.from_numpy(np.array(Image.open(file))).reshape(32, 32, channels).permute(2, 0, 1)
        assert torch.equal(back, wanted)
    floats = corrupt(pixels.float() / 255, "jpeg", 5)
    torch.testing.assert_close(floats, result.float() / 255)
    spread = corrupt(pixels.float() / 255 * 4 - 2, "jpeg", 5, span=(-2.0, 2.0))
    torch.testing.assert_close(spread, floats * 4 - 2, atol=1e-5, rtol=0)


def test_parameters_follow_the_size() -> None:
    assert [parameter("noise", 3, side) for side in (8, 32, 63, 64, 223, 224, 500)] == [
        *(0.08, 0.08, 0.08),
        *(0.12, 0.12),
        *(0.18, 0.18),
    ]
    assert parameter("blur", 3, 48) == pytest.approx(0.7 * 1.5)
    assert parameter("blur", 1, 8) == 0.4
    assert [round(8 * parameter("pixelate", severity, 8), 9) for severity in SEVERITIES] == [7, 6, 5, 4, 3]
    assert [int(16 * parameter("pixelate", severity, 16)) for severity in SEVERITIES] == [15, 14, 13, 12, 10]
    assert corrupt(pictures((1, 2, 2)), "pixelate", 5).unique(dim=2).shape == (2, 1, 1, 2)


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures((1, 8, 8))
    for severity in (0, 6, -1, True, 2.5):
        with pytest.raises(ModebridgeError, match=r"Expected severity to be 1, 2, 3, 4 or 5"):
            corrupt(images, "noise", severity)  # type: ignore[arg-type]
    with pytest.raises(ModebridgeError, match="known corruption, but got 'fog'"):
        corrupt(images, "fog", 1)
    with pytest.raises(ModebridgeError, match=r"1 or 3 channels, but got the shape \(2, 8, 8\)"):
        corrupt(images[:, 0], "noise", 1)
    with pytest.raises(ModebridgeError, match=r"uint8 or floats, but got torch\.int64"):
        corrupt(images.long(), "noise", 1)
    with pytest.raises(ModebridgeError, match="one number per image, but got 1 for 2"):
        corrupt(images, "noise", 1, numbers=[0])
    assert corrupt(images[:0], "jpeg", 1).shape == (0, 1, 8, 8)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModebridgeError, match="Expected Pillow for the corruption jpeg"):
        corrupt(images, "jpeg", 1)
