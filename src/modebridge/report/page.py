"""The report: one self-contained HTML page, from plain data."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from modebridge.report.figures import (
    COLORS,
    GRAY,
    LOOKS,
    PALE,
    bars_figure,
    colors_of,
    correspondence_figure,
    cost_figure,
    lines_figure,
    reliability_figure,
    risk_figure,
)
from modebridge.report.tables import DECISIONS, TERMS, StudyTable, decisions_table, dee_cells
from modebridge.report.verdict import networks_alone, short_rows, verdict
from modebridge.scoring import FEW, CurvePoint, LogitTable, Row, correspondence
from modebridge.training import Epoch

KINDS = {"students": "distilled network"}
"""What the page calls the artifacts of a folder, if not like the folder."""
FAMILIES = {"heads": "with heads", "distilled network": "distilled"}
"""The families of rows whose color a line of training has."""
SPARE = COLORS[4:]


@dataclass(frozen=True)
class Samples:
    """The test images on which the first two networks disagree most."""

    images: Tensor  # (N, C, H, W) floats in [0, 1]
    numbers: Tensor  # positions in the test split


@dataclass(frozen=True)
class Agreement:
    """The test probabilities (N, K) of some members, and of the networks that they learned to imitate, by name."""

    imitators: Mapping[str, Tensor]
    targets: Mapping[str, Tensor]


@dataclass(frozen=True)
class StudyPart:
    """A study that was run in the same folder: its name, description, tables and SVG figure."""

    name: str
    about: str
    tables: tuple[StudyTable, ...]
    figure: str


@dataclass(frozen=True)
class PageData:
    """Everything that the page shows."""

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
    heads: Agreement
    bridges: Agreement
    training: Mapping[str, float]  # by row, in epochs of one network; empty if some networks were trained elsewhere


def page(data: PageData) -> str:
    """The page as HTML."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("modebridge.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    # As images, figures cannot run scripts: a run folder may come from anyone.
    environment.filters["data_uri"] = lambda svg: "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    environment.filters["anchor"] = lambda title: re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
    colors, alone = colors_of(data.rows), networks_alone(data.rows, data.answers)
    figures = {
        "Calibration": reliability_figure(short_rows(data.rows), data.answers, colors),
        "A few images": _bars(data, colors),
        "What each head learned": _agreement(data.heads),
        "Decisions": risk_figure(data.rows, data.answers, colors),
        "Along the curves": _profiles(data.profiles) if data.profiles else "",
        "What each bridge learned": _agreement(data.bridges),
        "Training": _training(data.metrics) if data.metrics else "",
    }
    figures = {title: svg for title, svg in figures.items() if svg}
    return environment.get_template("page.html.j2").render(
        data=data,
        figures=figures,
        top=cost_figure(data.rows),
        top_on_phones=cost_figure(data.rows, narrow=True),
        flags={row.name: _flags(row) for row in data.rows},
        contents=["Results", *figures, *(f"Study: {study.name}" for study in data.studies), "About this run"],
        columns=_columns(data),
        summary=verdict(data.rows, data.answers.guess_nll, list(alone.values())),
        best=best_for_cost(data.rows),
        decisions=decisions_table(data.rows),
        few=FEW,
        dees=dee_cells(data.rows),
        alone=[f"{_spoken(name)} {nll:.3f}" for name, nll in alone.items()],
        terms=_terms(data),
    )


def _spoken(name: str) -> str:
    """A mode as people read it: "mode 0"."""
    return name.replace("-", " ")


def _flags(row: Row) -> str:
    """What to add to `modebridge export RUN FILE` for a row."""
    threshold = f" --threshold {row.scores.threshold:.4g}" if row.scores.threshold is not None else ""
    return f"--members {','.join(row.members)}{threshold}"


def _columns(data: PageData) -> list[str]:
    """The columns of the results table."""
    scores = ["", "cost", "ACC %", "NLL", f"minus {data.rows[0].name}", "ECE", "DEE", "params"]
    return [*scores, "training, epochs"] if data.training else scores


