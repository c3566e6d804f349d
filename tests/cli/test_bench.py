"""`modebridge bench`: one table in little time; times are what they are, whatever the machine does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
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


def test_a_recipe_without_training(quick):
    result = invoke("digits", "--device", "cpu", "--batch", "1,2")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    for text in ("DE-1 torch 1 ", "DE-1 + 3 heads (others) torch 2 ", "x1.000 x1.000", "x1.039", "x2.000", "1 thread"):
        assert text in shown
    said = " ".join(result.stderr.split())
    for text in ("Timing torch, batch 1 ...", "Timing torch, batch 2 ...", "pip install 'modebridge[onnx]'"):
        assert text in said


def test_a_folder_and_its_numbers(quick, tmp_path):
    recipe = replace(find_recipe("digits"), modes=2, methods=())
    (tmp_path / "recipe.toml").write_text(to_toml(recipe, 0))
    result = invoke(tmp_path, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    names = ["DE-1", "DE-1 + 1 bridge I", "DE-2"]
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu(quick):
    assert {row["backend"] for row in rows_of("digits", "--device", "cuda")} == {"torch"}


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


class Machine:
    """A clock that only work moves, so that times are known exactly; it can get slower as it goes."""

    def __init__(self, slowing=0.0):
        self.now, self.slowing, self.order = 0.0, slowing, []

    def clock(self):
        return self.now

    def work(self, name, seconds):
        def call():
            self.order.append(name)
            self.now += seconds * (1.0 + self.slowing * self.now)

        return call


def test_known_times_in_turns():
    machine = Machine()
    found = measure([machine.work("a", 1 / 16), machine.work("b", 1.0)], 5.0, machine.clock)
    assert found == [(1 / 16, 1.0), (1.0, 16.0)]
    # Once each untimed; then turns of an eighth of a second, or of one call, in this order and back.
    assert "".join(machine.order) == "ab" + "aab" + "baa" + "aab" + "baa" + "aab"


def test_slow_networks_take_one_round():
    """On a busy machine a call may take as long as all of them should: each is timed once, and no more."""
    machine = Machine()
    found = measure([machine.work(name, 20.0) for name in "abc"], 5.0, machine.clock)
    assert "".join(machine.order) == "abc" * 2
    assert found[2] == (20.0, 1.0)


def test_a_machine_that_slows_down_slows_both():
    machine = Machine(slowing=0.05)
    one, two = measure([machine.work("a", 1.0), machine.work("b", 1.5)], 100.0, machine.clock)
    assert two[1] == pytest.approx(1.5, rel=0.35)
    assert one[0] > 2
