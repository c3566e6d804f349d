"""Curves of a run between students: who teaches them, that other curves are what they were, and the warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modebridge import fit_taught_curves, seeds, trees
from modebridge.members import (
    BridgeMember,
    CurveWeights,
    ModeMember,
    PointMember,
    TaughtCurveWeights,
    base_epochs,
    curve_and_ends,
)
from modebridge.members.mode_member import ModeWeights
from modebridge.members.student_member import StudentWeights
from modebridge.recipes import Recipe
from modebridge.runs import Run
from tests.runs.damaging import tiny


def recipe(**changes: object) -> Recipe:
    one = tiny()
    return replace(one, curve=replace(one.curve, epochs=1), student_epochs=1, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(recipe(base="distilled"), seed=3)


def test_the_teachers_of_the_ends_teach_the_curve_as_the_library_does(run: Run) -> None:
    curve = run.curve(0, 1)
    assert TaughtCurveWeights(0, 1).parents(run.recipe) == (
        *(StudentWeights(0), StudentWeights(1)),
        *(ModeWeights(0), ModeWeights(1)),
    )
    plain = Run(recipe(), seed=3)
    assert (curve.start.id, curve.end.id) == (run.mode(0).id, run.mode(1).id)
    by_hand = fit_taught_curves(
        run.context.net,
        {"0-1": (run.mode(0), run.mode(1))},
        [plain.mode(0), plain.mode(1)],
        run.context.data.train("taught curves"),
        mixup=run.recipe.student_mixup,
        config=replace(run.recipe.curve, seed=seeds.seed_for(3, "taught curves")),
    )["0-1"]
    assert trees.fingerprint(*curve.pins, *curve.statistics.values()) == trees.fingerprint(
        *by_hand.pins, *by_hand.statistics.values()
    )


def test_curves_on_labels_are_what_they_were() -> None:
    for base in ("sgd", "swa"):
        one = recipe(base=base)
        (curve, *_) = curve_and_ends(0, 1, one)
        assert type(curve) is CurveWeights
        context = Run(one, seed=3).context
        assert sorted(curve.ingredients(context)) == ["data", "pin_start", "seed", "training"]
    (on_students, *_) = curve_and_ends(0, 1, recipe(), "distilled")
    assert on_students == TaughtCurveWeights(0, 1, "distilled")
    assert on_students.place == CurveWeights(0, 1, "distilled").place


def test_training_is_counted() -> None:
    """A taught curve of one epoch: itself, and each of its two teachers a third; its ends and teachers before it."""
    context = Run(recipe(base="distilled"), seed=3).context
    ends = base_epochs([ModeMember(0), ModeMember(1)], context)
    assert base_epochs([PointMember(0, 1)], context) == pytest.approx(ends + 1 + 2 / 3)


def test_labels_between_students_are_warned_of(run: Run) -> None:
    on_labels = Run(recipe(base="distilled", curve_loss="labels"), seed=3)
    with pytest.warns(UserWarning, match="Curve 0-1 learns labels between modes that learned from teachers"):
        curve = on_labels.curve(0, 1)
    assert curve.start.id == run.mode(0).id
    assert trees.fingerprint(*curve.pins) != trees.fingerprint(*run.curve(0, 1).pins)
    changed = [r.plan([BridgeMember("I", 0, 1).artefacts(r.recipe)[0]]).stages for r in (run, on_labels)]
    keys = [{place: stage.key for place, stage in stages.items()} for stages in changed]
    assert {place for place in keys[0] if keys[0][place] != keys[1].get(place)} == {"curves/0-1", "bridges/I-0-1-small"}
