"""The demo's pipeline, small: every stage runs, the table is whole, the same seed gives the same bits."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from modebridge import trees
from modebridge.data import Loader
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.members import CurveWeights
from modebridge.recipes import find_recipe
from modebridge.recipes.demo import digits
from modebridge.report import COLUMNS, Row, closed_gap, markdown_table, summary, terminal_table
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
    assert rows["DE-1"].dee == pytest.approx(1)
    assert [rows[f"DE-{m}"].relative_flops for m in (1, 2, 3)] == [1, 2, 3]
    assert 1.0 < rows["DE-1 + 1 bridge I"].relative_flops < 1.1
    extra = [rows[name].relative_params - 1 for name in ("DE-1 + 1 bridge I", "DE-1 + 2 bridges I")]
    assert extra[1] == pytest.approx(2 * extra[0])
    assert all(row.nll_interval[0] <= row.nll <= row.nll_interval[1] for row in result.rows)


def test_splits_do_not_overlap_and_temperatures_are_from_validation(result):
    splits = result.splits
    parts = [splits.train, splits.valid, splits.test]
    assert [len(part) for part in parts] == [60, 60, 200]
    keys = [{image.numpy().tobytes() for image in part.images} for part in parts]
    assert not keys[0] & keys[1]
    assert not keys[0] & keys[2]
    assert not keys[1] & keys[2]
    ensemble = Ensemble(result.net, result.modes[:2]).calibrate(Loader(splits.valid, 256))
    row = next(row for row in result.rows if row.name == "DE-2")
    assert row.temperature == pytest.approx(float(ensemble.temperature))
    assert row.nll == pytest.approx(evaluate(ensemble, Loader(splits.test, 256)).cnll)


@pytest.mark.slow
def test_the_demo_keeps_its_promises_on_one_seed():
    """The full recipe: a bridge closes part of the gap, heads most of it, and a type II bridge improves DE-2."""
    nll = {row.name: row.nll for row in run_recipe(digits()).rows}
    assert closed_gap(nll["DE-1"], nll["DE-1 + 1 bridge I"], nll["DE-2"]) > 0.25
    assert closed_gap(nll["DE-1"], nll["DE-1 + 3 heads (others)"], nll["DE-2"]) > 0.75
    assert nll["DE-2 + 1 bridge II"] < nll["DE-2"]


@pytest.mark.slow
def test_same_seed_same_bits_other_seed_other_bits(result):
    def bits(run):
        return (
            [mode.id for mode in run.modes],
            {pair: trees.fingerprint(*curve.pins) for pair, curve in run.curves.items()},
            {name: trees.fingerprint(bridge.state_dict()) for name, bridge in run.bridges.items()},
            run.rows,
        )

    assert bits(run_recipe(small())) == bits(result)
    assert run_recipe(small(), seed=1).modes[0].id != result.modes[0].id


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


def test_an_equivalent_beyond_the_reference_is_a_dash(result):
    """DE-2 worse than DE-1 has no slope to go on with: `inf` is nothing to print."""
    row = replace(result.rows[0], dee=float("-inf"))
    assert markdown_table([row]).splitlines()[-1].endswith("| - |")


def test_unknown_recipe_and_too_few_modes():
    with pytest.raises(ModebridgeError, match="did you mean digits"):
        find_recipe("digit")
    with pytest.raises(ModebridgeError, match="at least 2 modes, but got 1"):
        replace(small(), modes=1)
    with pytest.raises(ModebridgeError, match=r"to be a known data set, folder:PATH or FILE.py:FUNCTION, but got"):
        run_recipe(replace(small(), data=replace(small().data, name="mnist")))


def row(name, nll, dee=1.0, **more):
    scores = {"accuracy": 0.9, "nll": nll, "ece": 0.02, "brier": 0.1, "raw_nll": nll, "raw_ece": 0.02, "raw_brier": 0.1}
    roles = {"DE-1": "one", "DE-2": "two", "DE-1 + 1 bridge I": "bridge", "DE-1 + 1 label control": "control"}
    roles |= {"DE-1 + 3 heads (others)": "heads"}
    plain = name in ("DE-1", "DE-2")
    more |= {"role": roles.get(name, ""), "family": "networks" if plain else name.rpartition(" ")[2]}
    members = tuple(f"mode-{k}" for k in range(int(name[3])))
    return Row(
        name=name,
        dee=dee,
        members=members,
        relative_flops=1.05,
        relative_params=1.08,
        temperature=1.0,
        **scores,
        **more,
    )


@pytest.mark.parametrize(
    ("two", "bridged", "message"),
    [
        (0.3, 0.35, "went 50% of the way"),
        (0.3, 0.45, "one bridge did not help"),
        (0.4, 0.35, "a second network did not help"),
        # Two networks hardly better than one, and a bridge far beyond them: no "366% of the way" out of that.
        (0.37, 0.29, "further than a whole second network did (0.370). Modes that are not fully trained"),
    ],
)
def test_the_sentence_says_what_happened(two, bridged, message):
    rows = [row("DE-1", 0.4), row("DE-1 + 1 bridge I", bridged), row("DE-1 + 1 label control", 0.38), row("DE-2", two)]
    said = summary(rows)
    assert message in said
    assert ("%" in said) == ("% of the way" in message)


def test_the_sentence_gives_no_figure_where_there_is_none():
    bridged = row("DE-1 + 1 bridge I", 2.10, dee=4.8, guess_nll=2.30)
    untrained = summary([row("DE-1", 2.25, guess_nll=2.30), bridged, row("DE-2", 2.21, guess_nll=2.30)])
    assert "not trained well enough" in untrained
    assert "2.300" in untrained
    two = row("DE-2", 0.38, gain_interval=(-0.01, 0.05))
    unsure = summary([row("DE-1", 0.4), row("DE-1 + 1 bridge I", 0.39), two])
    assert "cannot tell from zero (95 % interval -0.010 to 0.050), so there is no gap" in unsure
    for said in (untrained, unsure):
        assert "of the way" not in said
        assert "worth" not in said


def test_the_sentence_has_intervals_and_no_dee_beyond_the_ensembles_measured():
    two = row("DE-2", 0.3, gain_interval=(0.05, 0.15))
    many = row("DE-1 + 3 bridges I", 0.28, dee=7.3)
    said = summary([row("DE-1", 0.4), row("DE-1 + 1 bridge I", 0.35, dee=1.5, closed_interval=(0.3, 0.7)), two, many])
    assert "went 50% [30% to 70%] of the way" in said
    assert "is worth more than 2 networks" in said
    heads = row("DE-1 + 3 heads (others)", 0.29, closed_interval=(0.9, 1.3))
    assert "heads" not in said
    said = summary([row("DE-1", 0.4), row("DE-1 + 1 bridge I", 0.35, closed_interval=(0.3, 0.7)), two, many, heads])
    assert "DE-1 + 3 heads (others), one bridge at x1.05 that needs no curve, went 110% [90% to 130%]. In" in said
    assert "95 % intervals over the test images" in said


def test_intervals_of_rows_are_paired_over_test_images(result):
    """Against the plain way: draw images, take the means, form the difference and the ratio."""
    rows, answers = {row.name: row for row in result.rows}, result.answers
    labels = answers.test_labels
    one, bridged, two = (
        surprisals(answers.calibrated(rows[name].members), labels).numpy()
        for name in ("DE-1", "DE-1 + 1 bridge I", "DE-2")
    )
    drawn = np.random.default_rng(0).integers(len(one), size=(2000, len(one)))
    gap = (one - two)[drawn].mean(axis=1)
    low, high = rows["DE-2"].gain_interval
    wanted = np.quantile(gap, [0.025, 0.975])
    assert [low, high] == pytest.approx(wanted, abs=0.15 * (wanted[1] - wanted[0]))
    assert low <= one.mean() - two.mean() <= high
    closed = rows["DE-1 + 1 bridge I"].closed_interval
    assert (closed is None) == (low <= 0)
    if closed is not None:
        wanted = np.quantile((one - bridged)[drawn].mean(axis=1) / gap, [0.025, 0.975])
        assert list(closed) == pytest.approx(wanted, abs=0.15 * (wanted[1] - wanted[0]))
    counts = np.bincount(labels) / len(labels)
    assert rows["DE-1"].guess_nll == pytest.approx(-(counts * np.log(counts)).sum())


def test_the_table_fits_a_plain_terminal(result):
    with (console := Console(width=80, record=True, quiet=False, file=io.StringIO())).capture():
        console.print(terminal_table(result.rows, "title"))
    text = console.export_text()
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_markdown_table_has_all_columns():
    lines = markdown_table([row("DE-1", 0.4)]).splitlines()
    assert len(lines) == 3
    assert all(line.count("|") == len(COLUMNS) + 1 for line in lines)


def test_curves_do_not_depend_on_how_many_are_trained_together(monkeypatch):
    """The recipe has batch norm; a GPU trains its curves in groups, a CPU one by one, and their keys are the same."""
    pairs, recipe = [(0, 1), (0, 2)], replace(small(), mode=replace(small().mode, epochs=0))
    alone = Run(recipe)
    together = Run(replace(recipe, together=2))
    monkeypatch.setattr(Local, "device", "cuda")  # as a GPU would be asked to; the work is done here
    plan = together.plan([CurveWeights(i, j) for i, j in pairs])
    assert [len(job.stages) for job in plan.missing(together.store)] == [2, 1, 2]
    for i, j in pairs:
        assert alone.curve(i, j).at(0.5).id == together.curve(i, j).at(0.5).id
