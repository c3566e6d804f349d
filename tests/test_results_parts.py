"""The folders of which only a few numbers per image are committed: their pages and the summary say what these give."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOLDS = ROOT / "benchmarks" / "holds"
WITH_INTERVAL = re.compile(r"([+-]?\d*\.?\d+)(?: %)?,?\s+\[?([+-]?\d*\.?\d+)\s+to\s+([+-]?\d*\.?\d+)")


def with_intervals(text):
    """Every number with an interval, without signs, as a difference may be said from either side."""
    return {tuple(sorted(abs(float(part)) for part in parts)) for parts in WITH_INTERVAL.findall(text)}


@pytest.mark.parametrize(("name", "least"), [("cifar10-parts", 15), ("tin200-heads", 14)])
def test_every_figure_is_that_of_the_records(monkeypatch, name, least):
    monkeypatch.syspath_prepend(str(HOLDS))
    folder = ROOT / "results" / name
    lines = runpy.run_path(str(HOLDS / "scored.py"))["tables"](folder)
    tables, page = "\n".join(lines), (folder / "README.md").read_text()
    assert tables in page
    prose = page.replace(tables, "")
    assert len(with_intervals(prose)) >= least
    other = runpy.run_path(str(HOLDS / "scored.py"))["tables"](ROOT / "results" / "cifar10-parts")
    assert with_intervals(prose) <= with_intervals(tables + "\n".join(other))
