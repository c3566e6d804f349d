"""The installed program as a user meets it."""

from __future__ import annotations

import subprocess
import sys

import modebridge


def program(*arguments):
    return subprocess.run([sys.executable, "-m", "modebridge", *arguments], capture_output=True, text=True, check=False)


def test_version():
    answer = program("--version")
    assert answer.returncode == 0
    assert answer.stdout.strip() == modebridge.__version__


def test_a_users_mistake_is_one_sentence_and_no_trace():
    answer = program("run", "cifar")
    assert answer.returncode == 2
    assert answer.stderr.startswith("modebridge: Expected a known recipe, but got 'cifar'; near ones: ")
    assert "Traceback" not in answer.stderr


def test_out_that_cannot_be_a_folder_is_said_before_training(tmp_path):
    (tmp_path / "file").write_text("x")
    answer = program("run", "--out", str(tmp_path / "file"))
    assert answer.returncode == 2
    assert "to be a folder to write to" in answer.stderr.replace("\n", " ")
    assert "Traceback" not in answer.stderr


def test_help_names_the_verbs():
    answer = program("--help")
    assert answer.returncode == 0
    assert "run" in answer.stdout


def test_the_public_names_exist():
    assert all(hasattr(modebridge, name) for name in modebridge.__all__)
