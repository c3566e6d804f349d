"""`modebridge bench` as a user meets it: small networks, little time; what the times are is not the point."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from modebridge import ModebridgeError
from modebridge.cli import bench_command, bench_tables
from modebridge.cli.app import app
from modebridge.deploy.export import export
from modebridge.members import HeadsMember
from modebridge.nets import ResNet, spec_of
from modebridge.recipes import find_recipe, to_toml
from modebridge.runs import setting_for
from modebridge.runs.bench_entries import contenders_for, random_contenders

QUICK = ["--device", "cpu", "--batch", "1,2", "--ways", "eager", "--seconds", "0.01"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def refused(*arguments):
    result = invoke(*arguments)
    assert isinstance(result.exception, ModebridgeError), result.output
    return str(result.exception)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "recipe.toml").write_text(to_toml(find_recipe("digits"), 0))
    return tmp_path


def test_a_recipe_without_training(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = invoke("--recipe", "digits", *QUICK, "--only", "DE-2,DE-1 + 3 bridges I")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    for text in ("eager, batch 1", "eager, batch 2", "DE-1", "DE-2", "x2.000", "x1.148", "torch", "1 thread,"):
        assert text in shown
    assert "DE-3" not in shown
    assert "eager, batch 2: DE-1 + 3 bridges I takes" in shown


def test_a_folder_gets_its_tables(folder):
    result = invoke(str(folder), *QUICK, "--only", "DE-1 + 1 bridge I", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record == json.loads((folder / "bench" / "cpu.json").read_text())
    assert [(row["name"], row["batch"]) for row in record["rows"]] == [
        ("DE-1", 1),
        ("DE-1 + 1 bridge I", 1),
        ("DE-1", 2),
        ("DE-1 + 1 bridge I", 2),
    ]
    for row in record["rows"]:
        seconds = row["seconds"]
        assert 0 < row["fastest"] <= seconds["low"] <= seconds["median"] <= seconds["high"]
        assert row["images_per_second"] == pytest.approx(row["batch"] / seconds["median"])
    assert {"made", "torch", "modebridge", "machine", "device", "threads", "precision"} <= record.keys()
    table = (folder / "bench" / "cpu.md").read_text()
    assert table.count("| DE-1 + 1 bridge I |") == 2
    assert record["made"] in table


def test_bridges_with_several_heads_have_rows(tmp_path):
    """Those of the recipe, named as in its results but for commas, with the FLOPs of the members."""
    names = ("heads", "heads-0-midpoints+labels-medium", "heads-1-mean-small")
    recipe = replace(find_recipe("digits"), methods=names)
    rows = {row.name.replace(",", ""): row.members[-1] for row in HeadsMember.rows(recipe)}
    (tmp_path / "recipe.toml").write_text(to_toml(recipe, 0))
    result = invoke(str(tmp_path), "--device", "cpu", "--batch", "2", *QUICK[4:], "--only", ",".join(rows), "--json")
    assert result.exit_code == 0, result.output
    found = {row["name"]: row["flops"] for row in json.loads(result.stdout)["rows"]}
    assert list(found) == ["DE-1", *rows]
    setting = setting_for(recipe)
    for name, member in rows.items():
        assert found[name] == pytest.approx(1 + member.cost(setting).flops / setting.base_cost.flops)
    assert [one.make().bridges[0].heads for one in contenders_for(setting)[0] if one.name in rows] == [3, 4, 1]
    none = contenders_for(setting_for(replace(recipe, methods=())))[0]
    assert not any("head" in one.name for one in none)


@pytest.mark.slow
def test_a_file_is_timed_and_nothing_written(tmp_path):
    spec = spec_of("digits", "bn")
    whole = random_contenders(lambda generator: ResNet(spec, generator), torch.rand(1, *spec.image), 2)[1].make()
    export(whole, tmp_path / "fast.onnx", torch.rand(1, *spec.image))
    result = invoke(str(tmp_path / "fast.onnx"), "--device", "cpu", "--batch", "1", "--seconds", "0.01", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["name"] for row in rows] == ["DE-1", "DE-1 + 1 bridge"]
    assert [path.name for path in tmp_path.iterdir()] == ["fast.onnx"]
    for words, said in (
        (("--ways", "xyz"), "Expected ways for device 'cpu', but got 'xyz'; choose one of eager, compiled, onnx."),
        (("--ways", "onnx"), "which can only run as a whole"),
        (("--only", "DE-1"), "which can only run as a whole"),
    ):
        assert said in refused(str(tmp_path / "fast.onnx"), "--device", "cpu", *words)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "but got none"),
        (["--recipe", "digits", "--batch", "0"], "Expected --batch to list numbers from 1"),
        (["--recipe", "digits", "--batch", "a"], "Expected --batch to list numbers from 1"),
        (["--recipe", "digits", "--batch", ","], "Expected --batch to list numbers from 1"),
        (["--recipe", "digits", "--batch", "9" * 20], "Expected --batch to list numbers from 1 to 1,000,000"),
        (["--recipe", "digits", "--device", "tpu"], "Expected --device to be auto, cpu or cuda"),
        (
            ["--recipe", "digits", "--device", "cpu", "--ways", "graphs"],
            "Expected ways for device 'cpu', but got 'graphs'",
        ),
        (
            ["--recipe", "digits", "--device", "cpu", "--only", "DE-9"],
            "Expected --only to name rows of the table, but got 'DE-9'; did you mean DE-",
        ),
        (["--recipe", "digits", "--seconds", "0"], "Expected --seconds to be above 0"),
        (["--recipe", "digits", "--threads", "0"], "Expected --threads to be from 1 to 4096"),
        (["--recipe", "digits", "--device", "cpu", "--bf16"], "Expected a CUDA device for --bf16"),
        (["--recipe", "nothing"], "Expected a known recipe"),
        (
            ["--recipe", "digits", "--device", "cpu", "--ways", "magic"],
            "Expected ways for device 'cpu', but got 'magic'",
        ),
        (["--recipe", "digits", "--device", "cpu", "--ways", ""], "Expected --ways to list names"),
        (["--recipe", "digits", "--device", "cpu", "--only", ","], "Expected --only to list names"),
        (["--recipe", "digits", "--seconds", "nan"], "Expected --seconds to be above 0"),
    ],
)
def test_mistakes_are_a_sentence(arguments, said):
    assert said in refused(*arguments)


def test_a_folder_and_a_recipe_are_too_much(folder):
    assert "but got both" in refused(str(folder), "--recipe", "digits")


def test_a_folder_without_a_run(tmp_path):
    assert "to be a run folder" in refused(str(tmp_path), "--device", "cpu")


def test_cuda_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "Expected a CUDA device" in refused("--recipe", "digits", "--device", "cuda")


def test_a_fuller_result_is_not_overwritten(folder):
    file = folder / "bench" / "cpu.json"
    file.parent.mkdir()
    file.write_text('{"rows": [1, 2, 3]}')
    two = [str(folder), *QUICK[:2], "--batch", "1", *QUICK[4:], "--only", "DE-2"]
    assert "it has 3 and the new table would have 2; add --overwrite" in refused(*two)
    assert file.read_text() == '{"rows": [1, 2, 3]}'
    assert invoke(*two, "--overwrite").exit_code == 0
    assert len(json.loads(file.read_text())["rows"]) == 2
    # As many rows are no loss.
    assert invoke(*two).exit_code == 0


def test_tables_come_as_they_are_done_with_the_time_that_is_left(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done: list[str] = []
    monkeypatch.setattr(bench_command, "say", lambda text, **_: done.append(text))
    monkeypatch.setattr(bench_command, "table_of", lambda results: done.append(f"table {results[0].batch}") or "")
    assert invoke("--recipe", "digits", *QUICK, "--only", "DE-2").exit_code == 0
    told = [text for text in done if text.startswith(("table", "4 rows", "1 of")) or "batch" in text]
    assert told[0] == "4 rows in 2 tables, at least 0 s, plus compilation."
    assert [text.partition(", about")[0] for text in told[1:]] == [
        "eager: batch 1",
        "table 1",
        "1 of 2 tables done",
        "eager: batch 2",
        "table 2",
    ]


@pytest.mark.parametrize(("load", "busy"), [(0.1, False), (40.0, True)])
def test_a_busy_machine_is_said(monkeypatch, load, busy):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    result = invoke("--recipe", "digits", *QUICK[:2], "--batch", "1", *QUICK[4:], "--only", "DE-2", "--json")
    assert ("The machine is busy: load 40.0 on 4 cores" in " ".join(result.stderr.split())) == busy
    assert json.loads(result.stdout)["load"] == load


def test_numbers_of_any_size_have_three_digits():
    assert [bench_tables._ms(seconds) for seconds in (2.0, 0.1234, 0.00001234)] == ["2000", "123", "0.0123"]
    assert bench_command._sizes("8, 1,8") == [8, 1]
    assert math.isclose(bench_tables.GOAL, 5.0)
