"""Students as members: who teaches them, what they cost, and as modes under curves and bridges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from modebridge import Ensemble, Mode, seeds
from modebridge.members import (
    BridgeMember,
    DistilledMember,
    ModeMember,
    StudentMember,
    base_epochs,
    members_of,
    parse_member,
    row_plans,
)
from modebridge.recipes import Recipe
from modebridge.runs import Run, RunFolder, begin, read_answers
from modebridge.training import fit_students
from tests.plans import plan_student
from tests.runs.small import tiny


def recipe(**changes: object) -> Recipe:
    one = tiny()
    short = replace(one.curve, epochs=1)
    return replace(one, curve=short, bridge=short, student_epochs=2, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(recipe(modes=3, methods=("distilled", "students", "distilled-1")), seed=3)


@pytest.fixture(scope="module")
def answers(run: Run):
    return run.answers(members_of(run.recipe))


def test_the_recipe_has_them_by_name(run: Run) -> None:
    names = [member.name for member in members_of(run.recipe)]
    students = ["distilled-0", "distilled-1", "student-labels", "student-2", "student-bridged"]
    assert [name for name in names if name.startswith(("distilled", "student"))] == students
    assert [parse_member(name).name for name in names] == names
    titles = [plan.name for plan in row_plans(run.recipe)]
    assert {"student of DE-3", "student of labels", "student of DE-1 + bridges I"} <= set(titles)
    assert not any("student" in plan.name for plan in row_plans(recipe()))


def test_each_has_the_weights_that_the_library_gives(run: Run, answers) -> None:
    """By hand: the same start, batches and teachers, trained one by one."""
    setting, settings = run.setting, run.recipe
    modes = [run.mode(k) for k in range(3)]
    bridges = [run.load(BridgeMember("I", 0, j)).bridge for j in (1, 2)]
    teachers = {
        "distilled-0": modes,
        "student-2": modes[:2],
        "student-labels": [],
        "student-bridged": [Ensemble(setting.net, modes[:1], bridges)],
    }
    start = Mode.from_module(setting.network.build(seeds.generator(3, "student", 0)))
    config = replace(settings.training("mode"), epochs=2, seed=seeds.seed_for(3, "students"))
    for name, some in teachers.items():
        plan = plan_student(setting.net, some, start=start)
        alone = fit_students(setting.net, {name: plan}, setting.data.train("students"), config=config)[name]
        assert run.load(parse_member(name)).id == alone.id, name
    assert len({run.load(parse_member(name)).id for name in (*teachers, "distilled-1")}) == 5
    assert torch.isfinite(answers.test["student-bridged"]).all()
    assert answers.cost(["distilled-0"]) == (1.0, 1.0)


def test_training_is_counted(run: Run) -> None:
    """A student of m modes: their training, and 2 epochs of 1 + m / 3 networks, a teacher's pass being a third."""
    epochs = run.recipe.mode.epochs
    assert base_epochs([ModeMember(0)], run.setting) == pytest.approx(epochs)
    assert base_epochs([DistilledMember(0)], run.setting) == pytest.approx(3 * epochs + 2 * (1 + 3 / 3))
    assert base_epochs([StudentMember("labels")], run.setting) == pytest.approx(2)
    both = base_epochs([DistilledMember(0), StudentMember("modes", 2)], run.setting)
    assert both == pytest.approx(3 * epochs + 2 * (2 + 3 / 3)), "teachers that they share run once"


def test_a_student_of_modes_that_were_replaced_is_left_out(tmp_path) -> None:
    folder = RunFolder(tmp_path / "run")
    settings = recipe(methods=("distilled",))
    first = Run(settings, seed=3, folder=folder)
    begin(folder, settings, 3)
    first.answers([ModeMember(0), ModeMember(1), DistilledMember(0)])
    assert "distilled-0" in read_answers(folder).test
    others = Run(settings, seed=4)
    again = Run(settings, seed=3, folder=folder, given={0: others.mode(0), 1: others.mode(1)})
    again.answers([ModeMember(0), ModeMember(1)])
    assert "distilled-0" not in read_answers(folder).test
