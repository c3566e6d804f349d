"""Pixels from what people send, and a sentence for what is no image."""

from __future__ import annotations

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from modebridge import ModebridgeError
from modebridge.deploy.inputs import TooManyPixelsError, from_bytes, from_lists, from_path

COLOR = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_color_gray_and_other_sizes():
    found = from_bytes(png(COLOR), (3, 4, 6))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, COLOR.transpose(2, 0, 1) / 255.0, rtol=1e-6)
    gray = COLOR[..., 0]
    np.testing.assert_allclose(from_bytes(png(gray), (3, 4, 6)), np.stack([gray / 255.0] * 3), rtol=1e-6)
    luma = COLOR @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(from_bytes(png(COLOR), (1, 4, 6))[0], luma / 255.0, atol=1.01 / 255)
    flat = np.full((50, 20, 3), 51, dtype=np.uint8)
    np.testing.assert_allclose(from_bytes(png(flat), (3, 8, 8)), np.full((3, 8, 8), 0.2), rtol=1e-6)


def test_what_is_no_image_is_a_sentence():
    for data in (b"", b"not an image", png(COLOR)[:40], png(COLOR)[:-30]):
        with pytest.raises(ModebridgeError, match=f"Expected an image file, but got {len(data)} bytes"):
            from_bytes(data, (3, 4, 6))
    with pytest.raises(ModebridgeError, match="1 or 3 input channels"):
        from_bytes(png(COLOR), (4, 4, 6))
    deep = io.BytesIO()
    Image.fromarray(np.array([[0, 20000], [40000, 65535]], np.uint16)).save(deep, "PNG")
    with pytest.raises(ModebridgeError, match="8 bits per channel, but got mode 'I;16'"):
        from_bytes(deep.getvalue(), (1, 2, 2))


def test_more_pixels_than_fit_are_not_unpacked(tmp_path):
    assert from_bytes(png(COLOR), (3, 4, 6), max_megapixels=24e-6).shape == (3, 4, 6)
    with pytest.raises(TooManyPixelsError, match=r"at most 2\.3e-05 megapixels, but got 6 x 4 pixels"):
        from_bytes(png(COLOR), (3, 4, 6), max_megapixels=23e-6)
    file = tmp_path / "large.png"
    file.write_bytes(png(np.zeros((5001, 5000), np.uint8)))
    with pytest.raises(TooManyPixelsError, match="at most 25 megapixels, but got 5000 x 5001 pixels"):
        from_path(file, (1, 4, 6))


def test_pixels_that_hide_inside_are_not_unpacked():
    # An icon of 8 x 8 pixels, by its own account, whose picture is larger: Pillow unpacks it to have a look.
    inside = png(np.zeros((300, 300, 3), np.uint8))
    icon = struct.pack("<HHHBBBBHHII", 0, 1, 1, 8, 8, 0, 0, 1, 24, len(inside), 22) + inside
    with pytest.raises(ModebridgeError, match="Expected an image file"):
        from_bytes(icon, (1, 8, 8))
    # A TIFF of 8 x 8 pixels in the corner of a large tile.
    side, tile = 300, zlib.compress(bytes(300 * 300))
    tags = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 8, 325: len(tile)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    tiff = b"II*\0" + struct.pack("<I", 8 + len(tile)) + tile + struct.pack("<H", len(tags)) + entries + bytes(4)
    assert from_bytes(tiff, (1, 8, 8)).shape == (1, 8, 8)
    with pytest.raises(TooManyPixelsError, match="but got 300 x 300 pixels"):
        from_bytes(tiff, (1, 8, 8), max_megapixels=0.08)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_is_read_as_pillow_converts_it(mode):
    # With a turn that the camera wrote down, and without.
    for turn in (1, 6):
        exif, buffer = Image.Exif(), io.BytesIO()
        exif[0x0112] = turn
        picture = Image.fromarray(COLOR).convert(mode)
        picture.save(buffer, "TIFF", exif=exif)
        for shape, target in (((1, 4, 6), "L"), ((3, 4, 6), "RGB")):
            whole = Image.open(io.BytesIO(buffer.getvalue()))
            expected = ImageOps.exif_transpose(whole).convert(target).resize((6, 4), Image.Resampling.BILINEAR)
            found = from_bytes(buffer.getvalue(), shape)
            table = np.asarray(expected, dtype=np.float32) / 255.0
            np.testing.assert_array_equal(found, table[None] if target == "L" else table.transpose(2, 0, 1))


def test_lists_are_taken_as_they_are():
    values = np.random.default_rng(1).random((2, 3, 3)).tolist()
    np.testing.assert_allclose(from_lists(values, (2, 3, 3)), values, rtol=1e-6)
    for said, bad in (
        ("got shape", [None, []]),
        ("something else", [[[[0.5]], [[0.5, 0.1]]], {"a": 1}, [[["x"]]], [[[10**400]]]]),
        ("out of range", [[[[1.5]]], [[[-0.1]]], [[[float("nan")]]]]),
    ):
        for values in bad:
            with pytest.raises(ModebridgeError, match=said):
                from_lists(values, (1, 1, 1))


def test_without_pillow_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModebridgeError, match=r"Expected Pillow to read image files, .*'modebridge\[images\]'"):
        from_bytes(b"", (1, 8, 8))
