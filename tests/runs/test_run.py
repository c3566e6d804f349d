"""The demo's pipeline, small: every stage runs, the table is whole, the same seed gives the same bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modebridge import Mode, fit_curve, seeds, trees
from modebridge.bridges import plan_bridge
from modebridge.data import Loader, noisy_digits
from modebridge.ensembles import Ensemble
from modebridge.members import ModeMember, Pin, PointMember, parse_member
from modebridge.members.network import networks
from modebridge.nets import ResNet, spec_of
from modebridge.recipes import changed, find_recipe
from modebridge.report import closed_gap
from modebridge.runs import Local, Run, RunFolder, begin, ensemble_of, run_recipe, write_page
from modebridge.scoring import evaluate
from tests.runs.small import finished, small, tiny
from tests.scenarios import fit_bridges, fit_mode

RECORDED = json.loads((Path(__file__).parents[1] / "references" / "tiny_run.json").read_text())


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run_recipe(small(), folder=finished(tmp_path_factory.mktemp("digits") / "run"))


def test_every_row_is_there_and_costs_what_it_should(result):
    names = [row.name for row in result.rows]
    assert names == [
        "one network",
        "one network + 1 bridge",
        "one network + 1 bridge on labels",
        "one network + 2 bridges",
        "cascade of two networks",
        "cascade of three networks",
        "two networks",
        "one network + the midpoint of a curve",
        "two networks + 1 bridge of type II",
        "three networks",
        "two networks + the midpoint of a curve",
    ]
    rows = {row.name: row for row in result.rows}
    assert rows["one network"].scores.dee == pytest.approx(1)
    assert [rows[networks(m)].scores.cost.relative_flops for m in (1, 2, 3)] == [1, 2, 3]
    assert 1.0 < rows["one network + 1 bridge"].scores.cost.relative_flops < 1.1
    one, two = (rows[f"one network + {many}"].scores.cost.relative_params - 1 for many in ("1 bridge", "2 bridges"))
    assert two == pytest.approx(2 * one)
    for scores in (row.scores for row in result.rows):
        assert scores.intervals["nll"][0] <= scores.nll <= scores.intervals["nll"][1]


def test_splits_do_not_overlap_and_temperatures_are_from_validation(result):
    splits = result.setting.data.splits
    parts = [splits.train, splits.valid, splits.test]
    assert [len(part) for part in parts] == [60, 60, 200]
    assert len({image.numpy().tobytes() for part in parts for image in part.images}) == 320, "none is in two"
    two = [result.load(ModeMember(k)) for k in (0, 1)]
    ensemble = Ensemble(result.setting.net, two).calibrate(Loader(splits.valid, 256))
    row = next(row for row in result.rows if row.role == "two")
    assert row.scores.temperature == pytest.approx(float(ensemble.temperature))
    assert row.scores.nll == pytest.approx(evaluate(ensemble, Loader(splits.test, 256)).nll)


@pytest.mark.slow
def test_the_demo_keeps_its_promises_on_one_seed():
    """The full recipe: a bridge closes part of the gap, heads most of it, a type II bridge improves two networks."""
    recipe = changed(find_recipe("digits"), ["methods=heads,paper"])
    nll = {row.name: row.scores.nll for row in run_recipe(recipe).rows}
    one, two = nll["one network"], nll["two networks"]
    assert closed_gap(one, nll["one network + 1 bridge"], two) > 0.25
    assert closed_gap(one, nll["one network + 3 heads"], two) > 0.75
    assert nll["two networks + 1 bridge of type II"] < two


@pytest.mark.slow
def test_a_poor_curve_is_said_in_words():
    """The middle of the straight line between two trained networks, untrained itself, is far worse than its ends."""
    recipe = small()
    untrained = replace(
        recipe,
        data=replace(recipe.data, valid=400, noise=0.2),
        mode=replace(recipe.mode, epochs=25),
        curve=replace(recipe.curve, epochs=0),
    )
    warnings = run_recipe(untrained).warnings
    assert warnings
    assert all("not low-loss" in warning and "longer" in warning for warning in warnings)


@pytest.mark.slow
def test_progress_counts_every_epoch():
    seen = {}
    run_recipe(small(), progress=lambda stage, done, total, rate: seen.setdefault(stage, []).append((done, total)))
    assert {stage: max(steps) for stage, steps in seen.items()} == {
        "modes": (6, 6),
        "curves": (2, 2),
        "bridges": (4, 4),
        "scores": (2, 2),
    }


def test_curves_do_not_depend_on_how_many_are_trained_together(monkeypatch):
    """The recipe has batch norm; a GPU trains its curves in groups, a CPU one by one, and their keys are the same."""
    pairs, recipe = [(0, 1), (0, 2)], replace(small(), mode=replace(small().mode, epochs=0))
    alone = Run(recipe)
    together = Run(replace(recipe, together=2))
    monkeypatch.setattr(Local, "device", "cuda")  # as a GPU would be asked to; the work is done here
    graph = together.graph([Pin(i, j) for i, j in pairs])
    assert [len(job.nodes) for wave in graph.waves() for job in graph.jobs(wave)] == [2, 1, 2]
    for i, j in pairs:
        assert alone.load(PointMember(i, j)).id == together.load(PointMember(i, j)).id


@pytest.mark.slow
def test_modes_are_aligned_where_the_recipe_says_so(tmp_path):
    recipe = replace(small(), modes=2, control=False, align="weights")
    folder = RunFolder(tmp_path / "run")
    begin(folder, recipe, 0)
    result = run_recipe(recipe, folder=folder)
    assert "aligned 1" in result.trained
    weights, meta = folder.read("aligned/1")
    assert meta["difference"] < 1e-6
    assert meta["quality"][1] > meta["quality"][0]
    assert folder.places("aligned") == ["aligned/1"]
    # The curve's end is the aligned mode, which is the same function as the mode that was trained.
    inputs = folder.meta("curves/0-1")["inputs"]
    assert (list(inputs), inputs["aligned/1"]) == (["modes/0", "aligned/1"], meta["bits"])
    assert run_recipe(recipe, folder=folder).trained == []
    write_page(folder)
    assert "outputs are unchanged to" in (tmp_path / "run" / "report.html").read_text()
    # What is exported is what was asked: the aligned modes.
    ensemble, _ = ensemble_of(folder, ["mode-0", "mode-1"])
    assert torch.equal(ensemble.bases[1].head.weight, weights["head.weight"])


def test_the_bits_that_were_recorded_before_members_and_runs_were_rebuilt(tmp_path: Path) -> None:
    here = torch.__version__, torch.backends.cpu.get_cpu_capability()
    if here != (RECORDED["torch"], RECORDED["cpu"]):
        pytest.skip(f"recorded with torch {RECORDED['torch']} on {RECORDED['cpu']}: elsewhere the bits are others")
    folder = RunFolder(tmp_path)
    run_recipe(tiny(), folder=folder)
    assert {place: folder.meta(place).get("bits") for place in RECORDED["hashes"]} == RECORDED["hashes"]


def test_a_run_is_the_librarys_functions_with_seeds_by_name() -> None:
    """The same by hand, on whatever machine: the graph adds nothing to what the functions do."""
    recipe, seed = tiny(), 3
    images, spec = noisy_digits(recipe.data.noise), spec_of("digits", "bn", 10)
    train, valid = images.part(0, 40), Loader(images.part(40, 70), 256)

    def batches(*names: str | int) -> Loader:
        return Loader(train, 20, shuffle=True, seed=seeds.seed_for(seed, *names, "batches"))

    def options(stage: str, *names: str | int) -> dict[str, Any]:
        return {"config": replace(recipe.training(stage), seed=seeds.seed_for(seed, *names)), "valid": valid}

    def by_hand() -> tuple[Mode, Mode, dict[str, torch.Tensor]]:
        nets = [ResNet(spec, seeds.generator(seed, "mode", k)) for k in (0, 1)]
        modes = [fit_mode(nets[k], batches("mode", k), **options("mode", "mode", k)) for k in (0, 1)]
        net = ResNet(spec, seeds.generator(seed, "net"))
        curve = fit_curve(net, *modes, batches("curve", 0, 1), **options("curve", "curve", 0, 1))
        slim, own = recipe.slim("small"), seeds.seed_for(seed, "I-0-1")
        plan = {"bridge": plan_bridge(net, curve, train.images[:2], slim=slim, name="I-0-1-small", seed=own)}
        fitted = fit_bridges(net, plan, batches("bridges"), mixup=recipe.mixup, **options("bridge", "bridges"))
        return modes[1], curve.at(0.5), fitted["bridge"].state_dict()

    mode, middle, weights = by_hand()  # on one core, as in a run
    run = Run(recipe, seed=seed)
    assert run.load(ModeMember(1)).id == mode.id
    assert run.load(PointMember(0, 1)).id == middle.id
    assert trees.fingerprint(run.load(parse_member("I-0-1-small")).state_dict()) == trees.fingerprint(weights)
