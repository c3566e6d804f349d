"""What the pages say of committed results is what their logits give."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from modebridge.data import load_modes
from modebridge.nets import ResNet, spec_of
from modebridge.runs.folder import RunFolder
from modebridge.runs.read_answers import read_answers

ROOT = Path(__file__).parents[1]


def test_deep_ensembles_of_cifar10_frn():
    table = runpy.run_path(str(ROOT / "benchmarks" / "holds" / "table.py"))
    folder = ROOT / "results" / "cifar10-frn"
    lines = table["deep_ensembles"](read_answers(RunFolder(folder, writes=False)))
    assert len(lines) == 5
    page = (folder / "README.md").read_text()
    summary = (ROOT / "docs" / "results.md").read_text()
    for line in lines:
        assert line in page
    for line in lines[2:]:
        accuracy, nll = (cell.strip() for cell in line.split("|")[3:5])
        assert accuracy.replace(" 0.", " .") in summary
        assert nll.replace("0.", ".") in summary


def test_modes_of_cifar10_frn_load():
    modes = load_modes(ResNet(spec_of("cifar10")), ROOT / "results" / "cifar10-frn" / "weights")
    identities = [
        RunFolder(ROOT / "results" / "cifar10-frn", writes=False).meta("logits", f"mode-{k}")["id"] for k in range(3)
    ]
    assert [mode.id for mode in modes] == identities


def test_rows_of_tin200_frn(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "holds"))
    folder = ROOT / "results" / "tin200-frn"
    lines = runpy.run_path(str(ROOT / "benchmarks" / "holds" / "rows.py"))["tables"](folder / "rows.safetensors")
    assert len(lines) > 40
    page, summary = (folder / "README.md").read_text(), (ROOT / "docs" / "results.md").read_text()
    assert "\n".join(lines) in page
    rows = {line.split(" | ")[0].lstrip("| "): [cell.strip() for cell in line.split("|")[1:-1]] for line in lines}
    for members in (
        "",
        "I-0-1-small",
        "I-0-1-medium",
        "self-0-small",
        "labels-0-1-small",
        "mean-0-1-small",
        "other-0-1-small",
    ):
        cells = rows[f"mode-0 + {members}" if members else "mode-0"]
        assert f"| {cells[3]} |" in summary
        assert cells[-1] in summary


@pytest.mark.parametrize(
    ("members", "nll"),
    [
        (("mode-0",), ".338"),
        (("mode-0", "I-0-1-small"), ".325"),
        (("mode-0", "I-0-1-small", "I-0-2-small"), ".324"),
        (("mode-0", "labels-0-1-small"), ".342"),
        (("mode-0", "curve-0-1"), ".305"),
        (("mode-0", "mode-1"), ".281"),
        (("mode-0", "mode-1", "II-0-1-small"), ".277"),
    ],
)
def test_bridges_of_cifar10_short(members, nll):
    answers = read_answers(RunFolder(ROOT / "results" / "cifar10-short", writes=False))
    assert f"{answers.score(members).nll:.3f}".lstrip("0") == nll
    assert f"| {nll} |" in (ROOT / "docs" / "results.md").read_text()
