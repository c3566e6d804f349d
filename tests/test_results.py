"""What the pages say of committed results is what their logits give."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from modebridge.data import load_modes
from modebridge.nets import ResNet, spec_of
from modebridge.runs import find_recipe_of, main_rows
from modebridge.runs.folder import RunFolder
from modebridge.runs.read_answers import read_answers

ROOT = Path(__file__).parents[1]
HOLDS = ROOT / "benchmarks" / "holds"
FRN = ROOT / "results" / "cifar10-frn"
BN = ROOT / "results" / "cifar10-bn"


@pytest.mark.parametrize(("folder", "modes"), [(FRN, 4), (BN, 3)], ids=["frn", "bn"])
def test_deep_ensembles_of_cifar10(folder, modes):
    table = runpy.run_path(str(HOLDS / "table.py"))
    lines = table["deep_ensembles"](read_answers(RunFolder(folder, writes=False)))
    assert len(lines) == 2 + modes
    page = (folder / "README.md").read_text()
    summary = (ROOT / "docs" / "results.md").read_text()
    for line in lines:
        assert line in page
    for line in lines[2:]:
        found, loss = (cell.strip() for cell in line.split("|")[3:5])
        assert found.replace(" 0.", " .") in summary
        assert loss.replace("0.", ".") in summary


def test_modes_of_cifar10_frn_load():
    modes = load_modes(ResNet(spec_of("cifar10")), FRN / "weights")
    identities = [RunFolder(FRN, writes=False).meta(f"logits/mode-{k}")["id"] for k in range(4)]
    assert [mode.id for mode in modes] == identities


MODES = tuple(f"mode-{k}" for k in range(4))
ONE = [
    ("mode-0", name) for name in ("I-0-1-small", "other-0-1-small", "mean-4-small", "self-0-small", "labels-0-1-small")
]
PUBLISHED = [
    *(MODES[:count] for count in range(1, 5)),
    *ONE,
    ("mode-0", "I-0-1-small", "I-0-2-small", "I-0-3-small"),
    ("mode-0", "mode-1", "II-0-1-small"),
    ("distilled-0",),
    ("student-labels",),
    ("mode-0", "distilled-0"),
    *(("mode-0", heads) for heads in ("heads-0-others-small", "heads-others-cutmix-budget")),
    ("mode-0", "distilled-0", "heads-0-others-small"),
]
"""Rows of cifar10-frn that the summary speaks of; the deep ensembles are what the others are measured by."""


def cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_rows_of_cifar10_frn(monkeypatch):
    monkeypatch.syspath_prepend(str(HOLDS))
    lines = runpy.run_path(str(HOLDS / "scored.py"))["tables"](FRN, PUBLISHED)
    assert len(lines) == 2 + len(PUBLISHED)
    page, summary = (FRN / "README.md").read_text(), (ROOT / "docs" / "results.md").read_text()
    for line in lines:
        assert line in page
    for line, members in zip(lines[2:], PUBLISHED, strict=True):
        if members != MODES[:3]:
            row = cells(line)
            assert f"| {row[3]} | {row[4].removeprefix('0')} |" in summary
            assert row[9] in summary


PUBLISHED_BN = {
    "DE-1": MODES[:1],
    "DE-1 + 1 small bridge on its own mode": ("mode-0", "self-0-small"),
    "DE-1 + 1 small network on labels": ("mode-0", "labels-0-1-small"),
    "DE-1 + 1 type I bridge, small": ("mode-0", "I-0-1-small"),
    "DE-1 + 1 small bridge on the mean of three modes": ("mode-0", "mean-3-small"),
    "DE-1 + 1 small bridge on the other mode": ("mode-0", "other-0-1-small"),
    "DE-1 + 2 heads on the other modes": ("mode-0", "heads-0-others-small"),
    "DE-1 + 2 heads on the other modes, early tap": ("mode-0", "heads-others-early"),
    "DE-1 + 4 heads on midpoints and other modes": ("mode-0", "heads-0-midpoints+others-small"),
    "DE-1 + 2 type I bridges, small": ("mode-0", "I-0-1-small", "I-0-2-small"),
    "DE-1 + 2 small bridges on the other modes": ("mode-0", "other-0-1-small", "other-0-2-small"),
    "DE-1 + 2 medium heads on the other modes": ("mode-0", "heads-0-others-medium"),
    "student of DE-3, mixup 1.0": ("distilled-0",),
    "labels with the student's mixup": ("student-labels",),
    "DE-2 cascade: mode 1 for 6 % of the images": ("DE-2 cascade x1.06",),
    "**DE-2 cascade: mode 1 for 16 %**": ("DE-2 cascade x1.15",),
    "student, then modes 0 and 1 for 11 %": ("student, then DE-2, cascade x1.2",),
    "**DE-3 cascade: modes 1 and 2 for 26 %**": ("DE-3 cascade x1.5",),
    "DE-1 + the midpoint itself": ("mode-0", "curve-0-1"),
    "DE-2": MODES[:2],
    "DE-2 + 1 type II bridge, small": ("mode-0", "mode-1", "II-0-1-small"),
    "DE-3": MODES[:3],
}
"""The rows of the summary's table of batch norm, by what they are called there."""


