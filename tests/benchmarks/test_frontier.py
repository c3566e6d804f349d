"""The comparison of variants: what is planned, what is fitted on validation, and what the table says."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp

from modebridge.curves import start_curve
from modebridge.data import ImageSet, Loader
from modebridge.ensembles import scale
from modebridge.errors import ModebridgeError
from modebridge.scoring import LogitTable, MemberCost
from tests.scenarios import EXACT, blobs, modes, tiny_net

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def frontier(monkeypatch):
    """Gives a module of the comparison, which imports its neighbours as scripts do."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: import_module(f"frontier.{name}")


def test_variants_of_a_tiny_network(frontier):
    variants = frontier("variants")
    net, ends = tiny_net(), modes(4)
    curves = {j: start_curve(net, ends[0], ends[j]) for j in (1, 2, 3)}
    scene = frontier("scene").Scene(net, ends, curves, blobs(2).images)
    every = variants.choose([], scene)
    assert variants.BASELINE in every
    assert not any("," in name for name in variants.VARIANTS)  # --only has commas between names
    without = variants.choose([], frontier("scene").Scene(net, ends, {}, scene.images))
    assert set(every) - set(without) == {n for n, v in every.items() if any("midpoint" in p.aim for p in v.parts)}
    with pytest.raises(ModebridgeError, match="name of a variant, but got 'paper smal'"):
        variants.choose(["paper smal"], scene)

    passes = variants.parts_of(every)
    parts = [part for group in passes.values() for part in group]
    assert len(set(parts)) == len({str(part) for part in parts}) == len(parts)
    assert all(part.regime == regime for regime, group in passes.items() for part in group)

    names = ("paper small", "6 heads: midpoints + others", "complement of DE-4 (3 heads)", "3 heads: others")
    places = ("both taps", "depthwise")
    names += tuple(f"3 heads: others ({place})" for place in places)
    plans = {name: variants.plan_part(every[name].parts[0], scene) for name in names}
    assert [plan.bridge.heads for plan in plans.values()] == [1, 6, 3, 3, 3, 3]
    assert all(plan.reads == (ends[0],) for plan in plans.values())
    elsewhere = [plans[f"3 heads: others ({place})"].bridge for place in places]
    assert [bridge.taps for bridge in elsewhere] == [("layers.0", "layers.3"), ("layers.1",)]
    assert all(0.5 < bridge.share / plans["3 heads: others"].bridge.share <= 1 for bridge in elsewhere)
    again = variants.plan_part(variants.Part("others", regime=variants.REGIMES["mixup 1"]), scene).bridge
    ours, theirs = again.state_dict(), plans["3 heads: others"].bridge.state_dict()
    assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())  # one start, however it is trained


def made_up_answers():
    torch.manual_seed(0)
    labels = torch.arange(60) % 3

    def logits(sharpness, *heads):
        right = torch.nn.functional.one_hot(labels, 3).to(EXACT)
        return sharpness * right + torch.randn(*heads, 60, 3, dtype=EXACT)

    valid, test = ({"mode-0": logits(2), "mode-1": logits(2), "bridge": logits(1, 3)} for _ in range(2))
    costs = {"mode-0": MemberCost(100, 10), "mode-1": MemberCost(100, 10), "bridge": MemberCost(5, 1, ("mode-0",))}
    return LogitTable(valid, test, labels, labels, costs)


def test_scores(frontier):
    """The test split as `LogitTable` scores it; on validation nothing is scored by what it was fitted on."""
    scoring, answers, members = frontier("scoring"), made_up_answers(), ("mode-0", "bridge")
    record, expected = scoring.score(answers, members, against=("mode-0",)), answers.score(members)
    for key in ("accuracy", "nll", "ece"):
        assert record["test"][key] == pytest.approx(getattr(expected, key), abs=1e-9)
    assert (record["flops"], record["params"]) == (1.05, 1.1)
    low, high = record["over_images"]["nll"]
    assert (low + high) / 2 == pytest.approx(expected.nll - answers.score(("mode-0",)).nll, abs=1e-9)
    probabilities = answers.probabilities(members, "valid")
    fold, parts = torch.arange(60) % 5, torch.empty(60, dtype=EXACT)
    for k in range(5):
        fitted = frontier("scoring").fit_temperature(probabilities[fold != k], answers.valid_labels[fold != k])
        tempered = scale(probabilities[fold == k], fitted)
        parts[fold == k] = -tempered.gather(1, answers.valid_labels[fold == k, None])[:, 0].log()
    assert record["valid"]["nll"] == pytest.approx(float(parts.mean()), abs=1e-9)
    assert scoring.score(answers, members, raw=True)["test"]["nll"] == pytest.approx(expected.raw_nll, abs=1e-9)


