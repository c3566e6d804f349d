"""The benchmarks' own kind of member, and a run folder that is published."""

import json
import runpy
from pathlib import Path

from typer.testing import CliRunner

from modebridge.cli.app import app
from modebridge.members import KINDS, METHODS

ROOT = Path(__file__).parents[2]
SMALL = "modes=2 mode.epochs=1 curve.epochs=1 bridge.epochs=1 data.train=60 data.valid=40 data.test=60"
SMALL += " methods=paper,controls"


def test_controls_of_a_run_are_published(tmp_path):
    kinds, methods = list(KINDS), dict(METHODS)
    settings = [part for text in SMALL.split() for part in ("--set", text)]
    members = ["--set", f"members_file={ROOT / 'benchmarks' / 'controls.py'}"]
    try:
        result = CliRunner().invoke(app, ["run", "digits", *settings, *members, "--out", str(tmp_path / "run")])
        assert result.exit_code == 0, result.output
        published = runpy.run_path(str(ROOT / "benchmarks" / "published.py"), run_name="published")
        published["record"](tmp_path / "run", tmp_path / "results")
        assert published["wrong_figures"](tmp_path / "results") == []
    finally:
        KINDS[:] = kinds
        METHODS.clear()
        METHODS.update(methods)
    rows = {row["name"]: row for row in json.loads((tmp_path / "results" / "results.json").read_text())["rows"]}
    for target in ("mode 1", "its own mode", "the mean of all modes"):
        assert rows[f"one network + 1 bridge on {target}"]["flops"] == rows["one network + 1 bridge"]["flops"]
