"""The demo's pipeline, small: every stage runs, the table is whole, the same seed gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modebridge import trees
from modebridge.data import Loader
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.members import CurveWeights
from modebridge.recipes import digits, find_recipe
from modebridge.report import closed_gap
from modebridge.runs import Local, Run, run_recipe
from modebridge.scoring import evaluate, surprisals
from tests.runs.small import finished, small


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run_recipe(small(), folder=finished(tmp_path_factory.mktemp("digits") / "run"))


def test_every_row_is_there_and_costs_what_it_should(result):
    names = [row.name for row in result.rows]
    assert names == [
        "DE-1",
        "DE-1 + 1 bridge I",
        "DE-1 + 2 bridges I",
        "DE-1 + 1 label control",
        "DE-2 cascade x1.15",
        "DE-3 cascade x1.5",
        "DE-2",
        "DE-2 + 1 bridge II",
        "DE-3",
        "DE-1 + midpoint",
        "DE-2 + midpoint",
    ]
    rows = {row.name: row for row in result.rows}
    assert rows["DE-1"].scores.dee == pytest.approx(1)
    assert [rows[f"DE-{m}"].scores.cost.relative_flops for m in (1, 2, 3)] == [1, 2, 3]
    assert 1.0 < rows["DE-1 + 1 bridge I"].scores.cost.relative_flops < 1.1
    extra = [rows[name].scores.cost.relative_params - 1 for name in ("DE-1 + 1 bridge I", "DE-1 + 2 bridges I")]
    assert extra[1] == pytest.approx(2 * extra[0])
    for scores in (row.scores for row in result.rows):
        assert scores.intervals["nll"][0] <= scores.nll <= scores.intervals["nll"][1]


def test_splits_do_not_overlap_and_temperatures_are_from_validation(result):
    splits = result.setting.data.splits
    parts = [splits.train, splits.valid, splits.test]
    assert [len(part) for part in parts] == [60, 60, 200]
    keys = [{image.numpy().tobytes() for image in part.images} for part in parts]
    assert not keys[0] & keys[1]
    assert not keys[0] & keys[2]
    assert not keys[1] & keys[2]
    ensemble = Ensemble(result.setting.net, [result.mode(0), result.mode(1)]).calibrate(Loader(splits.valid, 256))
    row = next(row for row in result.rows if row.name == "DE-2")
    assert row.scores.temperature == pytest.approx(float(ensemble.temperature))
    assert row.scores.nll == pytest.approx(evaluate(ensemble, Loader(splits.test, 256)).nll)


@pytest.mark.slow
def test_the_demo_keeps_its_promises_on_one_seed():
    """The full recipe: a bridge closes part of the gap, heads most of it, and a type II bridge improves DE-2."""
    nll = {row.name: row.scores.nll for row in run_recipe(digits()).rows}
    assert closed_gap(nll["DE-1"], nll["DE-1 + 1 bridge I"], nll["DE-2"]) > 0.25
    assert closed_gap(nll["DE-1"], nll["DE-1 + 3 heads (others)"], nll["DE-2"]) > 0.75
    assert nll["DE-2 + 1 bridge II"] < nll["DE-2"]


@pytest.mark.slow
def test_same_seed_same_bits_other_seed_other_bits(result):
    def bits(run):
        pins = {pair: trees.fingerprint(*run.curve(*pair).pins) for pair in run.recipe.curves()}
        return [run.mode(k).id for k in range(3)], pins, trees.fingerprint(run.table.test), run.rows

    assert bits(run_recipe(small())) == bits(result)
    assert run_recipe(small(), seed=1).mode(0).id != result.mode(0).id


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


def test_unknown_recipe_and_too_few_modes():
    with pytest.raises(ModebridgeError, match="did you mean digits"):
        find_recipe("digit")
    with pytest.raises(ModebridgeError, match="at least 2 modes, but got 1"):
        replace(small(), modes=1)
    with pytest.raises(ModebridgeError, match=r"to be a known data set, folder:PATH or FILE.py:FUNCTION, but got"):
        run_recipe(replace(small(), data=replace(small().data, name="mnist")))


def test_intervals_of_rows_are_paired_over_test_images(result):
    """Against the plain way: draw images, take the means, form the difference and the ratio."""
    rows, answers = {row.name: row for row in result.rows}, result.table
    labels = answers.test_labels
    one, bridged, two = (
        surprisals(answers.calibrated(rows[name].members), labels).numpy()
        for name in ("DE-1", "DE-1 + 1 bridge I", "DE-2")
    )
    drawn = np.random.default_rng(0).integers(len(one), size=(2000, len(one)))
    gap = (one - two)[drawn].mean(axis=1)
    low, high = rows["DE-2"].scores.intervals["gain"]
    wanted = np.quantile(gap, [0.025, 0.975])
    assert [low, high] == pytest.approx(wanted, abs=0.15 * (wanted[1] - wanted[0]))
    assert low <= one.mean() - two.mean() <= high
    closed = rows["DE-1 + 1 bridge I"].scores.intervals.get("closed")
    assert (closed is None) == (low <= 0)
    if closed is not None:
        wanted = np.quantile((one - bridged)[drawn].mean(axis=1) / gap, [0.025, 0.975])
        assert list(closed) == pytest.approx(wanted, abs=0.15 * (wanted[1] - wanted[0]))
    counts = np.bincount(labels) / len(labels)
    assert answers.guess_nll == pytest.approx(-(counts * np.log(counts)).sum())


def test_curves_do_not_depend_on_how_many_are_trained_together(monkeypatch):
    """The recipe has batch norm; a GPU trains its curves in groups, a CPU one by one, and their keys are the same."""
    pairs, recipe = [(0, 1), (0, 2)], replace(small(), mode=replace(small().mode, epochs=0))
    alone = Run(recipe)
    together = Run(replace(recipe, together=2))
    monkeypatch.setattr(Local, "device", "cuda")  # as a GPU would be asked to; the work is done here
    graph = together.graph([CurveWeights(i, j) for i, j in pairs])
    assert [len(job.nodes) for job in graph.missing(together.store)] == [2, 1, 2]
    for i, j in pairs:
        assert alone.curve(i, j).at(0.5).id == together.curve(i, j).at(0.5).id