def on_batch_norm():
    summary = (ROOT / "docs" / "results.md").read_text()
    return summary.partition("## Does anything pay on batch norm?\n")[2].partition("\n## ")[0]


def test_rows_of_cifar10_bn(monkeypatch):
    monkeypatch.syspath_prepend(str(HOLDS))
    recorded = [("mode-0", "heads-0-others+labels-small"), ("mode-0", "mode-1", "II-labels-small")]
    rows = [*PUBLISHED_BN.values(), *recorded]
    lines = runpy.run_path(str(HOLDS / "scored.py"))["tables"](BN, rows)
    page = (BN / "README.md").read_text()
    assert all(line in page for line in lines)
    table = on_batch_norm().partition("\n| DE-1 |")
    for title, line in zip(PUBLISHED_BN, lines[2:], strict=False):
        _, flops, params, right, loss, _, _, _, _, *ways = cells(line)
        ways = {"DE-1": ["0 %"] * 2, "DE-2": ["100 %"] * 2}.get(title, ways)
        row = " | ".join((title, flops, params, right, loss.removeprefix("0"), *ways))
        assert f"| {row} |\n" in "".join(table[1:])


@pytest.mark.parametrize("folder", [FRN, BN], ids=["frn", "bn"])
def test_no_more_logits_than_may_be(folder):
    files = [*(folder / "logits").rglob("*"), *(folder / "controls").rglob("*"), folder / "rows.safetensors"]
    assert sum(file.stat().st_size for file in files if file.is_file()) <= 10_000_000


NUMBER = r"([+-]?\d*\.?\d+)"
WITH_INTERVAL = re.compile(rf"{NUMBER}(?: %)?\s+\[{NUMBER}\s+to\s+{NUMBER}\]")


def with_intervals(text):
    """Every number with an interval, as a difference may be said from either side."""
    triples = [tuple(float(part) for part in found) for found in WITH_INTERVAL.findall(text)]
    return [{triple, tuple(-part for part in (triple[0], triple[2], triple[1]))} for triple in triples]


@pytest.mark.slow
def test_all_tables_of_cifar10_bn(monkeypatch):
    monkeypatch.syspath_prepend(str(HOLDS))
    lines = "\n".join(runpy.run_path(str(HOLDS / "scored.py"))["tables"](BN))
    page = (BN / "README.md").read_text()
    assert lines in page
    known = set().union(*with_intervals(lines))
    for text, least in ((page, 50), (on_batch_norm(), 50)):
        assert len(with_intervals(text)) > least
        assert [said for said in with_intervals(text) if not said & known] == []


CASCADES = {
    "student, then DE-2, cascade x1.2": ("distilled-0", "mode-0", "mode-1"),
    "DE-2 cascade x1.15": MODES[:2],
    "DE-3 cascade x1.5": MODES[:3],
}


def test_cascades_of_cifar10_frn():
    answers = read_answers(RunFolder(FRN, writes=False))
    pages = [page.read_text() for page in (FRN / "README.md", ROOT / "docs" / "results.md", ROOT / "README.md")]
    for name, members in CASCADES.items():
        row = answers.score(members, threshold=answers.threshold(members, float(name.rpartition("x")[2])))
        assert f"x{row.relative_flops:.2f}" in pages[1]
        assert f"{100 * row.accuracy:.2f} | {row.nll:.4f}".replace("| 0.", "| .") in pages[1]
        if "student" in name:
            scores = f"{100 * row.accuracy:.2f} % / {row.nll:.4f}".replace(" 0.", " .")
            assert all(scores in page for page in (pages[0], pages[2]))


README_ROWS = {
    "one network (DE-1)": [("mode-0",), ("mode-0",)],
    "one network distilled": [("distilled-0",), ("distilled-0",)],
    "one network + 1 bridge of a curve": [("mode-0", "I-0-1-small"), ("mode-0", "I-0-1-small")],
    "**one network + 3 heads": [("mode-0", "heads-0-others-small"), ("mode-0", "heads-0-others-small")],
    "one network + 3 bridges": [("mode-0", *(f"I-0-{j}-small" for j in (1, 2, 3))), None],
    "one network, and a second one": [MODES[:2], MODES[:2]],
    "the distilled one, and two": [CASCADES["student, then DE-2, cascade x1.2"]] * 2,
    "two networks (DE-2)": [MODES[:2], MODES[:2]],
    "four networks (BN: three)": [MODES, MODES[:3]],
}
AVERAGE = {"one network, and a second one": 1.15, "the distilled one, and two": 1.2}


