"""Files of networks that take several inputs by name, tokens and masks among them; and pixels from image files."""

from __future__ import annotations

import io
import itertools
import re
import struct
import sys
import zlib
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image, ImageOps
from torch import nn
from typer.testing import CliRunner

from modebridge.bridges import Bridge, VectorBody
from modebridge.cli.app import app
from modebridge.deploy import Calibration, export
from modebridge.deploy.export import probe
from modebridge.deploy.inputs import ANY, TooManyPixelsError, from_bytes, from_lists, from_path
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from tests.deploy.conftest import ALL_OUTPUTS
from tests.deploy.scenes import check_says_what_the_library_says, png
from tests.networks import Tokens

LENGTH, WORDS = 6, 20
FITTED = Calibration(0.8, 1.2)
COLOR = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)


class Reader(Tokens):
    """Inputs by name (one of which it ignores) and an object that holds logits, as Hugging Face's transformers."""

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        return SimpleNamespace(logits=super().forward(input_ids, attention_mask))


def inputs(count, seed=0):
    """Rows of 2 to 6 words, padded, as a tokenizer gives them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, LENGTH + 1, (count, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    ids = torch.randint(1, WORDS, (count, LENGTH), generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def texts(count):
    """A batch of a loader: with labels and with what is no tensor."""
    return inputs(count) | {"labels": torch.arange(count) % 3, "texts": ["words"] * count}


@pytest.fixture(scope="module")
def own():
    """Two modes, a bridge of each type."""
    nets = [Reader(seed).eval() for seed in range(2)]
    modes = [Mode.from_module(net) for net in nets]
    bodies = [VectorBody(width, 4, 3, layout="tokens") for width in (8, 16)]
    bridges = [Bridge(bodies[0], modes[:1], "block", name="I"), Bridge(bodies[1], modes, "block", name="II")]
    return Ensemble(nets[0], modes, bridges)


@pytest.fixture(scope="module", params=["a.pt2", pytest.param("a.onnx", marks=pytest.mark.slow)])
def done(request, own, tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / request.param
    threshold = 2.0 if path.suffix == ".onnx" else None
    return export(own, path, texts(5), outputs=ALL_OUTPUTS, valid=FITTED, threshold=threshold)


@torch.no_grad()
def test_tokens_get_the_librarys_answers(own, done):
    for count in (1, 7):
        check_says_what_the_library_says(done, own, inputs(count, seed=9), FITTED)
    # A tokenizer's lists, a loader's dict with its labels, other whole numbers: all the same.
    plain = done(inputs(4)).probabilities
    np.testing.assert_array_equal(done(texts(4)).probabilities, plain)
    np.testing.assert_array_equal(done({k: v.tolist() for k, v in inputs(4).items()}).probabilities, plain)
    np.testing.assert_array_equal(done({k: v.int() for k, v in inputs(4).items()}).probabilities, plain)
    assert done(inputs(0)).probabilities.shape == (0, 3)


def test_its_metadata_names_the_inputs(done):
    assert done.parity < 1e-5
    assert done.meta["inputs"]["input_ids"] == {"shape": [ANY], "type": "int64"}
    assert list(done.meta["inputs"]) == ["input_ids", "attention_mask", "token_type_ids"]
    assert (done.meta["parity"]["images"], done.meta["image"]) == (7 + 1 + 5 + 1 + 5, None)
    if done.path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(done.path), providers=["CPUExecutionProvider"])
        assert [one.name for one in session.get_inputs()][:3] == list(done.meta["inputs"])


def test_what_a_file_of_tokens_does_not_take(done):
    good = inputs(2)
    for wrong, words in (
        (torch.rand(2, 3, 8, 8), r"inputs by name \(input_ids, attention_mask, token_type_ids\), but got Tensor"),
        ({"input_ids": good["input_ids"]}, "but 'attention_mask' is missing"),
        ({**good, "bias": torch.ones(2)}, "but 'bias' is not one of them"),
        ({**good, "input_ids": torch.rand(2, LENGTH)}, "Expected input_ids as int64, but got float32"),
        ({**good, "input_ids": torch.ones(2, 4).long()}, "sequences of one length, at least 1, but got 4, 6"),
        ({**good, "input_ids": torch.ones(3, LENGTH).long()}, "the same number of rows, but got 2, 3"),
        ({**good, "input_ids": torch.full((2, LENGTH), WORDS)}, f"Expected '{done.path}' to run on these inputs, but"),
    ):
        with pytest.raises(ModebridgeError, match=words):
            done(wrong)
    words = r"takes images \(C, H, W\), but '.*' takes input_ids \(-1,\) of int64, .*; run it in Python"
    for verb in (["predict", str(done.path), "a.png"], ["bench", str(done.path)]):
        assert re.search(words, str(CliRunner().invoke(app, verb).exception))


class Masked(nn.Module):
    """Images by name, with a mask of booleans beside them or without."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, pixel_values, rows=None):
        x = pixel_values.flatten(1)
        return self.head(x if rows is None else x * rows)


