"""Bridges on modes that underfit: what is planned and recorded, and what the table says."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from modebridge import plan_bridge
from modebridge.recipes import find_recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def underfit(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("underfit")


@pytest.fixture
def baseline(underfit):
    return import_module("frontier.underfit_variants").BASELINE


def test_a_few_images(underfit, baseline, tmp_path):
    """Three variants on modes of one epoch: bodies within the FLOPs of the paper's, and what is recorded."""
    recipe = find_recipe("digits")
    data = replace(recipe.data, train=40, valid=30, test=30, batch_size=20)
    recipe = replace(recipe, data=data, mode=replace(recipe.mode, epochs=1), bridge=replace(recipe.bridge, epochs=1))
    bench, fit = underfit.bench_of(recipe, 5, None, 0)
    names = ("3 others; wide block; CutMix 1", "3 others + labels; wide block; mixup 0.4", baseline)
    variants = {name: underfit.VARIANTS[name] for name in names}
    scene, plans = bench.scene, {name: v.parts[0] for name, v in variants.items()}
    planned = {name: import_module("frontier.variants").plan_part(part, scene) for name, part in plans.items()}
    wide, labels, paper = (planned[name].bridge for name in names)
    assert (wide.heads, labels.heads, paper.heads) == (3, 4, 3)
    assert 0.5 * paper.share < wide.share <= paper.share
    assert wide.share < labels.share < 1.1 * paper.share
    same = plan_bridge(scene.net, scene.modes, scene.images, budget=paper.share).bridge
    assert [p.shape for p in same.parameters()] == [p.shape for p in wide.parameters()]

    file = tmp_path / "made.json"
    assert [len(bridges) for bridges in bench.passes(variants, {"data": "few", "seed": 5}, file)] == [1, 2]
    underfit.keep(file, [{"data": "few", "seed": 5, "variant": underfit.FIT, "line": False, **fit}])
    records = underfit.read(file)
    assert [record["variant"] for record in records if not record["line"]] == [*names, underfit.FIT]
    assert set(fit["kl"]) == {*underfit.MIXING, "valid"}
    assert len({round(kl, 6) for kl in fit["kl"].values()}) == 4
    assert fit["chosen"] in underfit.CHOICES
    assert underfit.table(records)[0] == "### few"


def test_fit_and_mixing(underfit):
    """By hand: mode 0 says (.8, .2) and (.5, .5), mode 1 (.5, .5) and (.25, .75); both labels are 0."""
    first, second = (torch.tensor(rows).log() for rows in ([[0.8, 0.2], [0.5, 0.5]], [[0.5, 0.5], [0.25, 0.75]]))
    fit = underfit._fit([{"no mixing": first}, {"no mixing": second}], torch.tensor([0, 0]))
    assert fit["train"]["accuracy"] == 1.0
    assert fit["train_accuracies"] == [1.0, 0.5]
    assert fit["train"]["nll"] == pytest.approx((0.22314 + 0.69315) / 2, abs=1e-4)
    # .5 log(.5/.8) + .5 log(.5/.2) = .22314, and .25 log .5 + .75 log 1.5 = .13081
    assert fit["kl"]["no mixing"] == pytest.approx((0.22314 + 0.13081) / 2, abs=1e-4)

    images = torch.arange(6.0)[:, None, None, None].expand(6, 1, 8, 8)
    kept, blended, cut = (underfit._mixed(images, regime, 1) for regime in underfit.MIXING.values())
    assert torch.equal(kept, images)
    assert all(len(image.unique()) == 1 for image in blended)
    assert not torch.equal(blended.frac(), torch.zeros_like(blended))
    assert torch.equal(cut.frac(), torch.zeros_like(cut))  # pixels of one image or of the other
    assert any(len(image.unique()) == 2 for image in cut)


def test_the_table(underfit, baseline):
    """Of made-up scores: ways, paired t intervals by hand, and one factor at a time."""
    losses = {"DE-1": (0.40, 0.44), "DE-2": (0.30, 0.34), baseline: (0.38, 0.40)}
    losses |= {"3 others; paper body; CutMix 1": (0.35, 0.36), "labels; wide block; mixup 0.4": (0.5, 0.5)}
    facts = [{"data": "made up", "seed": seed, "line": False} for seed in (1, 2)]
    records = [
        {**facts[k], "variant": name, "test": {"nll": both[k], "accuracy": 0.9}, "flops": 1.05}
        for name, both in losses.items()
        for k in (0, 1)
    ]
    kl = {**dict.fromkeys(underfit.MIXING, 0.1), "valid": 0.2}
    fits = [{"train": {"accuracy": a, "nll": 0.2}, "train_accuracies": [a, a - 0.1], "kl": kl} for a in (0.9, 0.8)]
    records += [{**facts[k], "variant": underfit.FIT, **fits[k]} for k in (0, 1)]
    lines = underfit.table(records)
    assert "85.0 % right, NLL 0.200; all modes 80.0 % (70.0 to 90.0)" in lines[2]
    # Differences -.03 and -.04: mean -.035, deviation .00707, t of one degree of freedom 12.706.
    apart = "-0.0350 [-0.0985 to +0.0285]"
    assert f"| 3 others; paper body; CutMix 1 | x1.05 | 90.00 | 0.3550 | 65 % | {apart} |" in lines
    assert lines[-1] == f"| 3 others; paper body; CutMix 1 minus mixup 0.4 | {apart} |"  # labels have nothing beside