def test_the_first_table_of_the_readme(monkeypatch):
    """Every cell is what the committed logits give."""
    monkeypatch.syspath_prepend(str(HOLDS))
    read_all = runpy.run_path(str(HOLDS / "members.py"))["read_all"]
    every = [read_all(RunFolder(folder, writes=False)) for folder in (FRN, BN)]
    page = (ROOT / "README.md").read_text()
    for title, both in README_ROWS.items():
        (line,) = re.findall(rf"^\| {re.escape(title)}.*$", page, flags=re.MULTILINE)
        for answers, members, cell in zip(every, both, cells(line)[2:], strict=True):
            if members is None:
                assert not cell
                continue
            threshold = answers.threshold(members, AVERAGE[title]) if title in AVERAGE else None
            scores = answers.score(members, threshold=threshold)
            expected = f"{100 * scores.accuracy:.2f} / {scores.nll:.4f}".replace(" 0.", " .")
            assert cell.strip("*") == expected, title


@pytest.mark.slow
def test_the_share_of_the_way_that_cascades_go():
    folder = RunFolder(FRN, writes=False)
    rows = {row.name: row for row in main_rows(find_recipe_of(folder)[0], read_answers(folder))}
    page = (ROOT / "docs" / "results.md").read_text()
    for name in CASCADES:
        low, high = rows[name].closed_interval
        assert f"[{100 * low:.0f} to {100 * high:.0f}]" in page


@pytest.mark.slow
def test_all_tables_of_cifar10_frn(monkeypatch):
    monkeypatch.syspath_prepend(str(HOLDS))
    lines = runpy.run_path(str(HOLDS / "scored.py"))["tables"](FRN)
    assert len(lines) > 90
    assert "\n".join(lines) in (FRN / "README.md").read_text()
    summary = (ROOT / "docs" / "results.md").read_text()
    for line in lines:
        if line.startswith(("| curve against", "| 3 heads, ")):
            assert " | ".join(cells(line)[1:]).replace("+0.", "+.").replace("-0.", "-.") in summary
    known, page = set().union(*with_intervals("\n".join(lines))), (FRN / "README.md").read_text()
    assert len(with_intervals(page)) > 150
    assert [said for said in with_intervals(page) if not said & known] == []


def test_rows_of_tin200_frn(monkeypatch):
    monkeypatch.syspath_prepend(str(HOLDS))
    folder = ROOT / "results" / "tin200-frn"
    lines = runpy.run_path(str(HOLDS / "rows.py"))["tables"](folder / "rows.safetensors")
    assert len(lines) > 40
    page, summary = (folder / "README.md").read_text(), (ROOT / "docs" / "results.md").read_text()
    assert "\n".join(lines) in page
    rows = {line.split(" | ")[0].lstrip("| "): cells(line) for line in lines}
    for members in (
        "",
        "I-0-1-small",
        "I-0-1-medium",
        "self-0-small",
        "labels-0-1-small",
        "mean-0-1-small",
        "other-0-1-small",
    ):
        row = rows[f"mode-0 + {members}" if members else "mode-0"]
        assert f"| {row[3]} |" in summary
        assert row[-1] in summary


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


SUMMARIES = ("README.md", "docs/which.md", "docs/comparison.md", "docs/faq.md")
SOURCES = (
    "docs/results.md",
    "docs/frontier.md",
    "docs/methods.md",
    *(f"results/{name}/README.md" for name in ("cifar10-frn", "cifar10-bn", "cifar10-parts", "tin200-heads")),
)
PAIR = re.compile(r"(\d\d\.\d\d?)(?: % / | / | \| )0?(\.\d{3,4})")


@pytest.mark.parametrize("summary", SUMMARIES)
def test_summaries_have_only_figures_of_their_sources(summary):
    """Every figure with an interval, and every pair of accuracy and NLL, is in a page that is checked by its logits."""
    page, sources = (ROOT / summary).read_text(), "\n".join((ROOT / source).read_text() for source in SOURCES)
    known = set().union(*with_intervals(sources))
    assert [figure for figure in with_intervals(page) if not figure & known] == []
    assert set(PAIR.findall(page.partition("### What the paper prints")[0])) <= set(PAIR.findall(sources))
    assert with_intervals(page) or summary == "docs/comparison.md"
