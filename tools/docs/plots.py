"""The plots of the site: `python tools/docs/plots.py [RUN]` writes docs/plots from results/.

Each has a version for phones, NAME-narrow.svg, which staging.py puts beside it. With the folder of a run of the demo
it also writes docs/plots/decisions.svg.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from drawing import STYLE
from modebridge.report import risk_figure
from modebridge.report.figures import COLORS, GRAY, INK, LOOKS, NARROW, PALE, WIDTH, axes_of, colors_of, styled, svg_of
from modebridge.runs import existing, gather

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "plots"

NETWORKS = "one, two, ... networks"
DATA: dict[str, tuple[str, dict[str, list[str]]]] = {
    "CIFAR-10, FRN": (
        "cifar10-frn",
        {
            NETWORKS: [" + ".join(f"mode-{k}" for k in range(m)) for m in (1, 2, 3)],
            "one network + heads": ["mode-0 + heads-0-others-small"],
            "distilled network": ["distilled-0"],
            "cascade of two networks": ["DE-2 cascade x1.15"],
            "one network trained with CutMix": ["cutmix-a", "cutmix-b"],
        },
    ),
    "CIFAR-10, batch norm": (
        "cifar10-bn-designs",
        {
            NETWORKS: ["plain", "plain + plain-b"],
            "one network + heads": ["plain + plain>plain-b"],
            "cascade of two networks": ["plain + plain-b @1.15"],
            "one network trained with CutMix": ["cutmix-a"],
        },
    ),
    "Tiny ImageNet, FRN": (
        "tin200-frn",
        {
            NETWORKS: ["mode-0", "mode-0 + mode-1"],
            "one network + heads": ["mode-0 + default-cutmix"],
        },
    ),
}
"""By data set: its folder, and the rows of each kind."""
STYLES = {
    NETWORKS: (GRAY, "o"),
    "one network + heads": LOOKS["with heads"],
    "distilled network": LOOKS["distilled"],
    "cascade of two networks": LOOKS["cascade"],
    "one network trained with CutMix": ("#000000", "*"),  # the color of text
}
"""The color and marker of each kind, those of every report."""


@styled
def cost_plot(narrow: bool = False) -> str:
    """NLL and accuracy against cost."""
    figure, axes = axes_of(2 * len(DATA), 1, 12.0, NARROW) if narrow else axes_of(2, len(DATA), 4.6)
    for column, (title, (folder, rows)) in enumerate(DATA.items()):
        known = {row["name"]: row for row in _rows(folder)}
        for line, (score, label, scale) in enumerate((("nll", "NLL", 1), ("accuracy", "accuracy, %", 100))):
            axis = axes[2 * column + line if narrow else len(DATA) * line + column]
            for kind, names in rows.items():
                points: list[Any] = [known[name] for name in names]
                xs, ys = [one["flops"] for one in points], [scale * one[score] for one in points]
                color, marker = STYLES[kind]
                joined = "--" if kind == NETWORKS else "none"
                axis.plot(
                    xs, ys, marker, linestyle=joined, color=color, label=kind, markersize=7 if marker == "*" else 6
                )
            axis.set_ylabel(label)
            axis.margins(x=0.12, y=0.12)
            if line == 0:
                axis.set_title(title)
            if line == 1:
                axis.set_xlabel("cost of one image, in networks")
    return svg_of(figure)


TRIED = {
    "CIFAR-10, FRN": ["cifar10-frn"],
    "CIFAR-10, batch norm": ["cifar10-bn", "cifar10-bn-designs"],
    "CIFAR-100, FRN": ["cifar100-frn"],
    "Tiny ImageNet, FRN": ["tin200-frn"],
}
KINDS = (
    (re.compile(r"cascade|@"), "cascade", LOOKS["cascade"]),
    (re.compile(r"(distilled|student)[^+]*$"), "distilled network", LOOKS["distilled"]),
    (re.compile(r"early|stem"), "with a head that reads early", ("#c44e6a", "P")),
    (re.compile(r"\bI-\d|bridge I\b"), "with the paper's bridges", LOOKS["with type I bridges"]),
    (re.compile(r"^cutmix.* \+ "), "with heads, trained with CutMix itself", (LOOKS["with heads"][0], "*")),
    (re.compile(r" \+ "), "with heads and controls that read late", LOOKS["with heads"]),
    (re.compile(r""), "one network, trained otherwise", (GRAY, "o")),
)
"""Kinds of rows by their names; the first that matches."""
ALONE = re.compile("mode-[1-9]|curve-|(I|other|self|labels|mean|default)-[^+]*$")
"""Other networks than the first one, and small networks without theirs."""
PUBLISHED = "diffusion bridge networks, published", ((1.166, 120.4), (1.332, 135.9)), ("none", "*")
"""Kim et al. (2024), of 3 teachers, CIFAR-10 FRN: the share of the gap in accuracy between their own networks."""
LIMITS = (0.985, 1.27), (-60, 150)


@styled
def frontier_plot(narrow: bool = False) -> str:
    """The share of the gap between one network and two that everything cheap closes, on each data set."""
    rows_of_axes, height, width = (len(TRIED), 8.0, NARROW) if narrow else (2, 4.6, WIDTH)
    figure, axes = axes_of(rows_of_axes, 2 * len(TRIED) // rows_of_axes, height, width, sharex=True, sharey=True)
    for column, (title, folders) in enumerate(TRIED.items()):
        rows = [row for folder in folders for row in _rows(folder)]
        for line, key in enumerate(("way_nll", "way_accuracy")):
            axis = axes[2 * column + line if narrow else len(TRIED) * line + column]
            for row in rows:
                kind, (color, marker) = next(rest for name, *rest in KINDS if name.search(row["name"]))
                if key in row and row["flops"] < LIMITS[0][1] and not ALONE.match(row["name"]):
                    spot = row["flops"], 100 * row[key][0]
                    axis.plot(
                        *spot,
                        marker,
                        linestyle="none",
                        color=color,
                        alpha=0.75,
                        markersize=8 if marker == "*" else 6,
                        label=kind,
                    )
            if line and not column:
                label, spots, (_, star) = PUBLISHED
                axis.plot(*zip(*spots, strict=True), star, linestyle="none", color=INK, markersize=10, label=label)
            for level in (0, 100):
                axis.axhline(level, color=GRAY, linewidth=0.8, linestyle="--")
            axis.set_xlim(*LIMITS[0])
            axis.set_ylim(*LIMITS[1])
            if narrow:
                axis.set_title(f"{title}: {'accuracy' if line else 'NLL'}", fontsize=8)
            elif not line:
                axis.set_title(title)
    last = axes[-2:] if narrow else axes[len(TRIED) :]
    if narrow:
        figure.supylabel("gap closed, %", fontsize=9)
    else:
        axes[0].set_ylabel("gap closed in NLL, %")
        last[0].set_ylabel("in accuracy, %")
    for axis in last:
        axis.set_xlabel("cost, in networks")
    return svg_of(figure)


SIDES = {
    "late, on plain": "plain>plain-b",
    "early, on plain": "early plain>plain-b",
    "late, on CutMix": "cutmix-a>plain",
    "late, x1.16, on CutMix": "large cutmix-a>plain",
    "early, on CutMix": "early cutmix-a>plain",
}


@styled
def sides_plot(narrow: bool = False) -> str:
    """Which network heads agree with where their base and their target predict different classes."""
    published = json.loads((ROOT / "results" / "cifar10-bn-designs" / "results.json").read_text())
    known = {one["head"]: one for one in published["sides"]}
    figure, (axis,) = axes_of(1, 1, 2.0, NARROW) if narrow else axes_of(1, 1, 2.0)
    for place, name in enumerate(SIDES.values()):
        base, target = (100 * known[name][f"with its {side}"] for side in ("base", "target"))
        parts = (("its base", base, GRAY), ("its target", target, COLORS[0]), ("neither", 100 - base - target, PALE))
        start = 0.0
        for label, width, color in parts:
            axis.barh(place, width, left=start, color=color, label=label)
            start += width
    axis.set_yticks(range(len(SIDES)), [*SIDES])
    axis.invert_yaxis()
    axis.set_xlabel("% of images on which base and target disagree")
    return svg_of(figure)


def _rows(folder: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((ROOT / "results" / folder / "results.json").read_text())["rows"]
    return rows


def themed(svg: str) -> str:
    """The plot in the color of the page around it: what matplotlib draws in black, and text, which has no color."""
    start = svg.index("<svg")
    head, rest = svg[start:].split(">", 1)
    return f'{head} fill="currentColor">{STYLE}{rest.replace("#000000", "currentColor")}'


PLOTS = {"cost": cost_plot, "frontier": frontier_plot, "sides": sides_plot}


if __name__ == "__main__":
    for name, plot in PLOTS.items():
        (FOLDER / f"{name}.svg").write_text(themed(plot()))
        (FOLDER / f"{name}-narrow.svg").write_text(themed(plot(narrow=True)))
    for run in sys.argv[1:]:
        data = gather(existing(run))
        figure = risk_figure(data.rows, data.answers, colors_of(data.rows))
        (FOLDER / "decisions.svg").write_text(themed(figure))