def test_images_by_name_are_images(tmp_path):
    """One input of floats is an image, whatever it is called; with a mask of booleans beside it, it is not."""
    net = Masked().eval()
    own = Ensemble(net, [Mode.from_module(net)])
    x = torch.rand(2, 1, 4, 4)
    file = export(own, tmp_path / "a.pt2", {"pixel_values": x})
    assert file.image_shape() == (1, 4, 4)
    np.testing.assert_array_equal(file(x).probabilities, file({"pixel_values": x}).probabilities)
    mask = torch.arange(16).expand(2, 16) > 5
    both = export(own, tmp_path / "b.onnx", ({"pixel_values": x, "rows": mask}, torch.tensor([0, 1])), threshold=0.5)
    given = {"pixel_values": x, "rows": mask}
    np.testing.assert_allclose(both(given).probabilities, own.predict_proba(given), atol=2e-6)
    # One tensor of tokens is none either.
    net, tokens = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 3)).eval(), torch.tensor([[1, 2, 4]])
    own = Ensemble(net, [Mode.from_module(net)])
    file = export(own, tmp_path / "c.pt2", tokens)
    assert file.meta["image"] is None
    np.testing.assert_allclose(file(tokens).probabilities, own.predict_proba(tokens), atol=2e-6)


def test_made_up_tokens_are_the_examples(own):
    """Every row is one of the example's; what the network cannot answer is left out."""
    example = inputs(3)
    real, random = probe(example, own)
    assert [len(batch["input_ids"]) for batch in (*real, *random)] == [3, 1, 7, 1]
    assert all(torch.equal(random[0][name], example[name][torch.arange(7) % 3]) for name in example)
    broken = nn.Linear(4, 2)
    broken.register_forward_hook(lambda m, a, out: out / (len(out) == 2))
    ensemble = Ensemble(broken, [Mode.from_module(broken)])
    assert [[len(batch) for batch in some] for some in probe(torch.rand(2, 4), ensemble)] == [[2, 1], []]


@pytest.mark.parametrize(
    ("example", "words"),
    [
        ({}, "example to hold at least one image"),
        ({"texts": ["a"]}, "example to hold at least one image"),
        ((3, 8, 8), "a batch or a dict of tensors, but got tuple"),
        ({"used": torch.ones(1, 2)}, "not to have reserved names, but got 'used'"),
        ({"ids": torch.ones(1, 2).to(torch.uint8)}, "ids of example to be float32, int64"),
        ({"a": torch.ones(1, 2), "b": torch.ones(2, 2)}, "the same number of rows, but got 1, 2"),
        ({"input_ids": torch.full((1, LENGTH), WORDS)}, "run on one row of the example, .* accepts any batch size"),
    ],
)
def test_examples_that_are_none(own, tmp_path, example, words):
    with pytest.raises(ModebridgeError, match=words):
        export(own, tmp_path / "a.onnx", example)
    assert list(tmp_path.iterdir()) == []


def test_pixels_are_scaled_and_resized():
    found = from_bytes(png(COLOR), (3, 4, 6))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, COLOR.transpose(2, 0, 1) / 255.0, rtol=1e-6)
    flat = np.full((50, 20, 3), 51, dtype=np.uint8)
    np.testing.assert_allclose(from_bytes(png(flat), (3, 8, 8)), np.full((3, 8, 8), 0.2), rtol=1e-6)
    wide = np.concatenate([np.zeros_like(COLOR), COLOR, np.zeros_like(COLOR)], axis=1)  # its middle, not squeezed
    np.testing.assert_allclose(from_bytes(png(wide), (3, 4, 6)), found, rtol=1e-6)


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
    for turn, target in itertools.product((1, 6), ("L", "RGB")):
        exif, buffer = Image.Exif(), io.BytesIO()
        exif[0x0112] = turn
        Image.fromarray(COLOR).convert(mode).save(buffer, "TIFF", exif=exif)
        turned = ImageOps.exif_transpose(Image.open(buffer)).convert(target)
        turned = ImageOps.fit(turned, (6, 4), Image.Resampling.BILINEAR)
        expected = np.asarray(turned, dtype=np.float32).reshape(4, 6, -1).transpose(2, 0, 1) / 255.0
        np.testing.assert_array_equal(from_bytes(buffer.getvalue(), expected.shape), expected)


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
    with pytest.raises(ModebridgeError, match=r"Expected Pillow to read image files, .*\[images\]'"):
        from_bytes(b"", (1, 8, 8))
