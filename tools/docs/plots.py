"""The plots of the site: `python tools/docs/plots.py [RUN]` writes docs/plots/cost.svg from results/.

With the folder of a run of the demo it also writes docs/plots/decisions.svg.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from drawing import STYLE
from modebridge.report import risk_figure
from modebridge.report.figures import GRAY, LOOKS, axes_of, colors_of, styled, svg_of
from modebridge.runs import existing, gather

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "plots"

NETWORKS = "one, two, ... networks"
DATA: dict[str, tuple[str, dict[str, list[str]]]] = {
    "CIFAR-10": (
        "cifar10-frn",
        {
            NETWORKS: [" + ".join(f"mode-{k}" for k in range(m)) for m in (1, 2, 3)],
            "one network + heads": ["mode-0 + heads-0-others-small"],
            "the same, better trained (CutMix)": ["cutmix-a + cutmix-a>plain, 160 epochs"],
            "distilled network": ["distilled-0"],
            "cascade of two networks": ["DE-2 cascade x1.15"],
            "one network + the paper's bridge": ["mode-0 + I-0-1-small"],
        },
    ),
    "Tiny ImageNet": (
        "tin200-frn",
        {
            NETWORKS: ["mode-0", "mode-0 + mode-1"],
            "one network + heads": ["mode-0 + default-cutmix"],
            "one network + the paper's bridge": ["mode-0 + I-0-1-small"],
        },
    ),
}
"""By data set: its folder, and the rows of each kind."""
STYLES = {
    NETWORKS: (GRAY, "o"),
    "one network + heads": LOOKS["with heads"],
    "the same, better trained (CutMix)": (LOOKS["with heads"][0], "*"),
    "distilled network": LOOKS["distilled"],
    "cascade of two networks": LOOKS["cascade"],
    "one network + the paper's bridge": LOOKS["with type I bridges"],
}
"""The color and marker of each kind, those of every report."""


@styled
def cost_plot() -> str:
    """NLL and accuracy against cost on two data sets."""
    figure, axes = axes_of(2, 2, 4.6)
    for column, (title, (folder, rows)) in enumerate(DATA.items()):
        published = json.loads((ROOT / "results" / folder / "results.json").read_text())["rows"]
        known = {row["name"]: row for row in published}
        for line, (score, label, scale) in enumerate((("nll", "NLL", 1), ("accuracy", "accuracy, %", 100))):
            axis = axes[2 * line + column]
            for kind, names in rows.items():
                points: list[Any] = [known[name] for name in names]
                xs, ys = [one["flops"] for one in points], [scale * one[score] for one in points]
                color, marker = STYLES[kind]
                line = "--" if kind == NETWORKS else "none"
                axis.plot(xs, ys, marker, linestyle=line, color=color, label=kind, markersize=9 if marker == "*" else 6)
            axis.set_ylabel(label)
            axis.margins(x=0.12, y=0.12)
            if line == 0:
                axis.set_title(title)
            else:
                axis.set_xlabel("cost of one image, in networks")
    return svg_of(figure)


def themed(svg: str) -> str:
    """The plot in the color of the page around it: what matplotlib draws in black, and text, which has no color."""
    start = svg.index("<svg")
    head, rest = svg[start:].split(">", 1)
    return f'{head} fill="currentColor">{STYLE}{rest.replace("#000000", "currentColor")}'


if __name__ == "__main__":
    (FOLDER / "cost.svg").write_text(themed(cost_plot()))
    for run in sys.argv[1:]:
        data = gather(existing(run))
        figure = risk_figure(data.rows, data.answers, colors_of(data.rows))
        (FOLDER / "decisions.svg").write_text(themed(figure))
