"""A finished run folder that may not be written is good for everything that only reads."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from modebridge import ModebridgeError
from modebridge.cli.app import app
from tests.runs.small import finished

NOBODY = 65534


@contextmanager
def as_nobody():
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
def folder():
    with tempfile.TemporaryDirectory() as root:
        place = Path(root) / "run"
        finished(place)
        # Nobody may not even have the right to read Python's own files: what the verbs import is imported before.
        for words in (("advise", str(place)), ("run", "cifar10", "--data", root, "--out", f"{root}/none")):
            CliRunner().invoke(app, words)
        Path(root).chmod(0o755)
        inside = [place, *place.rglob("*")]
        for one in inside:
            one.chmod(0o555 if one.is_dir() else 0o444)
        yield place
        for one in inside:
            one.chmod(0o755)


def invoke(*arguments):
    with as_nobody():
        return CliRunner().invoke(app, [str(one) for one in arguments])


def test_reading_verbs(folder):
    answer = invoke("advise", folder, "--json")
    assert answer.exit_code == 0, answer.output
    answer = invoke("run", "--out", folder, "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["trained"] == []
    assert "The folder is read-only: results and report were not updated." in " ".join(answer.stderr.split())


def test_the_page_cannot_go_there(folder):
    answer = invoke("report", folder)
    assert isinstance(answer.exception, ModebridgeError)
    assert "--out FILE" in str(answer.exception)


@pytest.mark.slow
def test_the_page_goes_elsewhere(folder):
    with tempfile.TemporaryDirectory() as other:
        Path(other).chmod(0o777)
        written = write_whole_page(folder, Path(other))
        answer = invoke("report", folder, "--out", Path(other) / "mine.html")
        assert answer.exit_code == 0, answer.output
        assert (Path(other) / "mine.html").read_text() == written
    assert not (folder / "report.html").exists()


def write_whole_page(folder, other):
    """The page by other hands."""
    answer = CliRunner().invoke(app, ["report", str(folder), "--out", str(other)])
    assert answer.exit_code == 0, answer.output
    return (other / "report.html").read_text()


def test_what_is_missing_is_refused_before_it_is_trained(folder):
    for words in (("--set", "mode.epochs=3"), ("--set", "curve.epochs=2")):
        answer = invoke("run", "--out", folder, *words)
        assert isinstance(answer.exception, ModebridgeError)
        assert "but it is read-only" in str(answer.exception)
        assert "epochs done" not in answer.stderr
