"""From a run folder to a file and from images to answers, by the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from modebridge.cli.app import app
from modebridge.cli.files import example_images
from modebridge.data import load_digits
from modebridge.deploy import DeployedEnsemble
from modebridge.errors import ModebridgeError, install
from modebridge.recipes import find_recipe
from tests.runs.small import finished

ROOT = Path(__file__).parents[2]


def invoke(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small run, a file exported from it, and images: grey, colour, of another size, and some that are none."""
    root = tmp_path_factory.mktemp("deploying")
    finished(root / "run")
    answer = invoke("export", root / "run", root / "fast.onnx", "--members", "mode-0, I-0-1-small, I-0-2-small")
    assert answer.exit_code == 0, answer.output
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8), np.uint8)
    folder = root / "images"
    (folder / "deep").mkdir(parents=True)
    Image.fromarray(pixels).save(folder / "grey.png")
    Image.fromarray(np.stack([pixels] * 3, axis=-1)).save(folder / "deep" / "colour.PNG")
    Image.fromarray(pixels).resize((20, 30)).save(folder / "large.jpg")
    (folder / "bad.png").write_bytes(b"\x89PNG nothing")
    (folder / "notes.txt").write_text("no image")
    os.mkfifo(folder / "pipe.png")  # reading it would never end
    (folder / "link.png").symlink_to("nowhere")
    return root, answer, pixels


def lines(answer):
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_what_export_says(made):
    root, answer, _ = made
    assert "Members: mode-0 + I-0-1-small + I-0-2-small; cost x1.0" in answer.stdout.replace("\n", " ")
    assert "Parity: the file's probabilities are within" in answer.stdout
    assert "# classify images, or --examples\n" in answer.stdout
    assert answer.stdout.endswith("# answer over HTTP\n")
    meta = DeployedEnsemble.load(root / "fast.onnx").meta
    assert meta["about"].startswith("digits, seed 0")
    assert f"accuracy {100 * meta['scores']['accuracy']:.2f} %" in answer.stdout.replace("\n", " ")
    data = json.loads(invoke("--json", "export", root / "run", root / "again.pt2", "--members", "mode-0").stdout)
    assert data == {"file": str(root / "again.pt2"), **DeployedEnsemble.load(root / "again.pt2").meta}


def test_good_images_are_answered_and_bad_ones_named(made, monkeypatch):
    root, _, pixels = made
    monkeypatch.setattr("modebridge.cli.files.BATCH", 2)
    answer = invoke("predict", root / "fast.onnx", root / "images", f"{'long' * 100}.png", "--json")
    assert answer.exit_code == 1
    found = {record["file"].rsplit("/", 1)[-1]: record for record in lines(answer)}
    assert set(found) == {"grey.png", "colour.PNG", "large.jpg"}
    for name, words in (
        ("bad", "an image file, but got 12 bytes"),
        ("pipe", "an image file, or a folder of images"),
        ("link", "an image to read, but it does not exist"),
        ("long", "an image to read, but got 'File name too long"),
    ):
        assert f"{name}.png: Expected {words}" in answer.stderr
    assert "Skipped 4 of 7 images" in answer.stderr
    grey = found["grey.png"]
    wanted = DeployedEnsemble.load(root / "fast.onnx")((pixels / 255.0).astype(np.float32)[None, None])
    assert grey["probabilities"] == pytest.approx(wanted.probabilities[0].tolist(), abs=1e-6)
    assert grey["class"] == str(wanted.probabilities[0].argmax())
    assert grey["probability"] == max(grey["probabilities"])
    assert found["colour.PNG"]["probabilities"] == pytest.approx(grey["probabilities"], abs=1e-6)


def test_the_digits_that_come_with_the_package(made, monkeypatch):
    """Each is one of the data set's own, of the part that the demo tests on, and shows what its name says."""
    root, _, _ = made
    answer = invoke("predict", root / "fast.onnx", "--examples", "--json")
    assert answer.exit_code == 0, answer.output
    assert [record["file"].rsplit("/", 1)[-1] for record in lines(answer)] == [f"digit-{k}.png" for k in (3, 5, 8)]
    clean, recipe = load_digits().shuffled(0), find_recipe("digits")
    test = clean.part(recipe.data.train + recipe.data.valid, len(clean))
    for path in example_images(root / "fast.onnx", (1, 8, 8)):
        assert path.stat().st_size < 300
        pixels = np.asarray(Image.open(path)).astype(np.float32) / 255
        same = np.abs(test.images[:, 0].numpy() - pixels).max(axis=(1, 2)) < 1 / 100
        assert set(test.labels[same].tolist()) == {int(path.stem[-1])}
    assert "add --examples" in str(invoke("predict", root / "fast.onnx").exception)


