"""The report: one self-contained HTML page, from plain data."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from modebridge.report.figures import (
    bars_figure,
    correspondence_figure,
    cost_figure,
    profile_figure,
    reliability_figure,
    risk_figure,
    training_figure,
)
from modebridge.report.tables import TERMS, StudyTable, decisions_table
from modebridge.scoring import FEW, CurvePoint, LogitTable, Row, correspondence
from modebridge.training import Epoch


@dataclass(frozen=True)
class Samples:
    """A few test images for the bar charts, and the members whose predictions these show."""

    images: Tensor  # (N, C, H, W) floats in [0, 1]
    numbers: Tensor  # positions in the test split
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
    """Everything that the page shows; the members in `imitators` were trained to imitate those in `targets`."""

    title: str
    rows: Sequence[Row]
    warnings: Sequence[str]
    answers: LogitTable
    classes: Sequence[str]
    profiles: Mapping[str, Sequence[CurvePoint]]  # by curve
    samples: Samples | None
    metrics: Mapping[str, Mapping[str, Sequence[Epoch]]]  # by folder and artifact
    studies: Sequence[StudyPart]
    provenance: Mapping[str, str]
    recipe: str  # as TOML
    imitators: Sequence[str]
    targets: Sequence[str]


def page(data: PageData) -> str:
    """The page as HTML."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("modebridge.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    # As images, figures cannot run scripts: a run folder may come from anyone.
    environment.filters["data_uri"] = lambda svg: "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    environment.filters["anchor"] = lambda title: re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
    figures = {
        "Cost and performance": cost_figure(data.rows),
        "Along the curves": profile_figure(data.profiles) if data.profiles else "",
        "Agreement between bridges and curves": _correspondence(data),
        "A few images": _bars(data),
        "Calibration": reliability_figure(data.rows, data.answers),
        "Decisions": risk_figure(data.rows, data.answers),
        "Training": training_figure(data.metrics) if data.metrics else "",
    }
    figures = {title: svg for title, svg in figures.items() if svg}
    return environment.get_template("page.html.j2").render(
        data=data,
        figures=figures,
        contents=["Results", *figures, *(f"Study: {study.name}" for study in data.studies), "About this run"],
        summary=summary(data.rows, data.answers.guess_nll),
        best=best_for_cost(data.rows),
        decisions=decisions_table(data.rows),
        few=FEW,
        terms=TERMS,
    )


def best_for_cost(rows: Sequence[Row]) -> set[str]:
    """Rows whose calibrated NLL no other row beats at the same or fewer FLOPs."""

    def beaten(row: Row, other: Row) -> bool:
        cheap = other.scores.cost.relative_flops <= row.scores.cost.relative_flops
        return cheap and other.scores.nll < row.scores.nll

    return {row.name for row in rows if not any(beaten(row, other) for other in rows)}


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


SKILL = 0.1
"""The share of the guessing NLL that one network must remove before anything can be compared."""
TOO_GOOD = 1.5
"""A small bridge that closes this much of the gap is a sign of poorly trained networks, not of a good bridge."""


def closed_gap(one: float, bridged: float, two: float) -> float:
    """The share of the gap between one network's NLL and two networks' that a bridged ensemble closes.

    >>> round(closed_gap(0.44, 0.40, 0.36), 2)
    0.5
    """
    return (one - bridged) / (one - two) if one != two else float("nan")


def summary(rows: Sequence[Row], guess_nll: float) -> str:
    """The result of a run in a sentence; `guess_nll` is that of predicting the class frequencies."""
    by_role = {row.role: row for row in rows}
    one, two, bridged = (by_role[role].scores for role in ("one", "two", "bridge"))
    share = closed_gap(one.nll, bridged.nll, two.nll)
    if one.nll > (1 - SKILL) * guess_nll:
        return (
            f"What you just saw is not a result yet: one network's NLL is {one.nll:.3f}, and predicting the class "
            f"frequencies gives {guess_nll:.3f}. The modes are not trained well enough to compare anything: "
            "train them longer."
        )
    if two.nll >= one.nll:
        return (
            f"What you just saw: on this seed a second network did not help (NLL {one.nll:.3f} to {two.nll:.3f}), "
            "so there is no gap for bridges to close; try another seed."
        )
    low, high = two.intervals.get("gain", (1.0, 1.0))
    if low <= 0:
        return (
            f"What you just saw: a second network took the NLL from {one.nll:.3f} to {two.nll:.3f}, a gain that these "
            f"test images cannot tell from zero (95 % interval {low:.3f} to {high:.3f}), so there is no gap to compare "
            f"bridges with; one bridge has {bridged.nll:.3f}. Use more test images, or train the modes longer."
        )
    if share <= 0:
        return (
            f"What you just saw: a second network took the NLL from {one.nll:.3f} to {two.nll:.3f}, but on this seed "
            f"one bridge did not help ({bridged.nll:.3f}); try another seed, or train curves and bridges longer."
        )
    if share > TOO_GOOD or bridged.intervals.get("closed", (0.0,))[0] > 1:
        return (
            f"What you just saw: one small bridge took the NLL from {one.nll:.3f} to {bridged.nll:.3f}, further than a "
            f"whole second network did ({two.nll:.3f}). Modes that are not fully trained look like that: train them "
            "longer before you believe it."
        )

    def closed(row: Row) -> str:
        percent = f"{closed_gap(one.nll, row.scores.nll, two.nll):.0%}"
        ends = row.scores.intervals.get("closed")
        return percent if ends is None else f"{percent} [{ends[0]:.0%} to {ends[1]:.0%}]"

    best = min((row for row in rows if row.family == by_role["bridge"].family), key=lambda row: row.scores.nll)
    # The DEE beyond the largest deep ensemble that was measured is only extrapolation.
    most = max(len(row.members) for row in rows if row.family == rows[0].family)
    worth = f"{best.scores.dee:.1f} networks" if best.scores.dee <= most else f"more than {most} networks"
    sentence = (
        f"What you just saw: one small bridge at x{bridged.cost.relative_flops:.2f} the FLOPs of one network closed "
        f"{closed(by_role['bridge'])} of the gap from one network's NLL ({one.nll:.3f}) to two networks' "
        f"({two.nll:.3f} at x2.00), and {best.name} at x{best.scores.cost.relative_flops:.2f} is worth {worth}"
    )
    if "control" in by_role:
        sentence += f"; the same bridge trained on labels alone, without a curve, closed {closed(by_role['control'])}"
    sentence += "."
    if "heads" in by_role:
        heads = by_role["heads"]
        flops = heads.scores.cost.relative_flops
        sentence += f" {heads.name}, one bridge at x{flops:.2f} that needs no curve, closed {closed(heads)}."
    if "closed" in bridged.intervals:
        few = f" (too short with only {bridged.n})" if bridged.n < FEW else ""
        sentence += f" In brackets: 95 % intervals over the test images{few}."
    return sentence
