"""Pages that people finish: their length, their words, and the plot that README, landing page and results share."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts)
INSIDER = re.compile(
    r"heads \(others\)|label control|elastic|\bseal\b|\bvoices\b|guards main|in a hurry|went \d+ %|what you just saw",
    re.IGNORECASE,
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_is_too_long(page: Path) -> None:
    assert len(page.read_text().split()) <= 1500


def test_the_readme_is_short_and_says_what_the_demo_prints() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 1100
    first = text.partition("## What you get")[0]
    assert not re.search(r"\[-?[\d.]+ to [\d.]+\]", first), "no interval on the first screen"
    demo = " ".join(re.search(r"prints\n\n```\n(.*?)```", text, re.DOTALL)[1].split())  # type: ignore[index]
    assert "one network + 3 heads x1.04 88.3% 0.355" in demo
    assert "One network with 3 heads takes 4 % more multiply-adds and is about as good as three networks" in demo


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_insider_words(page: Path) -> None:
    assert INSIDER.findall(page.read_text()) == []


def test_the_plot_is_that_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "docs"))
    plots = import_module("plots")
    assert (plots.FOLDER / "cost.svg").read_text() == plots.themed(plots.cost_plot()), "python tools/docs/plots.py"
    for page in ("README.md", "docs/results.md"):
        assert "plots/cost.svg" in (ROOT / page).read_text()
    assert "<!-- readme: What you get -->" in (ROOT / "docs" / "index.md").read_text()
