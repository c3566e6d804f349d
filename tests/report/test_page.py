"""The page: whole, self-contained, readable by a parser, and without an error in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from modebridge.report import best_for_cost
from modebridge.runs import Run, RunFolder, begin, gather, run_recipe, write_page, write_results
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
        if tag not in ("meta", "br", "img", "input", "link", "hr", "source"):
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
    parts = "Results", "Along the curves", "What each bridge learned", "A few images", "Calibration", "Decisions"
    for part in (*parts, "Training"):
        assert f'">{part}</a></h2>' in text
    assert '<h2 id="study-correspondence"><a href="#study-correspondence">Study: correspondence</a></h2>' in text
    # Abbreviations are explained, and figures have a text alternative.
    assert "<dt>DEE</dt><dd>deep ensemble equivalent" in text
    images = re.findall(r'<img src="data:image/svg\+xml;base64,[\w+/=]+" alt="[^"]+"', text)
    assert text.count("<img ") == len(images) == 9
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


def test_the_page_of_heads_needs_no_curve(tmp_path: Path) -> None:
    recipe, folder = replace(small(), methods=("heads", "distilled")), RunFolder(tmp_path)
    begin(folder, recipe, 0)
    write_results(run_recipe(recipe, folder=folder), folder)
    text = (tmp_path / "report.html").read_text()
    for part in ("Results", "Calibration", "A few images", "What each head learned", "Decisions", "Training"):
        assert f'">{part}</a></h2>' in text
    assert "curve" not in re.sub(r"<details><summary>(The recipe|What the terms).*?</details>", "", text, flags=re.S)
    data = gather(folder)
    assert list(data.heads.imitators) == ["head 1", "head 2"]
    assert list(data.heads.targets) == ["mode 0", "mode 1", "mode 2"]
    terms = re.findall("<dt>([^<]+)</dt>", text.partition("What the terms mean")[2].partition("</details>")[0])
    assert {"params", "training", "ECE", "R2", "KL", "set size"} < {*terms}, "those of the page, and no others"
    assert not {"T", "AUROC", "Brier"} & {*terms}
    costs = [row.scores.cost.relative_flops for row in data.rows]
    assert costs == sorted(costs)
    said = "<dt>distilled network</dt><dd>one more network, trained to predict the mean of all: "
    assert f"{said}<code>--members distilled-0</code></dd>" in text


def test_the_best_at_its_cost() -> None:
    costs = {"a": (1.0, 0.5), "b": (1.1, 0.4), "c": (1.2, 0.45), "d": (2.0, 0.3)}
    rows = [row(name, nll, flops=flops) for name, (flops, nll) in costs.items()]
    assert best_for_cost(rows) == {"a", "b", "d"}
