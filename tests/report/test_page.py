"""The page: whole, self-contained, readable by a parser, and without an error in a real browser."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from modebridge.report import Cell, Column, Row, StudyTable, TableRow, best_for_cost, cell_of, row_of
from modebridge.runs import Run, RunFolder, gather, run_recipe, write_page
from modebridge.scoring import Combined
from modebridge.studies import run_study, write_study
from tests.runs.small import finished, small

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def hostile(folder: RunFolder) -> None:
    """Studies that somebody else has made: one with a script in its figure and its words, one that is damaged."""
    table = json.loads((folder.path / "studies" / "correspondence" / "table.json").read_text())
    figure = '<svg xmlns="http://www.w3.org/2000/svg" onload="evil()"><script>evil()</script><path d="M 0 0"/></svg>'
    text = json.dumps({**table, "name": "<script>evil()</script>"})
    folder.files.write({"studies/evil/table.json": text, "studies/evil/figure.svg": figure})
    folder.files.write({"studies/broken/table.json": json.dumps(table)})
    (folder.path / "studies" / "broken" / "table.json").write_bytes(b"\xff" + json.dumps(table).encode())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = finished(tmp_path_factory.mktemp("page") / "run")
    write_study(run_study("correspondence", Run(small(), folder=folder)), folder)
    hostile(folder)
    return write_page(folder)


class _Checker(HTMLParser):
    VOID = frozenset({"meta", "br", "img", "input", "link", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.anchors: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for key, value in attrs:
            if key == "id" and value:
                self.ids.append(value)
            if tag == "a" and key == "href" and value:
                self.anchors.append(value.removeprefix("#"))
            if key in ("src", "href", "xlink:href") and value and not value.startswith(("#", "data:")):
                self.outside.append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()


def test_the_page_is_whole_and_asks_for_nothing(page: Path) -> None:
    text = page.read_text()
    checker = _Checker()
    checker.feed(text)
    assert checker.open == []
    assert checker.outside == []
    assert len(set(checker.ids)) == len(checker.ids)
    # Twice each: in the contents and as the heading's link to itself.
    assert set(checker.anchors) <= set(checker.ids)
    assert all(checker.anchors.count(anchor) == 2 for anchor in checker.anchors)
    assert not re.search(r"https?://(?!www\.w3\.org)", text), "the page must not need the network"
    for part in (
        "Results",
        "Cost and performance",
        "Elastic inference",
        "Along the curves",
        "A few images",
        "Calibration",
        "Training",
    ):
        assert re.search(rf'<h2 id="[a-z]+"><a href="#[a-z]+">{part}</a></h2>', text)
    assert '<h2 id="correspondence-study"><a href="#correspondence-study">Study: correspondence</a></h2>' in text
    # Abbreviations are explained where they are used, figures have a text alternative and points their numbers.
    assert "<dt>DEE</dt><dd>deep ensemble equivalent" in text
    assert "<dt>T</dt><dd>temperature fitted on the validation split" in text
    assert "<b>KL</b>: Kullback-Leibler divergence" in text
    assert text.count("<svg") == len(re.findall('<svg[^>]* role="img" aria-label="[^"]+"', text)) + 1  # the hostile one
    assert "<title>DE-1: calibrated NLL " in text
    assert text.count("<svg") == 9
    assert "Study: &lt;script&gt;evil()" in text
    assert '<path d="M 0 0" />' in text
    assert text.count("<script>") == 1
    assert "onload" not in text
    assert "studies/broken/table.json is damaged (it does not match its hash) and is left out" in text
    assert "#010203" not in text, "ink must follow the page"
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 1_500_000


def loaded(page: Path, profile: Path, size: str) -> tuple[str, str]:
    """What a browser makes of a page: its text, and what went to the console."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", f"--window-size={size}"]
    command = [CHROMIUM, *flags, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


# A machine without a browser checks the page by its parser alone, above.
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.slow
@pytest.mark.parametrize("size", ["1100,900", "390,800"])
def test_a_browser_loads_it_without_an_error(page: Path, tmp_path: Path, size: str) -> None:
    text, console = loaded(page, tmp_path, size)
    assert "</html>" in text
    assert console == ""
    # And a page with an error would have been noticed.
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("<script>", "<script>nowhere();"))
    assert "nowhere is not defined" in loaded(broken, tmp_path, size)[1]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.slow
def test_tables_fit_a_wide_page_and_say_that_they_scroll_on_a_phone(page: Path, tmp_path: Path) -> None:
    """The script marks boxes whose content is wider than they are."""
    marked = [loaded(page, tmp_path, size)[0].count('<div class="box scrolls">') for size in ("1400,900", "500,800")]
    assert marked[0] == 0
    assert marked[1] >= 9


def test_rows_of_the_page_are_those_of_the_run(page: Path) -> None:
    folder = RunFolder(page.parent)
    data = gather(folder)
    result = run_recipe(small(), folder=folder)
    assert [row.name for row in data.rows] == [row.name for row in result.rows]
    assert [row.nll for row in data.rows] == [row.nll for row in result.rows]
    assert set(data.profiles) == {"0-1", "0-2"}
    assert [point.r for point in data.profiles["0-1"]] == pytest.approx([k / 10 for k in range(11)])
    assert len(data.metrics["modes"]["0"]) == small().mode.epochs
    assert data.samples is not None
    assert len(data.samples.images) == 6


def test_the_best_at_its_cost() -> None:
    def row(name: str, flops: float, nll: float) -> Row:
        combined = Combined(
            members=(),
            relative_flops=flops,
            relative_params=flops,
            accuracy=0.9,
            nll=nll,
            ece=0.0,
            brier=0.0,
            raw_nll=nll,
            raw_ece=0.0,
            raw_brier=0.0,
            temperature=1.0,
        )
        return row_of(name, combined, 1.0)

    rows = [row("a", 1.0, 0.5), row("b", 1.1, 0.4), row("c", 1.2, 0.45), row("d", 2.0, 0.3)]
    assert best_for_cost(rows) == {"a", "b", "d"}


def test_tables_in_three_forms() -> None:
    table = StudyTable(
        "A & B",
        (Column("ACC", 2, "up"), Column("NLL", 3, "down"), Column("R2", 3)),
        (
            TableRow("one_1", {"ACC": cell_of([90.0, 92.0]), "NLL": Cell(0.5, None, "0.51 ± 0.01")}),
            TableRow("two", {"ACC": Cell(89.0), "NLL": Cell(math.inf)}),
        ),
        ("A note.",),
    )
    markdown = table.markdown()
    assert "| one_1 | **91.00** ± 1.00 | **0.500** [0.51 ± 0.01] |  |" in markdown
    assert "| two | 89.00 | - |  |" in markdown
    assert "A note." in markdown
    latex = table.latex()
    assert r"one\_1 & \textbf{91.00} $\pm$ 1.00 & \textbf{0.500} [0.51 ± 0.01] &  \\" in latex
    assert r"$R^2$" in latex
    again = StudyTable.from_dict(table.as_dict())
    assert again.markdown() == markdown
