"""Damaged run folders: whatever file it is, it is named and made again or left out, or the program refuses."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from modebridge.runs import RunFolder, read_answers
from tests.runs.damaging import Heard, everything, files_of, flip, hear, judge


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return everything(tmp_path_factory.mktemp("damage") / "run")


@pytest.fixture(scope="module")
def wanted(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Heard]:
    copy = Path(shutil.copytree(whole, tmp_path_factory.mktemp("wanted") / "run"))
    found = {verb: hear(verb, copy) for verb in ("advise", "report", "run")}
    # Copies keep the times of their files: nothing was written.
    assert [(copy / name).stat().st_mtime_ns for name in files_of(copy)] == (
        [(whole / name).stat().st_mtime_ns for name in files_of(whole)]
    )
    return found


def test_a_whole_folder_is_silent_and_not_written_to(whole: Path, wanted: dict[str, Heard]) -> None:
    assert "Nothing to train" in wanted["run"].said
    assert not any("damaged" in heard.said for heard in wanted.values())


def test_a_flipped_bit_anywhere_is_noticed_or_harmless(whole: Path, wanted: dict[str, Heard], tmp_path: Path) -> None:
    """Twenty files, a bit each; `run` for one of them, since that trains."""
    chance = random.Random(5)
    for k, name in enumerate(chance.sample(files_of(whole), 20)):
        copy = Path(shutil.copytree(whole, tmp_path / str(k)))
        flip(copy / name, chance.randrange((copy / name).stat().st_size), chance.randrange(8))
        judge(copy, name, wanted, ("advise", "report", "run") if k == 0 else ("advise", "report"))


WAYS: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "empty": lambda file: file.write_bytes(b""),
    "deleted": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "not text": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "nested": lambda file: file.write_text("[" * 100_000),
    "another object": lambda file: file.write_text('{"a": 1}'),
    "a list": lambda file: file.write_text("[1, 2]"),
}


@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_files_damaged_in_other_ways(whole: Path, wanted: dict[str, Heard], tmp_path: Path, all_of_them: bool) -> None:
    """Each way on a random file; slowly, every file in every way."""
    files = files_of(whole)
    some = zip(random.Random(1).sample(files, len(WAYS)), WAYS, strict=True)
    for name, way in product(files, WAYS) if all_of_them else some:
        if (name, way) == ("studies/type1/table.json", "deleted"):  # that is to delete the study
            continue
        copy = Path(shutil.copytree(whole, tmp_path / "run"))
        WAYS[way](copy / name)
        judge(copy, name, wanted, ("advise", "report", "run") if all_of_them else ("advise", "report"))
        shutil.rmtree(copy)


def test_an_artefact_in_the_place_of_another_is_noticed(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.rmtree(copy / "logits" / "mode-1")
    shutil.copytree(copy / "logits" / "mode-0", copy / "logits" / "mode-1")
    folder = RunFolder(copy)
    assert "mode-1" not in read_answers(folder).test
    assert folder.damage["logits/mode-1"] == "mode-1 is a copy of logits/mode-0"
