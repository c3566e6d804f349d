"""The heads of cifar10-frn and the bundle: what is chosen and published is what the committed logits and file give."""

from __future__ import annotations

import json
import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from modebridge.data import Loader, load_set
from modebridge.data.datasets import CLASS_NAMES
from modebridge.deploy import Deployed
from modebridge.errors import ModebridgeError
from modebridge.members import HeadsMember, members_of
from modebridge.runs import blueprint_for, find_recipe_of
from modebridge.runs.folder import RunFolder
from modebridge.runs.read_answers import read_answers
from modebridge.scoring import advise
from modebridge.scoring.scores import accuracy, nll

ROOT = Path(__file__).parents[1]
HOLDS = ROOT / "benchmarks" / "holds"
FRN = ROOT / "results" / "cifar10-frn"
BN = ROOT / "results" / "cifar10-bn"


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1.06, 1.15, 1.2])
@pytest.mark.parametrize("folder", [FRN, BN], ids=["frn", "bn"])
def test_the_pages_say_what_is_advised(folder, budget):
    answers = read_answers(RunFolder(folder, writes=False))
    chosen = advise(answers, budget).chosen
    scores = answers.score(chosen.members, threshold=chosen.threshold)
    assert ("heads-0-others-small" in chosen.members) == (folder == FRN or budget < 1.1)
    (line,) = re.findall(rf"^\| x{budget:.2f} \| mode .*$", (folder / "README.md").read_text(), flags=re.MULTILINE)
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    assert cells[0].startswith(chosen.members[0].replace("-", " "))
    assert chosen.threshold is None or f"for {100 * chosen.asked:.0f} %" in cells[0]
    said = f"{chosen.nll:.4f}", f"{100 * scores.accuracy:.2f} / {scores.nll:.4f}"
    assert cells[1:] == [text.replace(" 0.", " .").removeprefix("0") for text in said]
    (row,) = re.findall(rf"^\| x{budget:.2f} \| mode .*$", (ROOT / "docs/frontier.md").read_text(), flags=re.MULTILINE)
    assert row.split("|")[2 if folder == FRN else 3].strip().endswith(f": {cells[2]}")


def test_heads_with_batch_norm_are_members_that_their_recipe_describes():
    """They were trained with the blocks and the mixup of other bridges; the recipe says so and gives their cost."""
    folder = RunFolder(BN, writes=False)
    recipe, seed = find_recipe_of(folder)
    answers, blueprint = read_answers(folder), blueprint_for(recipe, seed)
    members = [member for member in members_of(recipe) if isinstance(member, HeadsMember)]
    assert len(members) == 4
    for member in members:
        assert answers.costs[member.name] == member.cost(blueprint)
        assert len(answers.heads(member.name)) == member.heads(recipe)
    assert (recipe.heads_design, recipe.heads_mixup, recipe.heads_cutmix) == ("plain", recipe.mixup, recipe.cutmix)


def test_the_frontier_records_are_those_of_the_logits(monkeypatch):
    monkeypatch.syspath_prepend(str(HOLDS))
    remade = runpy.run_path(str(HOLDS / "frontier_frn.py"))["remade"](FRN)
    kept = [json.loads(line) for line in (ROOT / "results" / "frontier-cifar10.json").read_text().splitlines()]
    assert [row["variant"] for row in kept] == [row["variant"] for row in remade]
    for row, again in zip(kept, remade, strict=True):
        assert row.keys() == again.keys()
        assert [row["test"], row["flops"]] == [pytest.approx(again["test"], abs=2e-6), pytest.approx(again["flops"])]
        if not row["line"]:
            assert row["epochs"] == (118 if "heads" in row["variant"] else 145)


def said_of_the_bundle(scores):
    return f"{100 * scores['accuracy']:.2f} % / {scores['nll']:.4f}".replace(" 0.", " .")


def test_the_bundle_loads_and_says_its_published_row(monkeypatch):
    monkeypatch.syspath_prepend(str(HOLDS))
    bundle = runpy.run_path(str(HOLDS / "bundle.py"))
    mode, heads = bundle["choose"](bundle["read_all"](RunFolder(FRN, writes=False)))
    file = Deployed.load(FRN / "bundle.onnx")
    assert (FRN / "bundle.onnx").stat().st_size <= 10_000_000
    assert file.meta["classes"] == CLASS_NAMES["cifar10"]
    assert file.meta["members"] == [mode, *(f"{heads}/{k}" for k in range(3))]
    assert file.meta["normalisation"]["input"].startswith("floats in [0, 1]")
    for page in (FRN / "README.md", ROOT / "docs" / "results.md", ROOT / "README.md"):
        assert said_of_the_bundle(file.meta["scores"]) in page.read_text()
    assert file(np.full((2, 3, 32, 32), 0.5, dtype=np.float32)).probabilities.shape == (2, 10)
    assert b"site-packages" not in (FRN / "bundle.onnx").read_bytes(), "traces of the machine that wrote it"


@pytest.mark.slow
def test_the_bundle_has_its_published_row_on_the_real_test_images():
    try:
        test = load_set("cifar10", os.environ.get("MODEBRIDGE_DATA", "data")).test
    except ModebridgeError as error:
        pytest.skip(f"CIFAR-10 is not there: {error}")
    file = Deployed.load(FRN / "bundle.onnx")
    said = torch.cat([torch.from_numpy(file(images).probabilities) for images, _ in Loader(test, 250)])
    measured = {"accuracy": accuracy(said, test.labels), "nll": nll(said, test.labels)}
    assert said_of_the_bundle(measured) == said_of_the_bundle(file.meta["scores"])