def _terms(data: PageData) -> dict[str, str]:
    """What the terms of the page mean."""
    columns = [*DECISIONS, *(column for study in data.studies for table in study.tables for column in table.columns)]
    used = {name.removesuffix(" %").partition(",")[0] for name in _columns(data)} | {column.name for column in columns}
    used |= {"R2", "KL"} if data.heads.imitators or data.bridges.imitators else set()
    known = {", ".join(name for name in names.split(", ") if name in used): text for names, text in TERMS.items()}
    return {names: text for names, text in known.items() if names}


def best_for_cost(rows: Sequence[Row]) -> set[str]:
    """Rows whose calibrated NLL no other row beats at the same or fewer FLOPs."""

    def beaten(row: Row, other: Row) -> bool:
        cheap = other.scores.cost.relative_flops <= row.scores.cost.relative_flops
        return cheap and other.scores.nll < row.scores.nll

    return {row.name for row in rows if not any(beaten(row, other) for other in rows)}


def _agreement(data: Agreement) -> str:
    """R2 and KL of every imitator against every target."""
    compared = [[correspondence(target, own) for target in data.targets.values()] for own in data.imitators.values()]
    return correspondence_figure(list(data.imitators), list(data.targets), compared) if compared else ""


def _bars(data: PageData, colors: Mapping[str, str]) -> str:
    """The images on which the first two networks disagree most: each of them, their mean, and what costs less."""
    by_role = {row.role: row for row in data.rows}
    ours = [by_role[role] for role in ("heads" if "heads" in by_role else "bridge", "distilled") if role in by_role]
    if data.samples is None or not ours:
        return ""
    numbers, two = data.samples.numbers.long(), by_role["two"]
    alone = {_spoken(name): [name] for name in two.members}
    merged = {row.name: row.members for row in (two, *ours)}
    panels = [
        {label: data.answers.probabilities(names)[numbers].float() for label, names in members.items()}
        for members in (alone, merged)
    ]
    truth = [data.classes[int(label)] for label in data.answers.test_labels[numbers]]
    shades = dict(zip(alone, (GRAY, PALE), strict=True))
    return bars_figure(data.samples.images, truth, data.classes, panels, {**colors, **shades})


def _profiles(profiles: Mapping[str, Sequence[CurvePoint]]) -> str:
    """NLL and accuracy along each curve."""
    nlls, accuracies = {}, {}
    for name, points in profiles.items():
        rs = [point.r for point in points]
        nlls[f"curve {name}"] = rs, [point.nll for point in points]
        accuracies[f"curve {name}"] = rs, [100 * point.accuracy for point in points]
    panels = [("validation NLL", nlls), ("validation accuracy, %", accuracies)]
    return lines_figure("r, the position on the curve", panels)


def _training(metrics: Mapping[str, Mapping[str, Sequence[Epoch]]]) -> str:
    """Training losses by epoch, one panel per kind: modes, curves, bridges, heads, distilled network."""
    panels: dict[str, dict[str, tuple[Sequence[float], Sequence[float]]]] = {}
    colors: dict[str, str] = {}
    for folder, series in metrics.items():
        for name, epochs in series.items():
            kind = "heads" if name.startswith("heads-") else KINDS.get(folder, folder)
            label = f"{kind.removesuffix('s')} {name}" if name[0].isdigit() else name
            losses = [one.number for one in epochs], [one.losses["train"] for one in epochs]
            panel = panels.setdefault(f"training loss: {kind}", {})
            panel[label] = losses
            spare = SPARE[(len(panel) - 1) % len(SPARE)]
            colors[label] = LOOKS.get(FAMILIES.get(kind, ""), (spare, ""))[0] if len(series) == 1 else spare
    return lines_figure("epoch", list(panels.items()), colors=colors, scale="log")
