"""`modebridge bench`: one table in little time; times are what they are, whatever the machine does."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
from typer.testing import CliRunner

from modebridge import ModebridgeError
from modebridge.cli import bench
from modebridge.cli.app import app
from modebridge.cli.bench import measure
from modebridge.deploy import export
from modebridge.members import parse_member
from modebridge.recipes import find_recipe, to_toml
from modebridge.runs import setting_for
from tests.deploy.scenes import images, tied


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def rows_of(*arguments):
    return json.loads(invoke(*arguments, "--json").stdout)["rows"]


@pytest.fixture
def quick(monkeypatch):
    """Little time, and whatever ONNX Runtime would take is left out."""
    monkeypatch.setattr(bench, "SECONDS", 0.01)
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    monkeypatch.setenv("COLUMNS", "120")


def test_a_recipe_without_training(quick, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (999.0, 0.0, 0.0))
    result = invoke("digits", "--device", "cpu", "--batch", "1,2")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    for text in ("one network torch 1 ", "one network + 3 heads torch 2 ", "x1.000 x1.000", "x1.039", "1 thread"):
        assert text in shown
    said = " ".join(result.stderr.split())
    for text in ("load average, 999.0, is", "Timing torch, batch 1 ...", "batch 2 ...", "pip install -e '.[onnx]'"):
        assert text in said


def test_a_folder_and_its_numbers(quick, tmp_path):
    recipe = replace(find_recipe("digits"), modes=2, methods=("paper",))
    (tmp_path / "recipe.toml").write_text(to_toml(recipe, 0))
    result = invoke(tmp_path, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    names = ["one network", "one network + 1 bridge", "two networks"]
    assert [(row["name"], row["batch"]) for row in record["rows"]] == [(name, b) for b in (1, 64) for name in names]
    for row in record["rows"]:
        assert row["images_per_second"] == pytest.approx(row["batch"] / row["seconds"])
        assert row["relative_time"] > 0
    flops = [row["relative_flops"] for row in record["rows"][:3]]
    member, setting = parse_member("I-0-1-small"), setting_for(recipe)
    assert flops == pytest.approx([1, 1 + member.cost(setting).flops / setting.base_cost.flops, 2])
    assert {"made", "torch", "modebridge", "machine", "device", "threads", "load"} <= record.keys()
    assert [file.name for file in tmp_path.iterdir()] == ["recipe.toml"], "nothing is written"


@pytest.mark.slow
def test_onnx_runtime_beside_torch(monkeypatch):
    monkeypatch.setattr(bench, "SECONDS", 0.01)
    rows = rows_of("digits", "--device", "cpu", "--batch", "2")
    assert [row["backend"] for row in rows] == ["torch"] * 3 + ["onnx"] * 3


def test_files(quick, tmp_path):
    """A plain file is one row without a unit of time; a cascade is its first network, then all members."""
    export(tied(), tmp_path / "a.pt2", images(1))
    export(tied(), tmp_path / "b.onnx", images(1), threshold=0.5)
    plain, cascade = (rows_of(tmp_path / name, "--batch", "2") for name in ("a.pt2", "b.onnx"))
    (row,) = plain
    assert (row["name"], row["backend"], row["relative_time"]) == ("mode-0 + bridge", "torch", None)
    assert [(row["name"], row["backend"]) for row in cascade] == [("mode-0 alone", "onnx"), ("mode-0 + bridge", "onnx")]
    assert cascade[0]["relative_time"] == cascade[0]["relative_flops"] == 1
    assert cascade[1]["relative_flops"] == plain[0]["relative_flops"] > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *((["digits", "--batch", bad], "Expected --batch to list numbers from 1") for bad in ("0", "a", ",", "9" * 20)),
        (["digits", "--device", "tpu"], "Expected device to be auto, cpu or cuda"),
        (["nothing"], "Expected a known recipe"),
        (["src"], "to be a run folder"),
        (["no.onnx", "--device", "cuda"], "Expected the CPU for 'no.onnx'"),
        (["no.onnx"], "to be a file, but it does not exist"),
    ],
)
def test_mistakes_are_a_sentence(arguments, said):
    result = invoke(*arguments)
    assert isinstance(result.exception, ModebridgeError), result.output
    assert said in str(result.exception)


@pytest.mark.parametrize(
    ("times", "order"),
    [
        # Once each untimed; then turns of an eighth of a second, or of one call, in this order and back.
        ({"a": 1 / 16, "b": 1.0}, "ab" + "aab" + "baa" + "aab" + "baa" + "aab"),
        # On a busy machine a call may take as long as all of them should: each is timed once, and no more.
        ({"a": 20.0, "b": 20.0, "c": 20.0}, "abc" * 2),
    ],
)
def test_known_times_in_turns(times, order):
    """By a clock that only work moves."""
    done = []
    found = measure([partial(done.append, name) for name in times], 5.0, lambda: sum(times[name] for name in done))
    assert found == [(seconds, seconds / times["a"]) for seconds in times.values()]
    assert "".join(done) == order
