"""Run folders: two runs at once, another recipe, modes from elsewhere, folders that may not be written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from modebridge.cli.app import app
from modebridge.errors import ModebridgeError
from modebridge.members import ModeMember, Node
from modebridge.recipes import changed
from modebridge.recipes.data import load_splits
from modebridge.runs import Run, RunFolder, begin, read_answers, run_recipe
from modebridge.runs.logits import Labels
from modebridge.runs.plan import find_modes
from tests.runs.damaging import flip
from tests.runs.small import finished as finished_run, small

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


def test_trained_networks_are_only_replaced_if_asked(finished: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(finished.path, tmp_path / "copy")
    folder, longer = RunFolder(tmp_path / "copy"), changed(small(), ["mode.epochs=1"])
    before = (folder.path / "recipe.toml").read_bytes()
    assert begin(folder, longer, 0, study=True) == []
    assert (folder.path / "recipe.toml").read_bytes() == before, "a study does not change what a finished run is"
    begin(folder, longer, 0)
    with pytest.raises(ModebridgeError, match=r"3 networks would be trained again and replaced; .*--replace"):
        run_recipe(longer, folder=folder, replace=False)
    assert Run(longer, folder=folder).replaced() == 3
    folder.undo()
    assert (folder.path / "recipe.toml").read_bytes() == before, "the folder still tells what is in it"
    begin(folder, longer, 0)
    assert "modes" in run_recipe(longer, folder=folder).trained[0]
    folder.undo()
    assert (folder.path / "recipe.toml").read_bytes() != before


def test_what_was_said_is_read_without_data(finished: RunFolder) -> None:
    result, read = run_recipe(small(), folder=finished), read_answers(finished)
    assert set(read.test) == set(result.table.test)
    for name, logits in result.table.test.items():
        assert torch.equal(read.test[name], logits)
    assert read.costs == result.table.costs
    assert torch.equal(read.test_labels, load_splits(small().data).test.labels)
    with pytest.raises(ModebridgeError, match="to hold a finished run"):
        read_answers(RunFolder(finished.path.parent / "empty"))


def test_files_that_are_no_modes(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 2)
    with pytest.raises(ModebridgeError, match="it does not exist"):
        find_modes(net, tmp_path / "none")
    torch.save(net.state_dict(), tmp_path / "0.pt")
    with pytest.raises(ModebridgeError, match=r"at least 2 networks .*, but got 1"):
        find_modes(net, tmp_path)
    torch.save(net.state_dict(), tmp_path / "1.pt")
    with pytest.raises(ModebridgeError, match="two files hold the same weights"):
        find_modes(net, tmp_path)


@pytest.mark.parametrize("where", ["weights.safetensors", "meta.json", "gone", "trained"])
def test_a_given_mode_is_never_trained_again(finished: RunFolder, tmp_path: Path, where: str) -> None:
    recipe, net = replace(small(), modes=2), Run(small()).setting.net
    given = dict(enumerate(find_modes(net, finished.path / "modes")[:2]))
    folder = RunFolder(tmp_path / "run")
    begin(folder, recipe, 0)
    run = Run(recipe, folder=folder, given=given)
    assert run.load(ModeMember(1)).id == given[1].id
    assert run.trained == []
    place = folder.path / "modes" / "1"
    if where in ("gone", "trained"):
        shutil.rmtree(place)
        if where == "trained":
            shutil.copytree(finished.path / "modes" / "1", place)
    else:
        flip(place / where, 300, 2)
    with pytest.raises(ModebridgeError, match=r"modes/1' to be the mode that was passed to.*again with --modes"):
        Run(recipe, folder=RunFolder(folder.path)).load(ModeMember(1))
    if where == "weights.safetensors":
        with pytest.raises(ModebridgeError, match=r"modes/1' to be a mode of a run, but it is damaged"):
            find_modes(net, folder.path / "modes")
    # Given again it is taken, and known from then on.
    Run(recipe, folder=RunFolder(folder.path), given=given).load(ModeMember(1))
    assert Run(recipe, folder=RunFolder(folder.path)).load(ModeMember(1)).id == given[1].id
    flip(folder.path / "given.json", 30, 1)
    with pytest.raises(ModebridgeError, match=r"given\.json' to name the modes that were passed"):
        Run(recipe, folder=RunFolder(folder.path)).load(ModeMember(1))


def test_a_recipe_changed_by_hand_is_said(tmp_path: Path) -> None:
    """The settings that a folder was made with are in its results, which no hand changes."""
    folder = finished_run(tmp_path)
    folder.write_record("results.json", {"settings": (tmp_path / "recipe.toml").read_text()})
    file = tmp_path / "recipe.toml"
    before = file.read_bytes()
    with pytest.raises(ModebridgeError, match="to name methods or members, but got 'headz'; did you mean heads"):
        begin(RunFolder(tmp_path), replace(small(), methods=("headz",)), 0)
    assert file.read_bytes() == before
    file.write_text(file.read_text().replace('align = "none"', 'align = "weights"'))
    (said,) = begin(RunFolder(tmp_path), replace(small(), align="weights"), 0)
    assert said.startswith("Changed since the last run in this folder: align none -> weights.")
    file.write_text("align = ")
    with pytest.raises(ModebridgeError, match=r"recipe\.toml"):
        begin(RunFolder(tmp_path), small(), 0)
    file.unlink()
    assert "align" not in " ".join(begin(RunFolder(tmp_path), small(), 0))


NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """The rights of the superuser put aside: they know no read-only folders."""
    if not hasattr(os, "setresuid"):
        pytest.skip("no rights of users here")
    before = os.getresuid()
    if before[1] == 0:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(*before)


@pytest.fixture(scope="module")
def read_only() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as root:
        place = Path(root) / "run"
        finished_run(place)
        # Nobody may not even have the right to read Python's own files: what the verbs import is imported before.
        for words in (["advise", str(place)], ["run", "cifar10", "--data", root, "--out", f"{root}/none"]):
            CliRunner().invoke(app, words)
        Path(root).chmod(0o755)
        inside = [place, *place.rglob("*")]
        for one in inside:
            one.chmod(0o555 if one.is_dir() else 0o444)
        yield place
        for one in inside:
            one.chmod(0o755)


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        ("advise", (), ""),
        ("run", (), "The folder is read-only: results and report were not updated."),
        ("run", ("--set", "mode.epochs=3"), "its settings change (mode.epochs 2 -> 3), but it is read-only"),
        ("report", (), "--out FILE"),
    ],
)
def test_a_finished_folder_that_is_read_only(read_only: Path, verb: str, options: tuple[str, ...], said: str) -> None:
    with as_nobody():
        words = (verb, "--out", read_only) if verb == "run" else (verb, read_only)
        answer = CliRunner().invoke(app, [*map(str, words), *options])
    assert said in " ".join(answer.stderr.split()) + str(answer.exception)
    assert "epochs done" not in answer.stderr


def test_an_artefact_that_disappears_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(small(), folder=RunFolder(tmp_path))
    make = run.make

    def lost(artefacts: Sequence[Node]) -> None:
        make(artefacts)
        shutil.rmtree(tmp_path / artefacts[0].place)

    assert set(run.tensors([Labels()])["logits/labels"]) == {"valid", "test"}
    monkeypatch.setattr(run, "make", lost)
    with pytest.raises(ModebridgeError, match="Expected logits/labels to be readable after writing it"):
        run.tensors([Labels()])
