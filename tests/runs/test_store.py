"""Run folders: two runs at once, modes from elsewhere, another recipe, another machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from modebridge.errors import ModebridgeError
from modebridge.members import Artefact, Setting
from modebridge.recipes import changed
from modebridge.recipes.splits import load_splits
from modebridge.runs import Run, RunFolder, begin, ensemble_of, read_answers, run_recipe, write_page
from modebridge.runs.logits import Labels
from modebridge.runs.plan import find_modes
from tests.runs.small import finished as finished_run
from tests.runs.small import small

HOLD = """
import sys, time
from modebridge.runs import RunFolder
with RunFolder(sys.argv[1]).alone():
    print("in", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.slow
def test_two_at_once_work_one_after_the_other(tmp_path: Path) -> None:
    waited: list[int] = []
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen([*command, "2"], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        begun = time.monotonic()
        with RunFolder(tmp_path).alone(lambda: waited.append(1)):
            assert time.monotonic() - begun > 1
    assert waited == [1]
    # The lock goes with the process, however it ends.
    with subprocess.Popen([*command, "60"], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "in\n"
        killed.kill()
    with RunFolder(tmp_path).alone(lambda: waited.append(2)):
        pass
    assert waited == [1]


def test_a_folder_belongs_to_one_recipe_and_seed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert begin(folder, small(), 0) == []
    assert begin(folder, small(), 0) == []
    (said,) = begin(folder, changed(small(), ["mode.epochs=3"]), 0)
    assert said.startswith("Changed since the last run in this folder: mode.epochs 2 -> 3.")
    with pytest.raises(ModebridgeError, match="holds digits, seed 0; choose another"):
        begin(folder, small(), 1)
    with pytest.raises(ModebridgeError, match="for recipe other"):
        begin(folder, changed(small(), ["name=other"]), 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_run(tmp_path_factory.mktemp("finished") / "run")


def test_a_copy_goes_on_elsewhere_without_training(finished: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(finished.path, tmp_path / "copy")
    copy = RunFolder(tmp_path / "copy")
    result = run_recipe(small(), folder=copy)
    assert result.trained == []
    shutil.rmtree(copy.path / "bridges" / "II-0-1-small")
    assert run_recipe(small(), folder=copy).trained == ["bridges II-0-1-small"]


def test_what_was_said_is_read_without_data(finished: RunFolder) -> None:
    result, read = run_recipe(small(), folder=finished), read_answers(finished)
    assert set(read.test) == set(result.table.test)
    for name, logits in result.table.test.items():
        assert torch.equal(read.test[name], logits)
    assert read.costs == result.table.costs
    assert torch.equal(read.test_labels, load_splits(small().data).test.labels)
    with pytest.raises(ModebridgeError, match="to hold a finished run"):
        read_answers(RunFolder(finished.path.parent / "empty"))


@pytest.mark.slow  # by the program: tests/test_own_recipe.py
@pytest.mark.parametrize("form", ["nested", "run"])
def test_modes_from_elsewhere(finished: RunFolder, tmp_path: Path, form: str) -> None:
    states = [safetensors.torch.load_file(finished.path / "modes" / str(k) / "weights.safetensors") for k in range(2)]
    for k, state in enumerate(states):
        if form == "nested":
            torch.save({"state_dict": {f"module.{n}": t for n, t in state.items()}}, tmp_path / f"{k}.pth")
    net = run_recipe(small(), folder=finished).setting.net
    found = find_modes(net, finished.path / "modes" if form == "run" else tmp_path)
    assert len(found) == (3 if form == "run" else 2)
    for state, own in zip(states, found, strict=False):
        assert all(torch.equal(own.state[name], tensor) for name, tensor in state.items())
    given = dict(enumerate(found[:2]))
    result = run_recipe(changed(small(), ["modes=2"]), folder=RunFolder(tmp_path / "given"), given=given)
    assert not any(name.startswith("modes") for name in result.trained)
    assert [result.mode(k).id for k in (0, 1)] == [mode.id for mode in given.values()]
    assert json.loads((tmp_path / "given" / "modes" / "0" / "meta.json").read_text())["from"] == "elsewhere"


def test_files_that_are_no_modes(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 2)
    with pytest.raises(ModebridgeError, match="it does not exist"):
        find_modes(net, tmp_path / "none")
    with pytest.raises(ModebridgeError, match=r"to contain weight files .*, but got none"):
        find_modes(net, tmp_path)
    torch.save(net.state_dict(), tmp_path / "0.pt")
    with pytest.raises(ModebridgeError, match=r"at least 2 modes .*, but got 1"):
        find_modes(net, tmp_path)
    torch.save(net.state_dict(), tmp_path / "1.pt")
    with pytest.raises(ModebridgeError, match="two files hold the same weights"):
        find_modes(net, tmp_path)


def test_engines_of_recipes() -> None:
    assert Setting(small()).engine.device.type == "cpu"
    with pytest.raises(ModebridgeError, match="auto, cpu or cuda"):
        _ = Setting(small(), device="tpu").engine
    if not torch.cuda.is_available():
        with pytest.raises(ModebridgeError, match="torch sees none"):
            _ = Setting(small(), device="cuda").engine


@pytest.mark.slow
def test_modes_are_aligned_where_the_recipe_says_so(tmp_path):
    recipe = replace(small(), modes=2, control=False, align="weights")
    folder = RunFolder(tmp_path / "run")
    begin(folder, recipe, 0)
    result = run_recipe(recipe, folder=folder)
    assert "aligned 1" in result.trained
    meta = json.loads((tmp_path / "run" / "aligned" / "1" / "meta.json").read_text())
    assert meta["difference"] < 1e-6
    assert meta["quality"][1] > meta["quality"][0]
    assert not (tmp_path / "run" / "aligned" / "0").exists()
    # The curve's end is the aligned mode, which is the same function as the mode that was trained.
    curve = json.loads((tmp_path / "run" / "curves" / "0-1" / "meta.json").read_text())
    plain = json.loads((tmp_path / "run" / "modes" / "1" / "meta.json").read_text())
    assert list(curve["inputs"]) == ["modes/0", "aligned/1"]
    assert curve["inputs"]["aligned/1"] == meta["bits"]
    again = run_recipe(recipe, folder=folder)
    assert again.trained == []
    assert plain["key"] == json.loads((tmp_path / "run" / "modes" / "1" / "meta.json").read_text())["key"]
    write_page(folder)
    assert "outputs are unchanged to" in (tmp_path / "run" / "report.html").read_text()
    # What is exported is what was asked: the aligned modes.
    ensemble, _ = ensemble_of(folder, ["mode-0", "mode-1"])
    weights, _ = folder.read("aligned/1")
    assert torch.equal(ensemble.bases[1].head.weight, weights["head.weight"])


def test_an_artefact_that_disappears_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(small(), folder=RunFolder(tmp_path))
    make = run.make

    def lost(artefacts: Sequence[Artefact]) -> None:
        make(artefacts)
        shutil.rmtree(tmp_path / artefacts[0].place)

    assert set(run.tensors([Labels()])["logits/labels"]) == {"valid", "test"}
    monkeypatch.setattr(run, "make", lost)
    with pytest.raises(ModebridgeError, match="Expected logits/labels to be readable after writing it"):
        run.tensors([Labels()])
