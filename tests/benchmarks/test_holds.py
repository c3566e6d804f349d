"""Holds: planning of epochs, the columns of the table, and a dry run in which one stage fails."""

from __future__ import annotations

import doctest
import json
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modebridge.scoring import LogitTable, MemberCost
from tests.scenarios import EXACT

HOLDS = Path(__file__).parents[2] / "benchmarks" / "holds"


@pytest.fixture
def hold(monkeypatch):
    """Gives a module of the holds, which imports its neighbours as scripts do; the log of torch stays as it is."""
    monkeypatch.syspath_prepend(str(HOLDS))

    def module(name):
        found = import_module(name)
        if hasattr(found, "quiet"):
            monkeypatch.setattr(found, "quiet", lambda: None)
        return found

    return module


def test_examples(hold):
    for name in ("common", "tin200_heads"):
        assert doctest.testmod(hold(name)) == (0, {"common": 4, "tin200_heads": 3}[name])


def test_rates(hold, tmp_path):
    """Of three stages one was timed, one stopped in its first epoch, which compiles, and one has no file."""
    for stage, figures in {"modes": {"fastest_s": 2.0, "epoch_s": 9.0}, "mixup": {"epoch_s": 90.0}}.items():
        (tmp_path / stage).mkdir()
        (tmp_path / stage / "stages.json").write_text(json.dumps({stage: figures}))
    measured = {"modes": 30.0, "mixup": 14.0, "cutmix": 15.0}
    assert hold("common").rates_of(tmp_path, measured, 8.0) == {"modes": 16.0, "mixup": 14.0, "cutmix": 15.0}
    assert hold("common").rates_of(None, measured) == measured


def test_table(hold, capsys):
    torch.manual_seed(0)
    labels = torch.arange(60) % 3
    right = torch.nn.functional.one_hot(labels, 3).to(EXACT)
    costs = {f"mode-{k}": MemberCost(100, 10) for k in range(2)} | {"bridge": MemberCost(5, 1, ("mode-0",))}
    costs |= {f"bridge-h{k}": costs["bridge"] for k in range(2)}
    tables = [{name: 2 * right + torch.randn(60, 3, dtype=EXACT) for name in costs} for _ in range(2)]
    answers = LogitTable(*tables, labels, labels, costs)
    assert hold("common").bridges_in(answers) == ["bridge"]
    ensembles, rows = [("mode-0",), ("mode-0", "mode-1")], [("mode-0",), ("mode-0", "bridge"), ("mode-0", "mode-1")]
    hold("common").print_table(answers, rows, ensembles)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    one, both, two = (answers.score(row).nll for row in rows)
    share = (one - both) / (one - two)  # below DE-2 or not, both are on the line through DE-1 and DE-2
    worth = [[f"{1 + way:.2f}", f"{100 * way:.0f} %"] for way in (0, share, 1)]
    assert [line[-2:] for line in cells[2:]] == worth
    assert {len(line) for line in cells} == {10}


def test_tin200_heads_with_a_failing_stage(hold, tmp_path, monkeypatch, capsys):
    """The other stage is trained, saved and scored; logits of both would be no more than the machine sends back."""
    heads, planned = hold("tin200_heads"), {}
    fit, plan = heads.fit_bridges, heads.plans_of

    def plans_of(*arguments):
        planned.update(plan(*arguments))
        return planned

    def fails_with_mixup(*arguments, mixup, **options):
        if mixup:
            raise RuntimeError("out of memory")
        return fit(*arguments, mixup=mixup, **options)

    monkeypatch.setattr(heads, "plans_of", plans_of)
    monkeypatch.setattr(heads, "fit_bridges", fails_with_mixup)
    with pytest.raises(SystemExit, match="failed: mixup"):
        heads.main(["-", str(tmp_path / "out"), "--tiny"])
    trained = {"heads-others-default-cutmix": 2, "heads-others-cutmix": 2}
    trained |= {"heads-others-labels-default-cutmix": 3, "heads-others-labels-x3-cutmix": 3}
    logits = {f"{name}-h{k}" for name, count in trained.items() for k in range(count)} | set(heads.MODES)
    assert {file.stem for file in (tmp_path / "out").glob("*.safetensors")} == logits | {"labels"}
    assert load_file(tmp_path / "out" / "mode-0.safetensors")["test"].dtype == torch.float16
    saved = {file.stem for file in (tmp_path / "out" / "bridges").iterdir()}
    assert saved == {f"weights-{name}" for name in trained}
    assert {file.stem for file in (tmp_path / "out-modes").iterdir()} == {f"weights-{name}" for name in heads.MODES}
    table = capsys.readouterr().out.rpartition("| members |")[2]
    assert re.findall(r"^\| (mode-0[^|]*) \|", table, re.MULTILINE) == [
        *(" + ".join(heads.MODES[:count]) for count in (1, 2, 3)),
        *(f"mode-0 + {name}" for name in trained),
    ]

    bridges = {name: plan.bridge for stage in planned.values() for name, plan in stage.items()}
    small = bridges["other-0-1-small"].share
    assert all(bridge.share <= small for name, bridge in bridges.items() if "default" in name)
    assert all(type(bridges[name].body.body).__name__ == "ResidualBody" for name in trained)
    tables = len(heads.MODES) + sum(bridge.heads for bridge in bridges.values())
    assert tables * 2 * 10_000 * 200 * 2 < 3 * 64 * 2**20  # three calls to fetch them
