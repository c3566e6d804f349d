"""The graph of a run: keys without weights, an order, jobs that any process can do, and what `--plan` shows."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from modebridge.cli.app import app
from modebridge.members import members_of
from modebridge.runs import Run, RunFolder, run_recipe
from modebridge.runs.logits import Logits
from tests.runs.small import finished, small


def test_parents_come_first_and_all_bridges_in_one_job_that_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        raise AssertionError("a weight was loaded")

    run = Run(replace(small(), align="weights"))
    monkeypatch.setattr("modebridge.modes.Mode.from_state_dict", load)
    graph = run.graph([Logits(member) for member in members_of(run.recipe)])
    jobs = [job for wave in graph.waves() for job in graph.jobs(wave)]
    assert pickle.loads(pickle.dumps(jobs)) == jobs
    assert pickle.loads(pickle.dumps(run.setting)) == run.setting
    seen: set[str] = set()
    for job in jobs:
        assert set(job.parents) <= seen
        seen |= {node.place for node in job.nodes}
    names = [(job.kind.folder, len(job.nodes)) for job in jobs]
    assert names == [("modes", 1)] * 3 + [("aligned", 1)] * 2 + [("curves", 1)] * 2 + [("bridges", 4), ("logits", 9)]


def test_keys_follow_what_a_thing_is_made_from() -> None:
    def keys(**changes: object) -> dict[str, str]:
        run = Run(replace(small(), **changes))  # type: ignore[arg-type]
        graph = run.graph([Logits(member) for member in members_of(run.recipe)])
        return graph.keys

    before = keys()
    assert keys() == before
    recipe = small()
    curves = keys(curve=replace(recipe.curve, weight_decay=0.01))
    changed = {place.partition("/")[0] for place in before if curves[place] != before[place]}
    assert changed == {"curves", "bridges", "logits"}
    assert curves["bridges/labels-0-1-small"] == before["bridges/labels-0-1-small"], "the control sees no curve"
    assert curves["logits/mode-0"] == before["logits/mode-0"]
    assert len(set(before.values())) == len(before)


def test_a_parent_made_again_with_other_bits_is_another_parent(tmp_path: Path) -> None:
    """As on another machine: the same key, other weights."""
    folder = finished(tmp_path)
    tensors, meta = folder.read("modes/1")
    folder.keep("modes/1", {name: tensor * 1.001 for name, tensor in tensors.items()}, meta)
    result = run_recipe(small(), folder=RunFolder(tmp_path))
    assert "modes 1" not in result.trained
    assert set(result.trained) == {"curves 0-1", "bridges I-0-1-small", "bridges II-0-1-small"}


def test_the_plan_is_shown_and_nothing_made(tmp_path: Path) -> None:
    def steps(*arguments: str) -> dict[str, dict[str, object]]:
        result = CliRunner().invoke(app, ["run", *arguments, "--plan", "--json"])
        assert result.exit_code == 0, result.output
        return {step["name"]: step for step in json.loads(result.stdout) if step["missing"] or step["there"]}

    # Heads are in the folder of bridges, but are trained in their own pass; labels are in the folder of logits.
    new = steps("digits", "--out", str(tmp_path / "new"), "--set", "methods=heads,paper")
    assert not (tmp_path / "new").exists()
    assert list(new) == ["modes", "heads", "curves", "bridges", "logits", "labels", "profiles", "samples"]
    assert (new["heads"]["folder"], new["heads"]["missing"]) == ("bridges", [["heads-0-others-small"]])
    assert new["modes"]["missing"] == [["0"], ["1"], ["2"], ["3"]]
    assert new["modes"]["epochs"] == 20
    folder = finished(tmp_path / "run").path
    before = sorted(file for file in folder.rglob("*"))
    whole = steps("--out", str(folder))
    assert all(step["missing"] == [] for step in whole.values())
    more = steps("--out", str(folder), "--set", "modes=4", "--set", "bridge.epochs=2")
    assert (more["modes"]["there"], more["modes"]["missing"]) == (["0", "1", "2"], [["3"]])
    assert more["curves"]["missing"] == [["0-3"]]
    assert len(more["bridges"]["missing"][0]) == 5  # type: ignore[index]
    assert sorted(file for file in folder.rglob("*")) == before
