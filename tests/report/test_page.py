"""The page: whole, self-contained, readable by a parser, and without an error in a real browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from modebridge.report import best_for_cost, summary
from modebridge.runs import Run, RunFolder, gather, run_recipe, write_page
from modebridge.scoring import Row
from modebridge.studies import run_study, write_study
from tests.report.test_tables import row
from tests.runs.small import finished, small


def hostile(folder: RunFolder) -> None:
    """Studies that somebody else has made: one with a script in its figure and its words, one that is damaged."""
    table = folder.record("studies/correspondence/table.json")
    figure = '<svg xmlns="http://www.w3.org/2000/svg" onload="evil()"><script>evil()</script><path d="M 0 0"/></svg>'
    folder.write_record("studies/evil/table.json", {**table, "name": "<script>evil()</script>", "figure": figure})
    folder.write_record("studies/broken/table.json", table)
    broken = folder.path / "studies" / "broken" / "table.json"
    broken.write_bytes(broken.read_bytes().replace(b"0.", b"1.", 1))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = finished(tmp_path_factory.mktemp("page") / "run")
    write_study(run_study("correspondence", Run(small(), folder=folder)), folder)
    hostile(folder)
    return write_page(folder)


class _Checker(HTMLParser):
    """Checks that tags are closed in order, and collects ids and links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "img", "input", "link", "hr"):
            self.open.append(tag)
        self.ids += [value or "" for key, value in attrs if key == "id"]
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing(page: Path) -> None:
    text = page.read_text()
    checker = _Checker()
    checker.feed(text)
    assert checker.open == []
    assert all(link.startswith(("#", "data:")) for link in checker.links)
    assert len(set(checker.ids)) == len(checker.ids)
    # Twice each: in the contents and as the heading's link to itself.
    anchors = [link.removeprefix("#") for link in checker.links if link.startswith("#")]
    assert set(anchors) <= set(checker.ids)
    assert all(anchors.count(anchor) == 2 for anchor in anchors)
    assert not re.search(r"https?://(?!www\.w3\.org)", text), "the page must not need the network"
    parts = (
        "Results",
        "Cost and performance",
        "Along the curves",
        "A few images",
        "Calibration",
        "Decisions",
        "Training",
    )
    for part in parts:
        assert f'">{part}</a></h2>' in text
    assert '<h2 id="study-correspondence"><a href="#study-correspondence">Study: correspondence</a></h2>' in text
    # Abbreviations are explained, and figures have a text alternative.
    assert "<dt>DEE</dt><dd>deep ensemble equivalent" in text
    assert (
        text.count("<img ") == len(re.findall(r'<img src="data:image/svg\+xml;base64,[\w+/=]+" alt="[^"]+"', text)) == 9
    )
    # Words of others are text, and their figures are images, in which scripts do not run.
    assert "Study: &lt;script&gt;evil()" in text
    assert "<script" not in text
    assert "onload" not in text
    assert "studies/broken/table.json is damaged (" in text
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 1_500_000


def test_rows_of_the_page_are_those_of_the_run(page: Path) -> None:
    folder = RunFolder(page.parent)
    data = gather(folder)
    assert data.rows == run_recipe(small(), folder=folder).rows
    assert [point.r for point in data.profiles["0-1"]] == pytest.approx([k / 10 for k in range(11)])
    assert len(data.metrics["modes"]["0"]) == small().mode.epochs
    assert len(data.samples.images) == 6


def test_the_best_at_its_cost() -> None:
    costs = {"a": (1.0, 0.5), "b": (1.1, 0.4), "c": (1.2, 0.45), "d": (2.0, 0.3)}
    rows = [row(name, nll, flops=flops) for name, (flops, nll) in costs.items()]
    assert best_for_cost(rows) == {"a", "b", "d"}


def outcome(one: float, bridged: float, two: float, *more: Row, **intervals: tuple[float, float]) -> list[Row]:
    """The rows of a run; intervals of what two networks gain, and of the share that the bridge closes."""
    gain, closed = ({name: intervals[name]} if name in intervals else {} for name in ("gain", "closed"))
    rows = [row("DE-1", one), row("DE-1 + 1 bridge I", bridged, dee=1.5, intervals=closed)]
    return [*rows, row("DE-1 + 1 label control", 0.38), row("DE-2", two, intervals=gain), *more]


MORE = (
    row("DE-1 + 3 bridges I", 0.28, dee=7.3),
    row("DE-1 + 3 heads (others)", 0.29, role="heads", intervals={"closed": (0.9, 1.3)}),
)
SURE = {"gain": (0.05, 0.15), "closed": (0.3, 0.7)}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (outcome(0.4, 0.35, 0.3), "closed 50% of the gap"),
        (outcome(0.4, 0.45, 0.3), "one bridge did not help"),
        (outcome(0.4, 0.35, 0.4), "a second network did not help"),
        # Two networks hardly better than one, and a bridge far beyond them: no "366% of the gap" out of that.
        (outcome(0.4, 0.29, 0.37), "further than a whole second network did (0.370). Modes that are not fully trained"),
        (outcome(2.25, 2.10, 2.21), "gives 2.300. The modes are not trained well enough"),
        (outcome(0.4, 0.39, 0.38, gain=(-0.01, 0.05)), "cannot tell from zero (95 % interval -0.010 to 0.050), so"),
        (outcome(0.4, 0.35, 0.3, **SURE), "closed 50% [30% to 70%] of the gap"),
        (outcome(0.4, 0.35, 0.3, **SURE), "brackets: 95 % intervals over the test images (too short with only 100)."),
        # No DEE beyond the deep ensembles that were measured.
        (outcome(0.4, 0.35, 0.3, *MORE, **SURE), "is worth more than 2 networks; the same bridge trained on labels"),
        (outcome(0.4, 0.35, 0.3, *MORE), "heads (others), one bridge at x1.05 that needs no curve, closed 110% [90%"),
    ],
)
def test_the_sentence_says_what_happened(rows: list[Row], words: str) -> None:
    """And gives no share of a gap where there is none; 2.3 is the NLL of guessing among ten classes."""
    said = summary(rows, 2.3)
    assert words in said
    shares = any(word in words for word in ("closed", "worth", "brackets"))
    assert ("of the gap" in said) == ("is worth" in said) == shares
    assert ("heads" in said) == (rows[-1].role == "heads")
