"""The report: one self-contained HTML page, from plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from modebridge.deploy import TradeOff
from modebridge.report.clean_svg import clean_svg
from modebridge.report.cost_figure import cost_figure
from modebridge.report.figures import (
    bars_figure,
    correspondence_figure,
    profile_figure,
    reliability_figure,
    training_figure,
)
from modebridge.report.rows import Row
from modebridge.report.study_figures import lines_figure
from modebridge.report.tables import StudyTable
from modebridge.report.terms import TERMS, abbreviations
from modebridge.scoring import CurvePoint, LogitTable, correspondence, reliability
from modebridge.training import Epoch

__all__ = ["PageData", "Samples", "StudyPart", "best_for_cost", "page"]


@dataclass(frozen=True)
class Samples:
    """A few test images for the bar charts.

    Args:
        images: (N, C, H, W) floats in [0, 1].
        numbers: (N,) positions in the test split.
        ends: names of the two modes.
        midpoint: name of the network between them.
        bridge: name of the bridge.
    """

    images: Tensor
    numbers: Tensor
    ends: tuple[str, str]
    midpoint: str
    bridge: str


@dataclass(frozen=True)
class StudyPart:
    """A study that was run in the same folder: its name, description, tables and SVG figure."""

    name: str
    about: str
    tables: tuple[StudyTable, ...]
    figure: str


@dataclass(frozen=True)
class PageData:
    """Everything that the page shows.

    Args:
        title: heading of the page.
        summary: the result in a sentence.
        rows: rows of the results table.
        warnings: sentences to show below the summary.
        answers: logits of every member.
        classes: class names.
        profiles: points along each curve.
        samples: images for the bar charts.
        metrics: epochs by folder and artefact.
        studies: studies of the run.
        provenance: facts about the run.
        recipe: the recipe as TOML.
        times: measured time per member, relative to one network, if measured.
        imitators: members trained to imitate another, the rows of the correspondence figure.
        targets: members they imitate, its columns.
        elastic: average cost against scores, one line per combination whose further members run only on unsure images.
    """

    title: str
    summary: str
    rows: Sequence[Row]
    warnings: Sequence[str]
    answers: LogitTable
    classes: Sequence[str]
    profiles: Mapping[str, Sequence[CurvePoint]] = field(default_factory=dict)
    samples: Samples | None = None
    metrics: Mapping[str, Mapping[str, Sequence[Epoch]]] = field(default_factory=dict)
    studies: Sequence[StudyPart] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    recipe: str = ""
    times: Mapping[str, float] = field(default_factory=dict)
    imitators: Sequence[str] = ()
    targets: Sequence[str] = ()
    elastic: Mapping[str, Sequence[TradeOff]] = field(default_factory=dict)


SECTIONS = {
    "cost": "Cost and performance",
    "elastic": "Elastic inference",
    "profile": "Along the curves",
    "correspondence": "Agreement between bridges and curves",
    "bars": "A few images",
    "reliability": "Calibration",
    "training": "Training",
}
"""Titles of the sections with figures, by name, which is also their anchor."""


def best_for_cost(rows: Sequence[Row]) -> set[str]:
    """Rows whose calibrated NLL no other row beats at the same or fewer FLOPs."""
    return {
        row.name
        for row in rows
        if not any(other.nll < row.nll and other.relative_flops <= row.relative_flops for other in rows)
    }


def page(data: PageData) -> str:
    """The page as HTML."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("modebridge.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["clean_svg"] = clean_svg
    figures = {
        "cost": cost_figure(data.rows, cascades=data.elastic),
        "time": cost_figure(data.rows, _row_times(data)) if data.times else "",
        "elastic": _elastic(data.elastic),
        "profile": profile_figure(data.profiles) if data.profiles else "",
        "reliability": _reliability(data),
        "correspondence": _correspondence(data),
        "bars": _bars(data),
        "training": training_figure(data.metrics) if any(data.metrics.values()) else "",
    }
    anchors = study_anchors([study.name for study in data.studies])
    contents = {
        "results": "Results",
        **{name: title for name, title in SECTIONS.items() if figures[name]},
        **{anchor: f"Study: {study.name}" for anchor, study in zip(anchors, data.studies, strict=True)},
        "provenance": "About this run",
    }
    return environment.get_template("page.html.j2").render(
        data=data,
        figures=figures,
        best=best_for_cost(data.rows),
        count=len(data.answers.test_labels),
        contents=contents,
        anchors=anchors,
        terms=TERMS,
        abbreviations=abbreviations,
    )


def study_anchors(names: Sequence[str]) -> list[str]:
    """One anchor per study, unique on the page; ids inside figures end in a number, so these do not.

    >>> study_anchors(["type1", "r-position", "Type1!"])
    ['type1-study', 'r-position-study', 'type1-other-study']
    """
    anchors: list[str] = []
    for name in names:
        slug = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
        while f"{slug}-study" in anchors:
            slug += "-other"
        anchors.append(f"{slug}-study")
    return anchors


def _row_times(data: PageData) -> dict[str, float]:
    reads = {name: cost.reads for name, cost in data.answers.costs.items()}

    def total(members: Sequence[str]) -> float:
        return sum(data.times[n] for n in dict.fromkeys([*members, *(r for m in members for r in reads[m])]))

    return {
        row.name: row.asked * total(row.members) + ((1 - row.asked) * total(row.members[:1]) if row.asked < 1 else 0)
        for row in data.rows
    }


def _elastic(lines: Mapping[str, Sequence[TradeOff]]) -> str:
    if not lines:
        return ""

    def panel(scale: float, what: str) -> dict[str, tuple[list[float], list[float]]]:
        return {
            name: ([point.cost for point in points], [scale * getattr(point, what) for point in points])
            for name, points in lines.items()
        }

    return lines_figure(
        "elastic",
        "Accuracy and NLL against the average cost when further members run only on unsure images",
        "average FLOPs, relative to one network",
        [("accuracy, %", panel(100, "accuracy")), ("calibrated NLL", panel(1, "nll"))],
    )


def _reliability(data: PageData) -> str:
    rows = [row for role in ("one", "bridge", "two") for row in data.rows if row.role == role]
    labels = data.answers.test_labels
    diagrams = [
        (
            row.name,
            reliability(data.answers.probabilities(row.members), labels),
            reliability(data.answers.calibrated(row.members), labels),
        )
        for row in rows
    ]
    return reliability_figure(diagrams) if diagrams else ""


def _correspondence(data: PageData) -> str:
    if not data.imitators or not data.targets:
        return ""
    tables = {name: data.answers.probabilities([name]) for name in (*data.imitators, *data.targets)}
    compared = [[correspondence(tables[target], tables[name]) for target in data.targets] for name in data.imitators]
    return correspondence_figure(data.imitators, data.targets, compared)


def _bars(data: PageData) -> str:
    samples = data.samples
    if samples is None:
        return ""
    numbers = samples.numbers.long()
    names = {end: end for end in samples.ends}
    names |= {samples.midpoint: f"midpoint {samples.midpoint}", samples.bridge: f"bridge {samples.bridge}"}
    probabilities = {label: data.answers.probabilities([name])[numbers].float() for name, label in names.items()}
    truth = [data.classes[int(label)] for label in data.answers.test_labels[numbers]]
    return bars_figure(samples.images, truth, data.classes, probabilities)