def test_weights_of_members(frontier):
    """Of two members of which each knows the images that the other does not: the shares of those images."""
    labels = torch.zeros(10, dtype=torch.long)
    knows = torch.tensor([1.0] * 7 + [0.0] * 3, dtype=EXACT)
    members = torch.stack([torch.stack([right, 1 - right], dim=1) for right in (knows, 1 - knows)])
    weights = frontier("scoring").fit_weights(members, labels)
    torch.testing.assert_close(weights, torch.tensor([0.7, 0.3], dtype=EXACT), rtol=0, atol=1e-9)
    weighted = frontier("scoring").score(made_up_answers(), ("mode-0", "bridge"), weighted=True)
    assert sum(weighted["weights"]) == pytest.approx(1, abs=1e-3)
    assert len(weighted["weights"]) == 4


def record(variant, seed, nll, valid, flops=1.05, line=False):
    scores = {split: {"accuracy": 0.9, "nll": loss, "ece": 0.02} for split, loss in (("valid", valid), ("test", nll))}
    cost = {"flops": flops, "params": flops, "temperature": 1.0, "seconds": 3.0}
    return {"data": "digits", "seed": seed, "variant": variant, "line": line, **scores, **cost}


def test_the_table(frontier, tmp_path):
    """Of a made-up file: ways, paired t intervals by hand, the order, and the choice by validation, not by test."""
    file, keep = tmp_path / "made-up.json", frontier("scoring").keep
    keep(file, [record("heads", 1, 9.0, 9.0)])
    lines = [("DE-1", (0.40, 0.44), 1.0), ("DE-2", (0.30, 0.34), 2.0)]
    rows = [record(name, k + 1, losses[k], losses[k], flops, True) for name, losses, flops in lines for k in (0, 1)]
    rows += [record("paper small", seed, loss, 0.38) for seed, loss in ((1, 0.38), (2, 0.40))]
    rows += [record("heads", seed, loss, 0.36) for seed, loss in ((1, 0.35), (2, 0.36))]
    rows += [record("lucky", seed, 0.31, 0.37) for seed in (1, 2)]
    rows += [record("dear", seed, 0.33, 0.35, 1.2) for seed in (1, 2)]
    keep(file, rows)
    assert len(file.read_text().splitlines()) == len(rows)  # what was there of heads, seed 1, is replaced
    assert json.loads(file.read_text().splitlines()[0])["test"]["nll"] == 0.35
    text = frontier("table").table(frontier("scoring").read(file))
    order = [line.split("|")[1].strip() for line in text if line.startswith("| ") and "variant" not in line]
    assert order == ["*DE-1*", "lucky", "heads", "paper small", "dear", "*DE-2*"]
    heads = next(line for line in text if line.startswith("| heads"))
    # Differences -.03 and -.04: mean -.035, deviation .00707, t of one degree of freedom 12.706.
    assert "| 0.3550 +- 0.0071 |" in heads
    assert "| -0.0350 [-0.0985 to +0.0285] |" in heads
    assert "| 65 % |" in heads  # from .42 to .32 at .355
    choices = [line for line in text if line.startswith("At most")]
    assert "x1.06, best on validation of 3: **heads**" in choices[0]
    assert "x1.20, best on validation of 4: **dear**" in choices[1]
    alone = frontier("table").table([row for row in rows if row["seed"] == 1])
    assert "| -0.0300 |" in next(line for line in alone if line.startswith("| heads"))


