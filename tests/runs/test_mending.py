"""Run folders that were changed, damaged or made by an older version, and the next run in them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from modebridge.errors import ModebridgeError
from modebridge.members import ModeMember, parse_member
from modebridge.runs import (
    Run,
    RunFolder,
    begin,
    find_recipe_of,
    gather,
    manifest,
    read_answers,
    recipe_to_go_on_with,
    setting_for,
)
from modebridge.runs.given_modes import find_modes
from modebridge.runs.sealed_records import seal_of, sealed
from tests.runs.damaging import everything, files_of, flip, hear, tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return everything(tmp_path_factory.mktemp("mending") / "run")


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_a_recipe_changed_by_hand_is_said_before_anything_trains(copy: Path) -> None:
    file = copy / "recipe.toml"
    text = file.read_text()
    file.write_text(text.replace("# What", "# By me. What"))  # a remark changes nothing
    assert find_recipe_of(RunFolder(copy)) == (tiny(), 0)
    file.write_text(text.replace('align = "none"', 'align = "weights"'))
    for verb in ("report", "advise"):
        assert (
            "recipe.toml' to hold the settings of the run, but it was changed since the run (align none -> weights)"
            in (hear(verb, copy).said)
        )
    recipe, seed, where = recipe_to_go_on_with(copy) or pytest.fail("it is there")
    assert (recipe.align, where) == ("weights", str(file))
    said = begin(RunFolder(copy), recipe, seed)
    assert said[0].startswith("recipe.toml was changed since the run (align none -> weights)")
    assert said[1].startswith("Changed since the last run in this folder: align none -> weights.")
    assert find_recipe_of(RunFolder(copy))[0].align == "weights"
    file.write_text("align = ")
    with pytest.raises(ModebridgeError, match=r"to be TOML.*Or delete it: manifest\.json has the settings"):
        recipe_to_go_on_with(copy)
    file.unlink()
    assert "recipe.toml' to hold the settings of the run, but it is missing" in hear("report", copy).said
    assert (recipe_to_go_on_with(copy) or pytest.fail("it is there"))[0].align == "weights"
    assert begin(RunFolder(copy), recipe, 0) == ["recipe.toml is missing; it will hold the settings of this run."]
    assert RunFolder(copy).mend() == []
    file.unlink()
    (copy / "manifest.json").unlink()
    with pytest.raises(ModebridgeError, match="it is missing; name the recipe"):
        recipe_to_go_on_with(copy)


def test_a_lost_manifest_is_said_and_written_again(copy: Path) -> None:
    flip(copy / "manifest.json", 900, 1)
    assert "manifest.json is damaged (manifest.json does not match its seal" in hear("report", copy).said
    (copy / "manifest.json").unlink()
    assert "manifest.json is damaged (manifest.json is missing" in hear("report", copy).said
    (said,) = begin(RunFolder(copy), tiny(), 0)
    assert said.startswith("manifest.json is damaged (manifest.json is missing; the files it lists")
    assert begin(RunFolder(copy), tiny(), 0)[0].startswith("results.json is damaged (it is not listed in")
    # What nothing else answers for is left out until it is written again.
    heard = hear("report", copy)
    assert heard.shown["studies"] == []
    assert "to recreate it: modebridge study type1" in heard.said
    assert find_recipe_of(RunFolder(copy)) == (tiny(), 0)


def test_a_kill_while_files_are_written_leaves_the_old_or_the_new(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = manifest.write_whole
    old = RunFolder(copy).files.text("times.json")
    for left in range(5):
        steps = iter(range(left))

        def killed(path: Path, text: str, work: Path | None = None, steps=steps) -> None:
            if next(steps, None) is None:
                raise KeyboardInterrupt
            write(path, text, work)

        monkeypatch.setattr(manifest, "write_whole", killed)
        fresh = {
            "times.json": f'{{"relative": {{}}, "batch": {left}}}',
            "studies/type1/figure.svg": f"<svg>{left}</svg>",
        }
        stopped = False
        try:
            RunFolder(copy).files.write(fresh)
        except KeyboardInterrupt:
            stopped = True
        assert stopped == (left < 4)
        folder = RunFolder(copy)
        assert folder.files.text("times.json") in (old, fresh["times.json"])
        assert folder.files.text("studies/type1/figure.svg") is not None
        assert folder.damage == {}
        old = folder.files.text("times.json")


@pytest.mark.parametrize("where", ["weights.safetensors", "meta.json", "gone", "trained"])
def test_a_given_mode_is_never_trained_again(whole: Path, tmp_path: Path, where: str) -> None:
    recipe, other = tiny(), RunFolder(whole)
    net = setting_for(recipe).net
    given = dict(enumerate(find_modes(net, whole / "modes")))
    folder = RunFolder(tmp_path / "run")
    begin(folder, recipe, 0)
    assert Run(recipe, folder=folder, given=given).mode(1).id == given[1].id
    place = folder.path / "modes" / "1"
    kept = Path(shutil.copytree(place, tmp_path / "kept"))
    shutil.rmtree(place)
    if where == "trained":
        shutil.copytree(other.path / "modes" / "1", place)
    elif where != "gone":
        shutil.copytree(kept, place)
        flip(place / where, 300, 2)
    with pytest.raises(ModebridgeError, match=r"modes/1' to be the mode that was passed to.*again with --modes"):
        Run(recipe, folder=RunFolder(folder.path)).mode(1)
    assert "recreated" not in " ".join(begin(RunFolder(folder.path), recipe, 0))
    # Given again it is taken; and its own notes are enough where the manifest is damaged.
    Run(recipe, folder=RunFolder(folder.path), given=given).mode(1)
    flip(folder.path / "manifest.json", 100, 1)
    assert Run(recipe, folder=RunFolder(folder.path)).mode(1).id == given[1].id
    if where == "weights.safetensors":
        flip(place / where, 300, 2)
        with pytest.raises(ModebridgeError, match=r"does not match its hash|cannot be read"):
            Run(recipe, folder=RunFolder(folder.path)).mode(1)
        with pytest.raises(ModebridgeError, match=r"modes/1' to be a mode of a run, but it is damaged"):
            find_modes(net, folder.path / "modes")


def test_another_alignment_in_the_same_folder(copy: Path) -> None:
    """The control is made from the mode that it reads, which stays as it is: it is not trained again."""
    folder, name = RunFolder(copy), "labels-0-1-small"
    meta = folder.meta(f"logits/{name}")
    assert set(meta["parents"]) == {"mode-0"}
    recipe = replace(tiny(), align="weights")
    said = begin(folder := RunFolder(copy), recipe, 0)
    assert "align none -> weights. What depends on this is recomputed" in said[0]
    run = Run(recipe, folder=folder)
    asked = run.answers([ModeMember(1), parse_member(name)])
    assert run.trained == ["aligned 1"]
    assert set(asked.test) == set(read_answers(RunFolder(copy)).test) == {"mode-0", "mode-1", name}
    assert RunFolder(copy).meta(f"logits/{name}") == meta


def test_rows_without_their_members_are_left_out_and_named(copy: Path) -> None:
    rows = gather(RunFolder(copy)).rows
    flip(copy / "logits" / "labels-0-1-small" / "meta.json", 100, 0)
    data = gather(RunFolder(copy), rows)
    assert [row.name for row in rows if row not in data.rows] == ["DE-1 + 1 label control"]
    assert "The row DE-1 + 1 label control is left out" in " ".join(data.warnings)
    shutil.rmtree(copy / "logits" / "labels-0-1-small")
    assert "because they have no predictions for this run: labels-0-1-small" in hear("advise", copy).said


def as_version_01(path: Path) -> None:
    """A folder as version 0.1 left it: no seals, no manifest, no sums."""
    (path / "manifest.json").unlink()
    for file in path.glob("*/*/meta.json"):
        meta = json.loads(file.read_text())
        file.write_text(
            json.dumps({key: meta[key] for key in meta if key not in ("seal", "format", "artefact", "inputs")})
        )
    for file in path.glob("metrics/*/*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "sum"}) + "\n" for line in lines))


def test_a_folder_of_an_earlier_version_is_read_but_not_trained_on(copy: Path, whole: Path) -> None:
    as_version_01(copy)
    before = {file: file.read_bytes() for file in copy.glob("*/*/*")}
    for verb in ("advise", "report"):
        heard = hear(verb, copy)
        assert heard.shown == hear(verb, whole).shown
        assert "damaged" not in heard.said
    assert not (copy / "manifest.json").exists()
    heard = hear("run", copy)
    assert heard.shown is None
    assert "to be a run of this version, but bridges/I-0-1-small was created by an earlier one" in heard.said
    assert f"--modes {copy / 'modes'} --out NEW" in heard.said
    assert {file: file.read_bytes() for file in before} == before


def test_newer_folders_are_refused_not_overwritten(copy: Path) -> None:
    file = copy / "modes" / "0" / "meta.json"
    newer = json.loads(sealed(json.loads(file.read_text()))) | {"format": 3}
    file.write_text(json.dumps(newer | {"seal": seal_of(newer)}))
    with pytest.raises(ModebridgeError, match=r"modes/0/meta\.json' to be of format 2, but got 3"):
        begin(RunFolder(copy), tiny(), 0)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Nobody may write below a path; root may everywhere, so it becomes somebody else meanwhile."""
    own = os.geteuid()
    places = [path, *path.rglob("*")]
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)
    if own == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if own == 0:
            os.seteuid(own)
        for place in places:
            place.chmod(0o755 if place.is_dir() else 0o644)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs the rights of files as Unix has them")
def test_a_finished_folder_that_is_read_only(whole: Path) -> None:
    with tempfile.TemporaryDirectory() as outside:  # pytest's own are closed to others
        Path(outside).chmod(0o755)
        copy = Path(shutil.copytree(whole, Path(outside) / "run"))
        shutil.rmtree(copy / ".work")
        before = {name: (copy / name).read_bytes() for name in files_of(copy)}
        with read_only(copy):
            heard = hear("run", copy)
            assert "read-only: results and report were not updated" in heard.said
            assert hear("advise", copy).shown is not None
            assert "choose a path with --out FILE" in hear("report", copy).said
            with pytest.raises(ModebridgeError, match=r"because times\.json must be written, but it is read"):
                RunFolder(copy).files.write({"times.json": "{}"})
            with pytest.raises(ModebridgeError, match=r"settings change .*it is read-only; choose another"):
                begin(RunFolder(copy), replace(tiny(), align="weights"), 0)
        assert {name: (copy / name).read_bytes() for name in files_of(copy)} == before
        flip(copy / "modes" / "0" / "weights.safetensors", 300, 0)
        with read_only(copy):
            said = hear("run", copy).said
        assert "to be writable, because modes 0 is missing, but it is read-only" in said
