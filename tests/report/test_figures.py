"""Figures: a hover label per point, legends that no line crosses, whole ticks for counts, names for categories."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

from modebridge.report import Cell, Row, cost_figure, dots_figure, lines_figure, row_of
from modebridge.report.clean_svg import clean_svg
from modebridge.report.figures import training_figure
from modebridge.scoring import Combined
from modebridge.training import Epoch

SVG = "{http://www.w3.org/2000/svg}"


def tips(text: str) -> list[str]:
    """The hover labels of a figure in drawing order."""
    return [element.text or "" for element in ET.fromstring(text).iter(f"{SVG}title")]


def heights(text: str) -> dict[str, float]:
    """How far below the top of the figure each text is."""
    places = {}
    for element in ET.fromstring(text).iter(f"{SVG}text"):
        moved = re.search(r"translate\([-\d.]+[ ,]+([-\d.]+)\)", element.get("transform", ""))
        places[element.text or ""] = float(moved[1]) if moved else float(element.get("y", "nan"))
    return places


def whole(text: str) -> bool:
    return re.fullmatch(r"\d+", text) is not None


def row(name: str, flops: float, nll: float, family: str, interval: tuple[float, float] | None = None) -> Row:
    combined = Combined(
        members=(name,),
        relative_flops=flops,
        relative_params=flops,
        accuracy=1 - nll,
        nll=nll,
        ece=0.0,
        brier=0.0,
        raw_nll=nll,
        raw_ece=0.0,
        raw_brier=0.0,
        temperature=1.0,
        nll_interval=interval,
        accuracy_interval=None if interval is None else (1 - interval[1], 1 - interval[0]),
    )
    return row_of(name, combined, 1.0, family=family)


def test_lines_have_a_label_per_point_and_a_legend_below_the_axes():
    lines = {
        "a <b>": ([0.0, 1.0, 2.0, 2.0], [1.0, math.nan, 3.0, 4.0]),
        "second": ([0.0, 1.0, 2.0], [2.0, 2.5, 1.0]),
    }
    panels = [("NLL", lines)]
    text = lines_figure("x", 'with "quotes"', "members added", panels, {"NLL": {"DE-2": 2.2}}, unordered=["second"])
    labels = tips(text)
    assert labels[:2] == ["a <b>: members added 0, NLL 1", "a <b>: members added 2, NLL 3"]
    assert len(labels) == 6
    assert 'aria-label="with &quot;quotes&quot;"' in text
    below = heights(text)
    assert below["second"] > below["members added"]
    # Counts have whole ticks: no tick label of the x axis, which are on one line, has a decimal point.
    ticks = [label for label, y in below.items() if y == below["0"]]
    assert "2" in ticks
    assert all(map(whole, ticks))
    # Only the first line is joined, in the axes and in the legend.
    paths = [element.get("d", "") for element in ET.fromstring(text).iter(f"{SVG}path")]
    assert sum(len(re.findall("[ML]", path)) == 3 and "z" not in path for path in paths) == 2
    # It passes the filter for figures from files with its labels.
    assert tips(clean_svg(text)) == labels


def test_categories_have_names_and_no_line():
    cells = {"Match": Cell(0.9, 0.01), "Other": Cell(0.8), "None": Cell(math.nan)}
    text = dots_figure("x", "", [("R2", {"R2": cells}), ("KL", {"KL": cells})])
    assert tips(text) == ["Match: R2 0.9 ± 0.01", "Other: R2 0.8", "Match: KL 0.9 ± 0.01", "Other: KL 0.8"]
    below = heights(text)
    assert below["Match"] < below["Other"] < below["None"]
    two = dots_figure("x", "", [("NLL", {"alone": {"High": Cell(0.3)}, "with bridges": {"High": Cell(0.2)}})])
    assert tips(two) == ["High, alone: NLL 0.3", "High, with bridges: NLL 0.2"]
    assert heights(two)["with bridges"] > heights(two)["High"]


def test_cost_has_intervals_and_names():
    rows = [
        row("DE-1", 1.0, 0.4, "deep ensemble"),
        row("DE-2", 2.0, 0.3, "deep ensemble"),
        row("DE-1 + 1 bridge I", 1.05, 0.35, "with type I bridges", (0.33, 0.36)),
    ]
    text = cost_figure(rows)
    labels = tips(text)
    assert "DE-2: calibrated NLL 0.3000, FLOPs x2.00" in labels
    assert "DE-1 + 1 bridge I: accuracy 65.00 [64.0 to 67.0], FLOPs x1.05" in labels
    assert "DE-1 + 1 bridge I: calibrated NLL 0.3500 [0.330 to 0.360], FLOPs x1.05" in labels
    assert len(labels) == 6
    assert text.count("stroke-opacity: 0.4") == 2, "one bar per panel, for the one row with intervals"
    assert heights(text)["with type I bridges"] > heights(text)["FLOPs, relative to one network"]


def test_every_training_loss_is_in_a_legend():
    def series(count: int) -> dict[str, list[Epoch]]:
        return {
            f"I-0-{k}-small": [Epoch(number, 3, 0.1, {"train": 1.0 / number + k}) for number in (1, 2, 3)]
            for k in range(count)
        }

    text = training_figure({"modes": series(2), "curves": series(8), "bridges": series(11)})
    below = heights(text)
    for k in range(11):
        assert below[f"bridges I-0-{k}-small"] > below["epoch"]
    for k in range(8):
        assert below[f"I-0-{k}-small"] > below["epoch"]
    labels = tips(text)
    assert labels[-1] == "bridges I-0-10-small: loss 10.33 after epoch 3"
    assert len(labels) == 2 + 8 + 11
    assert all(whole(label) for label, y in below.items() if y == below["1"])
