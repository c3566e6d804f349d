"""`modebridge bench` as a user meets it: small networks, little time; what the times are is not the point."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from modebridge import ModebridgeError
from modebridge.cli import bench
from modebridge.cli.app import app
from modebridge.cli.bench import candidates_for
from modebridge.members import HeadsMember, parse_member
from modebridge.recipes import find_recipe, to_toml
from modebridge.runs import setting_for

QUICK = ["--device", "cpu", "--backends", "eager", "--seconds", "0.01", "--batch"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def refused(*arguments):
    result = invoke(*arguments)
    assert isinstance(result.exception, ModebridgeError), result.output
    return str(result.exception)


def test_names_and_members():
    setting = setting_for(find_recipe("digits"))
    found, shape = candidates_for(setting)
    assert shape == (1, 8, 8)
    made = {one.name: one.make() for one in found if "head" not in one.name}
    assert {name: (len(whole.bases), len(whole.bridges)) for name, whole in made.items()} == {
        "DE-1": (1, 0),
        "DE-1 + 1 bridge I": (1, 1),
        "DE-1 + 2 bridges I": (1, 2),
        "DE-1 + 3 bridges I": (1, 3),
        "DE-2": (2, 0),
        "DE-2 + 1 bridge II": (2, 1),
        "DE-3": (3, 0),
        "DE-3 + 3 bridges II": (3, 3),
        "DE-4": (4, 0),
        "DE-4 + 6 bridges II": (4, 6),
    }
    one = candidates_for(setting_for(replace(find_recipe("digits"), modes=2, methods=())))[0]
    assert [candidate.name for candidate in one] == ["DE-1", "DE-1 + 1 bridge I", "DE-2", "DE-2 + 1 bridge II"]


def test_a_recipe_without_training(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("os.getloadavg", lambda: (40.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    result = invoke("digits", *QUICK, "1,2", "--only", "DE-2,DE-1 + 3 bridges I")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    for text in ("eager, batch 1", "eager, batch 2", "DE-1", "DE-2", "x2.000", "x1.148", "torch", "1 thread,"):
        assert text in shown
    assert "DE-3" not in shown
    said = " ".join(result.stderr.split())
    for text in ("busy: load 40.0 on 4 cores", "6 rows, at least 0 s", "eager: DE-2", "eager: batch 2"):
        assert text in said


def test_a_folder_gets_its_tables(tmp_path):
    recipe = replace(find_recipe("digits"), modes=2, methods=())
    (tmp_path / "recipe.toml").write_text(to_toml(recipe, 0))
    result = invoke(tmp_path, *QUICK, "1", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    kept = json.loads((tmp_path / "bench" / "cpu.json").read_text())
    assert record == {name: value for name, value in kept.items() if name != "hash"}
    names = ["DE-1", "DE-1 + 1 bridge I", "DE-2", "DE-2 + 1 bridge II"]
    assert [(row["name"], row["backend"], row["batch"]) for row in record["rows"]] == [(n, "eager", 1) for n in names]
    for row in record["rows"]:
        seconds = row["seconds"]
        assert 0 < row["fastest"] <= seconds["low"] <= seconds["median"] <= seconds["high"]
        assert row["images_per_second"] == pytest.approx(row["batch"] / seconds["median"])
    assert {"made", "torch", "modebridge", "machine", "device", "threads", "precision", "load"} <= record.keys()
    # Some rows do not replace all rows.
    assert invoke(tmp_path, *QUICK, "2", "--only", "DE-2", "--json").exit_code == 0
    assert kept == json.loads((tmp_path / "bench" / "cpu.json").read_text())


def test_bridges_with_several_heads_have_rows(tmp_path):
    """Those of the recipe, named as in its results but for commas, with the FLOPs of the members."""
    recipe = replace(find_recipe("digits"), methods=("heads", "heads-0-midpoints+labels-medium", "heads-1-mean-small"))
    rows = {row.name.replace(",", ""): parse_member(row.members[-1]) for row in HeadsMember.rows(recipe)}
    (tmp_path / "recipe.toml").write_text(to_toml(recipe, 0))
    result = invoke(tmp_path, *QUICK, "2", "--only", ",".join(rows), "--json")
    assert result.exit_code == 0, result.output
    found = {row["name"]: row["flops"] for row in json.loads(result.stdout)["rows"]}
    assert list(found) == ["DE-1", *rows]
    setting = setting_for(recipe)
    for name, member in rows.items():
        assert found[name] == pytest.approx(1 + member.cost(setting).flops / setting.base_cost.flops)
    assert [one.make().bridges[0].heads for one in candidates_for(setting)[0] if one.name in rows] == [3, 4, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digits", "--batch", "0"], "Expected --batch to list numbers from 1"),
        (["digits", "--batch", "a"], "Expected --batch to list numbers from 1"),
        (["digits", "--batch", ","], "Expected --batch to list numbers from 1"),
        (["digits", "--batch", "9" * 20], "Expected --batch to list numbers from 1 to 1,000,000"),
        (["digits", "--device", "tpu"], "Expected --device to be auto, cpu or cuda"),
        (["digits", "--device", "cpu", "--backends", "graphs"], "Expected backends for device 'cpu', but got 'graphs'"),
        (["digits", "--device", "cpu", "--backends", ""], "Expected --backends to list names"),
        (["digits", "--device", "cpu", "--only", "DE-9"], "rows of the table, but got 'DE-9'; did you mean DE-"),
        (["digits", "--device", "cpu", "--only", ","], "Expected --only to list names"),
        (["digits", "--seconds", "nan"], "Expected --seconds to be above 0"),
        (["digits", "--device", "cpu", "--bf16"], "Expected a CUDA device for --bf16"),
        (["nothing"], "Expected a known recipe"),
        (["src"], "to be a run folder"),
        (["no.onnx", "--device", "cpu", "--only", "DE-1"], "which can only run as a whole on the CPU"),
        (["no.onnx", "--device", "cpu"], "to be a file, but it does not exist"),
    ],
)
def test_mistakes_are_a_sentence(arguments, said):
    assert said in refused(*arguments)


def test_cuda_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "Expected a CUDA device" in refused("digits", "--device", "cuda")


def test_numbers_of_any_size_have_three_digits():
    assert [bench._ms(seconds) for seconds in (2.0, 0.1234, 0.00001234)] == ["2000", "123", "0.0123"]
    assert bench._sizes("8, 1,8") == [8, 1]
