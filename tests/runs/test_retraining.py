"""What exists and is trained again is said before it is done, with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from modebridge.cli.app import app
from modebridge.runs import RunFolder, begin, run_recipe
from tests.runs.damaging import tiny
from tests.runs.small import finished, small

HEADS = "bridges/heads-0-others-small"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with heads as they were before they had a pass of their own: mixup, and no design or CutMix."""
    path = tmp_path_factory.mktemp("old") / "run"
    recipe, folder = replace(tiny(), methods=("heads",)), RunFolder(path)
    begin(folder, recipe, 0)
    run_recipe(recipe, folder=folder)
    tensors, meta = folder.read(HEADS)
    then = {name: value for name, value in meta["ingredients"].items() if name not in ("design", "cutmix")}
    folder.keep(HEADS, "of another version", tensors, {"ingredients": {**then, "mixup": 0.4}, "inputs": meta["inputs"]})
    return path


def test_heads_of_an_older_folder_are_not_trained_again_in_silence(old: Path) -> None:
    said = "These exist, but will be trained again: heads heads-0-others-small (cutmix none -> 1.0, mixup 0.4 -> 0.0)."
    plan = CliRunner().invoke(app, ["run", "--out", str(old), "--plan"])
    assert said in plan.stderr
    first, second = (CliRunner().invoke(app, ["run", "--out", str(old)]) for _ in range(2))
    assert said in first.stderr
    assert "trained again" not in second.stderr
    assert "Nothing to train" in second.stderr


@pytest.mark.slow
def test_the_reason_is_a_setting_or_a_parent(tmp_path: Path) -> None:
    folder, heard = finished(tmp_path), list[str]()
    run_recipe(small(), folder=folder, notice=heard.append)
    assert not heard
    longer = replace(small(), curve=replace(small().curve, epochs=2))
    result = run_recipe(longer, folder=folder, notice=heard.append)
    start = "These exist, but will be trained again: curves 0-1, curves 0-2 (training); bridges I-0-1-small"
    assert heard[0].startswith(start)
    assert "(made from another curves/0-1)" in heard[0]
    assert all(name.partition(" ")[2] in heard[0] for name in result.trained)
    # The same settings, other bits: as after training the mode on another machine.
    tensors, meta = folder.read("modes/1")
    own = {key: meta[key] for key in ("ingredients", "inputs")}
    folder.keep("modes/1", meta["key"], {name: tensor * 1.001 for name, tensor in tensors.items()}, own)
    run_recipe(longer, folder=RunFolder(tmp_path), notice=heard.append)
    assert heard[1].startswith("These exist, but will be trained again: curves 0-1 (made from another modes/1)")
    assert len(heard) == 2


def test_what_is_missing_or_given_is_not_trained_again(tmp_path: Path) -> None:
    folder, heard = finished(tmp_path), list[str]()
    mode = run_recipe(small(), folder=folder).modes[2]
    for file in (tmp_path / "bridges" / "I-0-2-small").iterdir():
        file.unlink()
    run_recipe(small(), folder=folder, given={1: mode}, notice=heard.append)
    assert "modes 1" not in heard[0]
    assert "I-0-2-small" not in heard[0]
    assert "curves 0-1 (made from another modes/1)" in heard[0]
