"""What the pages say of committed results is what their numbers per image, or per seed, give."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

from modebridge import DeployedEnsemble

ROOT = Path(__file__).parents[2]
PUBLISHED = runpy.run_path(str(ROOT / "benchmarks" / "published.py"), run_name="published")
FOLDERS = sorted(file.parent for file in (ROOT / "results").glob("*/rows.safetensors"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

NUMBER = r"([+-]?\d*\.?\d+)"
INTERVAL = re.compile(rf"{NUMBER}(?: %)?\s+\[{NUMBER}\s+to\s+{NUMBER}\]")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_figures_of_a_folder(folder):
    assert PUBLISHED["wrong_figures"](folder) == []


def test_a_wrong_figure_is_found(tmp_path):
    assert len(FOLDERS) >= 4
    folder = tmp_path / "copy"
    shutil.copytree(FOLDERS[-1], folder)
    published = json.loads((folder / "results.json").read_text())
    published["rows"][2]["nll"] += 0.001
    (folder / "results.json").write_text(json.dumps(published))
    assert PUBLISHED["wrong_figures"](folder) == [f"copy: {published['rows'][2]['name']}: nll"]


Figure = tuple[float, float, float]


def with_intervals(text: str) -> list[tuple[Figure, float]]:
    """Every number with an interval, and the unit of its last printed digit."""
    found = INTERVAL.findall(text)
    return [(tuple(map(float, parts)), 10.0 ** -len(parts[0].partition(".")[2])) for parts in found]


def known_figures() -> list[Figure]:
    lines = [line for folder in FOLDERS for line in PUBLISHED["tables"](folder)]
    known = [figure for figure, _ in with_intervals("\n".join(lines))]
    for file in (*(ROOT / "results" / "digits").glob("*.json"), *(ROOT / "results" / "intents").glob("*.json")):
        for table in json.loads(file.read_text())["tables"]:
            for one, other in itertools.permutations(table["rows"], 2):
                known.append(tuple(PUBLISHED["difference"](table, one, other)))
                known.append(tuple(100 * part for part in PUBLISHED["difference"](table, one, other, "accuracy")))
    # A difference may be said as a gain or as a loss.
    return known + [(-value, -high, -low) for value, low, high in known]


def test_pages_have_only_figures_of_results():
    known = known_figures()
    unknown = {}
    for page in PAGES:
        for figure, unit in with_intervals(page.read_text()):
            # One unit of the last digit apart: stored numbers are rounded.
            if not any(all(abs(a - b) < 1.01 * unit for a, b in zip(figure, one, strict=True)) for one in known):
                unknown.setdefault(page.name, []).append(figure)
    assert unknown == {}


def test_the_bundle_predicts():
    deployed = DeployedEnsemble.load(ROOT / "results" / "cifar10-frn" / "bundle.onnx")
    scores = json.loads((ROOT / "results" / "cifar10-frn" / "results.json").read_text())["rows"]
    row = next(row for row in scores if row["name"] == "mode-0 + heads-others-cutmix-budget")
    assert deployed.meta["scores"]["accuracy"] == pytest.approx(row["accuracy"], abs=1e-3)
    images = np.random.default_rng(0).random((3, 3, 32, 32), dtype=np.float32)
    np.testing.assert_allclose(deployed(images).probabilities.sum(axis=1), 1, rtol=1e-5)
