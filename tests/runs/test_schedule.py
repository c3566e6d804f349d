"""Predicted times: a schedule is what any list schedule must be; jobs, their needs and their work are a plan's."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from modebridge.cli.app import app
from modebridge.errors import ModebridgeError
from modebridge.members import Setting, members_of, parse_member
from modebridge.runs import Local, Run, RunFolder
from modebridge.runs.logits import Logits
from modebridge.runs.on_ray import OnRay
from modebridge.runs.run import Memory
from modebridge.runs.schedule import Task, longest_path, schedule, tasks_of, useful_devices
from modebridge.runs.throughput import _shortened, measured_rates
from tests.runs.damaging import tiny
from tests.runs.small import finished, small


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_obeys_its_graph_and_graham(seed: int) -> None:
    chance = random.Random(seed)
    tasks: list[Task] = []
    for k in range(chance.randrange(1, 25)):
        needs = tuple(task.title for task in tasks if chance.random() < 0.15)
        tasks.append(Task(str(k), "", chance.uniform(0.1, 5.0), needs))
    path = sum(task.seconds for task in longest_path(tasks))
    busy = sum(task.seconds for task in tasks)
    for devices in (1, 2, 3, 100):
        made = schedule(tasks, devices)
        ends = {task.title: made.begins[task.title] + task.seconds for task in tasks}
        assert made.seconds == pytest.approx(max(ends.values()))
        for task in tasks:
            begin = made.begins[task.title]
            assert all(ends[need] <= begin for need in task.needs)
            assert sum(made.begins[t.title] <= begin < ends[t.title] for t in tasks) <= devices
        # Graham (1969): within these bounds whatever the order.
        assert max(path, busy / devices) <= made.seconds + 1e-9
        assert made.seconds <= busy / devices + path * (1 - 1 / devices) + 1e-9
    assert schedule(tasks, 1).seconds == pytest.approx(busy)
    assert schedule(tasks, 100).seconds == pytest.approx(path)
    assert schedule(tasks, useful_devices(tasks)).seconds <= 1.01 * path


@pytest.mark.slow
def test_tasks_are_the_jobs_that_are_missing(tmp_path: Path) -> None:
    setting = Run(small()).setting
    tasks = {task.title: task for task in tasks_of(setting, Memory(), {}, {"": 1.0, "modes": 2.0})}
    assert tasks["curves 0-1"].needs == ("modes 0", "modes 1"), "and not mode 2"
    epochs, images = small().mode.epochs, 60
    assert tasks["modes 0"].seconds == 3 * setting.base_cost.flops * epochs * images / 2.0
    counts = {"modes": 3, "curves": 2, "bridges": 1, "logits": 1, "labels": 1, "profiles": 2, "samples": 1}
    assert {kind: sum(task.kind == kind for task in tasks.values()) for kind in counts} == counts
    assert not tasks_of(setting, finished(tmp_path), {}, {"": 1.0})


@pytest.mark.slow
def test_rates_are_those_of_what_is_trained() -> None:
    rates = measured_rates(Setting(tiny(), device="cpu"))
    assert set(rates) == {"modes", "curves", "bridges", ""}
    assert rates[""] == min(rates.values())
    assert 1e6 < rates[""] < 1e13
    named = replace(tiny(), modes=4, methods=("heads-2-others-small",))
    assert _shortened(named).modes == 3
    assert set(measured_rates(Setting(named, device="cpu"))) == {"modes", "curves", "bridges", "heads", ""}


@pytest.mark.slow
def test_bridges_made_one_at_a_time_have_the_same_bits() -> None:
    class Alone(Local):
        most = 1

    wanted = [Logits(member) for member in members_of(tiny())]
    together, alone = Run(tiny()), Run(tiny(), executor=Alone())
    assert max(len(job.stages) for job in together.plan(wanted).missing(Memory()) if job.kind.trained) == 3
    assert {len(job.stages) for job in alone.plan(wanted).missing(Memory()) if job.kind.trained} == {1}
    assert [len(job.stages) for job in alone.plan(wanted).missing(Memory()) if not job.kind.trained] == [6]
    for run in (together, alone):
        run.make(wanted)
    places = together.plan(wanted).stages
    assert {p: together.store.meta(p)["hash"] for p in places} == {p: alone.store.meta(p)["hash"] for p in places}


def test_what_depends_on_bits_that_are_not_made_yet_is_left_for_the_next_time(tmp_path: Path) -> None:
    """Mode 1 is gone; whether its curve must be made again depends on how it comes out."""
    run = Run(small(), folder=finished(tmp_path))
    folder = RunFolder(tmp_path)
    for place in ("modes/1", "bridges/I-0-1-small"):
        (tmp_path / place / "meta.json").unlink()
    plan = run.plan([Logits(member) for member in members_of(small())])
    assert [job.title for job in plan.runnable_jobs(folder)] == ["modes 1"]
    other = replace(small(), curve=replace(small().curve, lr=0.01))
    plan = Run(other, folder=folder).plan([Logits(parse_member("I-0-1-small"))])
    titles = [job.title for job in plan.runnable_jobs(folder)]
    assert titles == ["modes 1", "curves 0-1", "bridges I-0-1-small", "logits I-0-1-small"]


@pytest.mark.slow
def test_the_plan_of_imagenet_says_where_more_gpus_are_useless() -> None:
    def plan(*more: str) -> dict[str, object]:
        arguments = ["plan", "in1k", "--gpus", "64", "--tflops", "70", "--json", *more]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)  # type: ignore[no-any-return]

    whole, split = plan(), plan("--per-stage", "9")
    for one in (whole, split):
        rows = {row["devices"]: row for row in one["schedules"]}  # type: ignore[attr-defined]
        assert list(rows) == [1, 2, 4, 8, 16, 32, 64]
        assert rows[64]["seconds"] == pytest.approx(one["longest_seconds"])
        assert rows[1]["seconds"] == pytest.approx(rows[1]["busy"])
    assert whole["enough"] == 11
    assert split["longest_seconds"] < 0.6 * whole["longest_seconds"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("plan", "digits", "--gpus", "0"), "--gpus to be from 1 to"),
        (("plan", "digits", "--tflops", "-1"), "--tflops to be a rate"),
        (("plan", "digits", "--per-stage", "0"), "--per-stage to be at least 1"),
        (("run", "digits", "--shared", "x"), "--shared only with --on"),
        (("run", "digits", "--gpus-per-stage", "0.5"), "--gpus-per-stage only with --on"),
        (("run", "digits", "--on", ""), "--on to name a cluster"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: tuple[str, ...], sentence: str) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, ModebridgeError)
    assert sentence in str(result.exception)


def test_two_drivers_on_one_folder_are_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path).alone():
        result = CliRunner().invoke(app, ["run", "digits", "--out", str(tmp_path), "--on", "ray"])
    assert isinstance(result.exception, ModebridgeError)
    assert "Expected no other run to use" in str(result.exception)


def test_without_ray_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ModebridgeError, match=r'pip install "modebridge\[cluster\]"'):
        OnRay(recipe=tiny())