def test_the_records_are_complete(underfit):
    """Every level and variant on all eight seeds, with bridges of 35 and of 5 epochs; the modes fit as titles say."""
    records = underfit.read(BENCHMARKS.parent / "results" / "underfit-digits.json")
    made = {(record["data"], record["variant"], record["seed"]): record for record in records}
    names = (*underfit.VARIANTS, "DE-1", "DE-2", underfit.FIT)
    kinds = [f"digits; modes: {level}; bridges: {epochs} epochs" for epochs in (35, 5) for level in underfit.LEVELS]
    assert {(k, n, s) for k in kinds for n in names for s in range(60, 68)} <= made.keys()
    assert {kind for kind, _, _ in made} == set(kinds)
    fits = {kind: [made[kind, underfit.FIT, seed]["train"]["accuracy"] for seed in range(60, 68)] for kind in kinds}
    assert min(fits[kinds[0]]) > 0.99
    assert all(max(fits[kind]) < 0.95 for kind in kinds[1:4])
    assert fits[kinds[1]] == fits[kinds[5]]  # the same modes below both lengths of bridges


def test_the_choice_of_fit_bridge(underfit):
    """The variants that it chooses have the targets and the mixing that it says."""
    names = [underfit.chosen(underfit.Fit(accuracy, 1000, 10)) for accuracy in (0.1, 0.6, 0.79, 0.8, 0.94, 0.95, 1.0)]
    assert names == [underfit.FITTING, *[underfit.MIXUP] * 2, *[underfit.LABELS] * 2, *[underfit.FITTING] * 2]
    parts = {name: underfit.VARIANTS[name].parts[0] for name in names}
    assert {name: ("labels" in part.aim, part.regime.cutmix > 0) for name, part in parts.items()} == {
        underfit.FITTING: (False, True),
        underfit.LABELS: (True, True),
        underfit.MIXUP: (True, False),
    }
    assert {part.design for part in parts.values()} == {"default"}


def test_the_table_of_choices(underfit):
    """Of made-up scores: on one seed of two the modes fit, so the mean is of two variants."""
    losses = dict.fromkeys((*underfit.CHOICES, "DE-1", "DE-2"), (0.5, 0.6))
    losses |= {underfit.FITTING: (0.30, 0.44), underfit.LABELS: (0.35, 0.40)}
    facts = [{"data": "digits; modes: half; bridges: 35 epochs", "seed": seed, "line": False} for seed in (1, 2)]
    records = [
        {**facts[k], "variant": name, "test": {"nll": both[k], "accuracy": 0.9}}
        for name, both in losses.items()
        for k in (0, 1)
    ]
    choices = zip((1.0, 0.9), (underfit.FITTING, underfit.LABELS), strict=True)
    fits = [{"train": {"accuracy": accuracy}, "chosen": name} for accuracy, name in choices]
    records += [{**facts[k], "variant": underfit.FIT, **fits[k]} for k in (0, 1)]
    cells = [cell.strip() for cell in underfit.confirm(records)[2].split("|")[1:-1]]
    assert cells[:6] == ["half", "95.0 %", "1 of 2", "2 of 2", "90.00", "0.3500"]
    assert cells[6].startswith("-0.0200 [")  # 0 and -.04 to FITTING
    assert cells[7].startswith("-0.0250 [")  # -.05 and 0 to LABELS


def test_the_fresh_records_are_complete(underfit):
    records = underfit.read(BENCHMARKS.parent / "results" / "underfit-digits-fresh.json")
    made = {(record["data"], record["variant"], record["seed"]) for record in records}
    names = (*underfit.CHOICES, "DE-1", "DE-2", underfit.FIT)
    kinds = [f"digits; modes: {level}; bridges: 35 epochs" for level in underfit.CONFIRMED]
    assert {(kind, name, seed) for kind in kinds for name in names for seed in range(70, 78)} <= made
    assert {kind for kind, _, _ in made} == set(kinds)