def test_the_images_beside_a_file(made):
    """The published file has three of its data set; digits are not for it."""
    answer = invoke("predict", ROOT / "results/cifar10-frn/bundle.onnx", "--examples", "--json")
    assert [(Path(one["file"]).stem, one["class"]) for one in lines(answer)] == [
        (name, name) for name in ("airplane", "cat", "ship")
    ]
    with pytest.raises(ModebridgeError, match=r"digits of 1 x 8 x 8, while the file takes images of 3 x 32 x 32"):
        example_images(made[0] / "other.onnx", (3, 32, 32))


def test_wrong_wishes(made):
    root, _, _ = made
    for more, message in (
        (("--threshold", "0.5", "--average-cost", "1.1"), "--threshold or --average-cost, but got both; give one."),
        (("--threshold", "nan"), "Expected --threshold to be a probability"),
        (("--average-cost", "0.5", "--members", "mode-0,I-0-1-small"), "that of the first network, but got 0.5"),
        (("--average-cost", "9", "--members", "mode-0,mode-1"), "below that of all members, x2, but got 9;"),
        (("--average-cost", "1.15", "--members", "one network"), "two members for a cascade, but got only mode-0;"),
    ):
        answer = invoke("export", root / "run", root / "x.onnx", *more)
        assert message in str(answer.exception)
    assert not (root / "x.onnx").exists()
    assert "to be a run folder" in str(invoke("export", "/nowhere", "fast.onnx").exception)
    assert "Expected 'nowhere.onnx' to be a file" in str(invoke("predict", "nowhere.onnx", "x.png").exception)
    answer = invoke("export", root / "run", root / "x.pt2", "--threshold", "0.5", "--members", "mode-0,I-0-1-small")
    assert "in an .onnx file, but got 0.5 for 'x.pt2'" in str(answer.exception)
    answer = invoke("predict", root / "fast.onnx", root / "images", "--threshold", "0.5", "--json")
    assert "Expected a cascade for a threshold" in str(answer.exception)
    assert answer.stdout == ""


def test_a_file_for_an_average_cost_with_sets_and_answers(made, monkeypatch):
    root, file = made[0], made[0] / "cheap.onnx"
    options = ("--members", "mode-0,I-0-1-small", "--average-cost", "1.02", "--coverage", 0.8, "--risk", 0.9)
    monkeypatch.setattr("modebridge.cli.files.find_spec", lambda name: None)
    answer = invoke("export", root / "run", file, *options)
    assert answer.exit_code == 0, answer.output
    assert "Threshold: 0." in answer.stdout
    assert "Sets: coverage 0.8, fitted on" in answer.stdout, answer.output
    assert "wrong, with 95% confidence" in " ".join(answer.stdout.split())
    assert answer.stdout.endswith(f"# answer over HTTP, after {install('serve')}\n")
    meta, image = DeployedEnsemble.load(file).meta, root / "images" / "grey.png"
    assert 0 < meta["threshold"] < 1
    assert {"set", "answered"} <= set(invoke("predict", file, image).stdout.split())
    for threshold, used in (("0", 1), ("2", 2)):
        (record,) = lines(invoke("predict", file, image, "--threshold", threshold, "--json"))
        assert record["used"] == used
        assert record["class"] in record["set"]
        assert record["answered"] == (record["probability"] >= meta["answers"]["threshold"])
    for options, words in ((("--coverage", 1.5), "coverage to be between 0 and 1"), (("--risk", 1e-6), "show none")):
        refused = invoke("export", root / "run", file, "--members", "mode-0", *options)
        assert words in str(refused.exception), refused.output


def test_the_installed_program(made, tmp_path):
    """It prints a table, exits with 1 if an image cannot be read, and ONNX Runtime leaves nothing in the home."""
    root, _, _ = made
    places = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")}
    own = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    program = [sys.executable, "-m", "modebridge", "predict", root / "fast.onnx", "none.png", root / "images/grey.png"]
    settings = {**own, **places, "COLUMNS": "200"}
    done = subprocess.run(program, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "Skipped 1 of 2 images that could not be read." in done.stderr
    assert all(text in done.stdout for text in ("grey.png", "entropy"))
    assert next(line for line in done.stdout.splitlines() if "grey" in line).split()[-1] == "3", "members used"
    assert "mutual: how much the members disagree, in nats. members: how many of them ran." in done.stdout
    assert list(tmp_path.rglob("*")) == []
