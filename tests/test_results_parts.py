"""The folders of which only a few numbers per image are committed: their pages and the summary say what these give."""

from __future__ import annotations

import re
import runpy
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOLDS = ROOT / "benchmarks" / "holds"
NUMBER = r"([+-]?\d*\.?\d+)"
WITH_INTERVAL = re.compile(rf"{NUMBER}(?: %)?,?\s+\[?{NUMBER}\s+to\s+{NUMBER}")


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(HOLDS))


@cache
def tables_of(name):
    return "\n".join(runpy.run_path(str(HOLDS / "scored.py"))["tables"](ROOT / "results" / name))


def page_of(name):
    return (ROOT / "results" / name / "README.md").read_text()


def with_intervals(text):
    """Every number with an interval, without signs, as a difference may be said from either side."""
    return {tuple(sorted(abs(float(part)) for part in parts)) for parts in WITH_INTERVAL.findall(text)}


@pytest.mark.parametrize(("name", "least"), [("cifar10-parts", 15), ("tin200-heads", 14)])
def test_every_figure_is_that_of_the_records(name, least):
    tables, page = tables_of(name), page_of(name)
    assert tables in page
    prose = with_intervals(page.replace(tables, ""))
    assert len(prose) >= least
    assert prose <= with_intervals(tables + tables_of("cifar10-parts"))


def test_the_summary_says_the_same():
    summary = (ROOT / "docs" / "results.md").read_text()
    section = summary.partition("## What do heads, CutMix and labels contribute?\n")[2].partition("\n## ")[0]
    known = tables_of("cifar10-parts") + tables_of("tin200-heads")
    said = with_intervals(section)
    assert len(said) > 20
    assert said <= with_intervals(known + page_of("cifar10-frn"))
    scores = re.findall(r"\d\d\.\d\d / [\d.]+", section)
    assert len(scores) == 10
    for score in scores:
        right, loss = score.split(" / ")
        loss = loss if loss[0] == "1" else f"0{loss}"
        assert f"| {right} | {loss} |" in known + page_of("cifar10-frn")


def test_the_page_on_networks_that_underfit(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    underfit = import_module("underfit")
    records = {
        name: underfit.read(ROOT / "results" / f"{name}.json") for name in ("underfit-digits", "underfit-digits-fresh")
    }
    chosen = underfit.confirm(records["underfit-digits-fresh"])
    digits = "\n".join([*underfit.table(records["underfit-digits"]), *chosen])
    page = (ROOT / "docs" / "frontier.md").read_text()
    section = page.partition("## Networks that do not fit their training data\n")[2].partition("\n## ")[0]
    said = with_intervals(section)
    assert len(said) > 30
    known = [digits, tables_of("tin200-heads"), tables_of("cifar10-parts"), page_of("cifar10-bn")]
    assert said <= set().union(*map(with_intervals, known))
    losses = re.findall(r"(?<=\| )(?:\*\*)?(\.\d{4})(?:\*\*)?(?= \|)", section)
    assert len(losses) == 16 + 8
    assert all(f"| 0{loss} |" in digits for loss in losses)
    shares = re.findall(r"^\|[^|]+\| (\d+\.\d %) \| (\d)[^|]*\| (\.\d{4})", section, re.MULTILINE)
    assert len(shares) == 8
    for (right, labels, loss), line in zip(shares, chosen[2:], strict=True):
        assert f"| {right} | {labels} of 8 |" in line
        assert f"| 0{loss} |" in line