def test_the_page_says_what_the_records_give(frontier):
    """Every row of the digits table in docs/frontier.md, by its accuracy, NLL, way and difference."""
    root = BENCHMARKS.parent
    remade = frontier("table").table(frontier("scoring").read(root / "results" / "frontier-digits.json"))
    remade = re.sub(r"(?<!\d)0\.", ".", "\n".join(remade))
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in remade.splitlines() if line.startswith("| ")]
    known = {(row[2].split()[0], row[3].split()[0], row[5], row[7]) for row in rows if len(row) > 8}
    page = (root / "docs" / "frontier.md").read_text().partition("## One thing at a time")[2].partition("\n## ")[0]
    said = [line.replace("**", "").split("|")[4:-1] for line in page.splitlines() if " [" in line and line[0] == "|"]
    cells = [tuple(cell.strip() for cell in row) for row in said]
    assert len(cells) > 30
    assert [row for row in cells if row not in known] == []


@pytest.mark.parametrize(
    ("file", "first", "section", "count"),
    [
        ("fresh", 40, "## Confirmed on fresh seeds", 16),
        ("default", 48, "## The default on fresh seeds", 9),
        ("shift", 80, "## Images shifted further", 8),
    ],
)
def test_the_page_says_what_the_fresh_seeds_give(file, first, section, count):
    """Every row of its table: mean scores and cost, and paired t intervals over seeds by scipy."""
    root, tests = BENCHMARKS.parent, {}
    for line in (root / "results" / f"frontier-digits-{file}.json").read_text().splitlines():
        row = json.loads(line)
        tests.setdefault(row["variant"], {})[row["seed"]] = (row["test"]["nll"], row["test"]["accuracy"], row["flops"])
    scores = {name: np.array([rows[seed] for seed in range(first, first + 8)]).T for name, rows in tests.items()}

    def interval(variant, other):
        if variant == other:
            return ""
        difference = scores[variant][0] - scores[other][0]
        low, high = ttest_1samp(difference, 0).confidence_interval(0.95)
        return short(f"{difference.mean():+.4f} [{low:+.4f} to {high:+.4f}]")

    def short(text):
        return re.sub(r"(?<!\d)0\.", ".", text)

    known = {
        (
            f"x{flops.mean():.2f}",
            f"{100 * accuracy.mean():.2f}",
            short(f"{nll.mean():.4f}"),
            interval(name, "paper small"),
            interval(name, "DE-2"),
        )
        for name, (nll, accuracy, flops) in scores.items()
    }
    page = (root / "docs" / "frontier.md").read_text().partition(section)[2].partition("\n## ")[0]
    cells = [tuple(cell.strip() for cell in line.split("|")[2:-1]) for line in page.splitlines() if "| x" in line]
    assert len(cells) == count
    assert [row for row in cells if row not in known] == []


def test_the_page_says_what_heads_on_students_give(monkeypatch):
    """The differences that it quotes, as the command prints them."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    root = BENCHMARKS.parent
    lines = import_module("student_heads").table(root / "results" / "student-heads-digits.json")
    rows = {line.split("|")[1].strip(): line.split("|")[5:7] for line in lines[2:]}
    page = " ".join((root / "docs" / "frontier.md").read_text().partition("## Other modes to build on")[2].split())
    for title in ("student, mixup 1 + 4 heads", "student, CutMix 1"):
        assert all(re.sub(r"(?<!\d)0\.", ".", cell.strip()) in page for cell in rows[title])


def test_a_shift_is_added_to_the_recipes(frontier):
    """And belongs to the name of a regime, so that shifted images are a pass of their own."""
    data = ImageSet(torch.rand(6, 1, 8, 8), torch.zeros(6, dtype=torch.long), 2)
    loader = Loader(data, 6, pad=1)
    assert frontier("places").shifted(loader, 0).pad == 1
    assert frontier("places").shifted(loader, 2).pad == 3
    variants = frontier("variants")
    plain, shifted = (variants.VARIANTS[name].parts[0] for name in ("the default", "the default (shift 2)"))
    assert (plain.regime.shift, shifted.regime.shift) == (0, 2)
    assert str(shifted.regime) == f"{plain.regime}, shift 2"
