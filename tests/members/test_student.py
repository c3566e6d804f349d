"""Students as members: who teaches them, what they cost, and what becomes of them when their teachers change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modebridge import Mode, seeds
from modebridge.members import ModeMember, StudentMember, base_epochs, members_of, parse_member, row_plans
from modebridge.objectives import StudentPlan
from modebridge.runs import Run, RunFolder, begin, read_answers
from modebridge.training import fit_students
from tests.members.one_run import SEED, finished, recipe


def test_names_and_rows() -> None:
    wanted = recipe(("students", "distilled-1", "distilled"))
    names = [member.name for member in members_of(wanted)]
    students = ["distilled-0", "distilled-1", "student-labels", "student-2"]
    assert [name for name in names if name.startswith(("distilled", "student"))] == students
    assert [parse_member(name).name for name in names] == names
    rows = [row.name for row in row_plans(wanted) if "distilled" in row.name or "labels" in row.name]
    assert rows == [
        "distilled network",
        "distilled network, start 1",
        "cascade of the distilled network and two more",
        "one network, on mixed labels",
        "distilled from two networks",
    ]
    assert not any("distilled" in row.name for row in row_plans(recipe()))
    # Of as many modes as there are: the same weights.
    assert StudentMember(0, "modes", 3).nodes(wanted) == (StudentMember(),)
    assert StudentMember().place == "students/0-modes"


def test_each_has_the_weights_that_the_library_gives() -> None:
    """By hand: the same start, batches and teachers, trained one by one."""
    run, answers = finished()
    setting, modes = run.setting, [run.load(ModeMember(k)) for k in range(3)]
    teachers = {"distilled-0": modes, "student-2": modes[:2], "student-labels": []}
    start = Mode.from_module(setting.network.build(seeds.generator(SEED, "student", 0)))
    config = replace(run.recipe.training("mode"), epochs=2, seed=seeds.seed_for(SEED, "students"), mixup=1.0)
    for name, some in teachers.items():
        plan = StudentPlan(setting.net, start, tuple(some))
        alone = fit_students(setting.net, {name: plan}, setting.data.train("students"), config=config)[name]
        assert run.load(parse_member(name)).id == alone.id, name
    assert len({run.load(parse_member(name)).id for name in (*teachers, "distilled-1")}) == 4
    assert answers.cost(["distilled-0"]).relative_flops == 1.0


def test_training_is_counted() -> None:
    """A student of m modes: their training, and 2 epochs of 1 + m / 3 networks, a teacher's pass being a third."""
    run, _ = finished()
    epochs = run.recipe.mode.epochs
    assert base_epochs([ModeMember(0)], run.setting) == pytest.approx(epochs)
    assert base_epochs([StudentMember()], run.setting) == pytest.approx(3 * epochs + 2 * (1 + 3 / 3))
    assert base_epochs([StudentMember(0, "labels")], run.setting) == pytest.approx(2)
    both = base_epochs([StudentMember(), StudentMember(0, "modes", 2)], run.setting)
    assert both == pytest.approx(3 * epochs + 2 * (2 + 3 / 3)), "teachers that they share run once"


def test_a_student_of_modes_that_were_replaced_is_left_out(tmp_path: Path) -> None:
    folder, modes = RunFolder(tmp_path / "run"), [ModeMember(0), ModeMember(1)]
    settings = replace(recipe(("distilled",)), modes=2)
    begin(folder, settings, 3)
    Run(settings, seed=3, folder=folder).answers([*modes, StudentMember()])
    assert "distilled-0" in read_answers(folder).test
    others = Run(settings, seed=4)
    Run(settings, seed=3, folder=folder, given={k: others.load(mode) for k, mode in enumerate(modes)}).answers(modes)
    assert "distilled-0" not in read_answers(folder).test
