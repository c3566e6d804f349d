"""Figures: legends that no line crosses, whole ticks for counts, names for categories."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
import torch

from modebridge.report import Cell, cost_figure, dots_figure, lines_figure
from modebridge.report.figures import GRAY, INK, LOOKS, bars_figure, colors_of, correspondence_figure, looks_of
from modebridge.report.page import _training
from modebridge.scoring import Correspondence
from modebridge.training import Epoch
from tests.report.test_tables import row


def heights(svg: str) -> dict[str, float]:
    """How far below the top of the figure each text is."""
    places = {}
    for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        moved = re.search(r"translate\([-\d.]+[ ,]+([-\d.]+)\)", element.get("transform", ""))
        places[element.text or ""] = float(moved[1]) if moved else float(element.get("y", "nan"))
    return places


def test_lines_have_a_legend_below_the_axes_and_whole_ticks() -> None:
    lines = {"a <b>": ([0.0, 1.0, 2.0, 2.0], [1.0, math.nan, 3.0, 4.0]), "second": ([0.0, 1.0, 2.0], [2.0, 2.5, 1.0])}
    svg = lines_figure("count", [("NLL", lines), ("ACC", lines)], {"NLL": {"DE-2": 1.5}}, ["second"])
    texts = heights(svg)
    assert texts["a <b>"] > texts["count"] > texts["NLL"]
    assert "DE-2" in texts
    assert {"0", "1", "2"} <= set(texts)
    assert "0.5" not in {text for text in texts if re.fullmatch(r"[\d.]+", text) and texts[text] == texts["0"]}


def test_the_same_figure_is_the_same_text() -> None:
    rows = [row("DE-1", 0.4, flops=1.0), row("DE-2", 0.3, flops=2.0), row("DE-1 + 1 bridge I", 0.35)]
    assert cost_figure(rows) == cost_figure(rows) != cost_figure(rows, narrow=True)


def test_rows_far_worse_are_named_instead_of_drawn() -> None:
    rows = [
        row("DE-1", 0.4, flops=1.0, intervals={"nll": (0.38, 0.42), "accuracy": (0.8, 0.9)}),
        row("DE-2", 0.3, flops=2.0),
        row("DE-1 + 1 bridge I", 0.35),
        row("untrained", 3.2),
    ]
    svg = cost_figure(rows)
    assert "not shown, far worse: untrained (3.2)" in svg
    assert "cost of one image, in networks" in svg
    assert "not shown" not in cost_figure(rows[:-1])


@pytest.mark.parametrize("spread", [None, 0.1])
def test_dots_name_their_categories(spread: float | None) -> None:
    cells = {"first": Cell(1.0, spread), "second": Cell(math.nan, spread)}
    texts = heights(dots_figure([("R2", {"a": cells, "b": cells}), ("KL", {"a": cells})]))
    assert {"first", "second", "R2", "KL", "a", "b"} <= set(texts)
    assert texts["first"] < texts["second"]


def test_correspondence_and_bars_have_their_numbers_and_names() -> None:
    pairs = [[Correspondence(0.91, 0.9, 0.12), Correspondence(-math.inf, 0.1, math.inf)]]
    texts = heights(correspondence_figure(["I-0-1-small"], ["curve-0-1", "curve-0-2"], pairs))
    assert {"0.910", "0.120", "I-0-1-small", "curve-0-2"} <= set(texts)
    images, classes = torch.rand(2, 3, 4, 4), [f"class {k}" for k in range(12)]
    names = ("a", "b"), ("mean", "heads", "distilled")
    colors = {name: f"#{k}{k}{k}{k}ff" for panel in names for k, name in enumerate(panel)}
    panels = [{name: torch.rand(2, 12).softmax(1) for name in panel} for panel in names]
    svg = bars_figure(images, ["class 0", "class 1"], classes, panels, colors)
    assert {"mean", "heads", "distilled"} <= set(heights(svg))
    assert all(color in svg for color in colors.values())
    one = [{name: torch.ones(1, 1) for name in panel} for panel in names]
    assert "only" in bars_figure(torch.rand(1, 1, 4, 4), ["only"], ["only"], one, colors)


def test_a_kind_of_row_has_one_color_in_every_figure() -> None:
    ends = [
        row("one", 0.4, flops=1.0, family="nets", role="one"),
        row("two", 0.3, flops=2.0, family="nets", role="two"),
    ]
    heads, strange = row("heads", 0.35, family="with heads"), row("x", 0.36, family="of a plugin")
    many, few = looks_of([*ends, strange, heads]), looks_of([*ends, heads])
    assert many["with heads"] == few["with heads"] == LOOKS["with heads"]
    assert len({color for color, _ in many.values()}) == len(many) == 3
    colors = colors_of([*ends, heads])
    assert colors == {"one": GRAY, "two": INK, "heads": LOOKS["with heads"][0]}
    assert colors["heads"] in cost_figure([*ends, heads])
    assert colors["heads"] in lines_figure(
        "x", [("y", {"a": ([1, 2], [1, 2]), "heads": ([1, 2], [2, 1])})], colors=colors
    )


def test_training_losses_by_epoch() -> None:
    epochs = [Epoch(k, 3, 0.1, {"train": 1.0 / k}) for k in (1, 2, 3)]
    series = {"modes": {"0": epochs, "1": epochs}, "bridges": {f"I-{k}": epochs for k in range(9)}}
    texts = heights(_training(series | {name: {"0": epochs} for name in ("curves", "students")}))
    titles = {f"training loss: {name}" for name in ("modes", "bridges", "curves", "distilled network")}
    assert {*titles, "epoch", "mode 0", "mode 1"} <= set(texts)
    assert "I-3" not in texts, "nine names and more are too many for a legend"
