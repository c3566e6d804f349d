"""The figures of a run, each one a function from plain data to SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from modebridge.report.drawing import COLOURS, GREY, INK, LEGEND, Canvas, whole_ticks
from modebridge.scoring import Correspondence, CurvePoint, Reliability
from modebridge.training import Epoch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "bars_figure",
    "correspondence_figure",
    "profile_figure",
    "reliability_figure",
    "training_figure",
]

DASHES = ("-", "--", ":", "-.")
"""Line styles: one per round through the colors."""


def profile_figure(profiles: Mapping[str, Sequence[CurvePoint]]) -> str:
    """NLL and accuracy along each curve."""
    canvas = Canvas(1, 2, 3.0)
    for colour, (name, points) in zip(cycle(COLOURS), profiles.items(), strict=False):
        rs = [point.r for point in points]
        for axis, label, values in (
            (canvas.axes[0], "NLL", [point.nll for point in points]),
            (canvas.axes[1], "accuracy, %", [100 * point.accuracy for point in points]),
        ):
            tips = [f"curve {name}, r = {r:.2g}: {label} {value:.4g}" for r, value in zip(rs, values, strict=True)]
            canvas.points(axis, rs, values, tips, "-", color=colour, label=f"curve {name}")
            axis.set_ylabel(f"validation {label}")
            axis.set_xlabel("r, the position on the curve")
    canvas.legend()
    return canvas.svg("profile", "Validation NLL and accuracy of the networks along each curve")


def reliability_figure(diagrams: Sequence[tuple[str, Reliability, Reliability]]) -> str:
    """Accuracy against confidence before (gray) and after calibration, one panel per combination."""
    canvas = Canvas(1, len(diagrams), 2.9, sharey=True)
    for axis, (name, before, after) in zip(canvas.axes, diagrams, strict=True):
        axis.plot([0, 1], [0, 1], ":", color=GREY, linewidth=1)
        for table, colour, label in ((before, GREY, "before"), (after, COLOURS[0], "after")):
            seen = table.count > 0
            bins = [tensor[seen].tolist() for tensor in (table.confidence, table.accuracy, table.count)]
            tips = [
                f"{label}: confidence {confidence:.3f}, accuracy {accuracy:.3f}, {count:,} images"
                for confidence, accuracy, count in zip(*bins, strict=True)
            ]
            canvas.points(axis, bins[0], bins[1], tips, "-", color=colour, label=f"{label} temperature scaling")
        axis.set_title(name, fontsize=9, color=INK)
        axis.set_xlabel("confidence")
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1)
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    canvas.axes[0].set_ylabel("accuracy")
    canvas.legend()
    return canvas.svg("reliability", "Reliability diagrams before and after temperature scaling")


def correspondence_figure(
    bridges: Sequence[str], targets: Sequence[str], compared: Sequence[Sequence[Correspondence]]
) -> str:
    """R2 and KL of every bridge against every curve's midpoint; the better, the stronger the color."""
    canvas = Canvas(1, 2, 0.9 + 0.26 * len(bridges))
    panels = (("r2", "R2", COLOURS[2]), ("kl", "KL, nats", COLOURS[0]))
    for axis, (score, title, colour) in zip(canvas.axes, panels, strict=True):
        table = np.array([[getattr(pair, score) for pair in row] for row in compared])
        axis.grid(False)
        # Opacity instead of a color scale: the numbers stay readable on light and dark pages.
        opacity = _opacity(table if title == "R2" else -table)
        for y, x in product(range(len(bridges)), range(len(targets))):
            (cell,) = axis.bar(x + 0.5, 1, 1, bottom=y, color=(colour, opacity[y, x]))
            canvas.tip(cell, f"{bridges[y]} against {targets[x]}: {title.removesuffix(', nats')} {table[y, x]:.4f}")
            axis.text(x + 0.5, y + 0.5, f"{table[y, x]:.3f}", ha="center", va="center", fontsize=8, color=INK)
        axis.set_xticks(np.arange(len(targets)) + 0.5, targets)
        axis.set_yticks(np.arange(len(bridges)) + 0.5, bridges if axis is canvas.axes[0] else [""] * len(bridges))
        axis.set_xlim(0, len(targets))
        axis.set_ylim(len(bridges), 0)
        axis.set_title(title, fontsize=9, color=INK)
    return canvas.svg("correspondence", "R2 and KL of bridges against the midpoints of curves")


def _opacity(scores: np.ndarray) -> np.ndarray:
    """From hardly visible for the worst score to 0.6 for the best."""
    known = scores[np.isfinite(scores)]
    low, span = (known.min(), np.ptp(known)) if known.size else (0.0, 0.0)
    shares = (scores - low) / (span or 1.0)
    opacity: np.ndarray = 0.05 + 0.55 * np.clip(np.nan_to_num(shares, nan=0.0, posinf=1.0, neginf=0.0), 0, 1)
    return opacity


def bars_figure(
    images: Tensor, truth: Sequence[str], classes: Sequence[str], probabilities: Mapping[str, Tensor]
) -> str:
    """The paper's bar charts: an image, the predictions of both ends, and those of the midpoint and the bridge.

    Args:
        images: (N, C, H, W) floats in [0, 1].
        truth: true class per image.
        classes: class names.
        probabilities: four tables of probabilities (N, K): the two ends, the midpoint, the bridge, in this order.
    """
    count = len(images)
    canvas = Canvas(count, 3, 1.25 * count, width_ratios=[1, 3.4, 3.4])
    labels = list(probabilities)
    palette = (GREY, COLOURS[3], COLOURS[1], COLOURS[0])
    for row in range(count):
        picture, ends, middle = canvas.axes[3 * row : 3 * row + 3]
        _picture(picture, images[row], truth[row])
        kept = _likely([probabilities[label][row] for label in labels], 10)
        places = np.arange(len(kept))
        for axis, pair in ((ends, (0, 1)), (middle, (2, 3))):
            for offset, k in zip((-0.2, 0.2), pair, strict=True):
                heights = [float(probabilities[labels[k]][row][c]) for c in kept]
                bars = axis.bar(places + offset, heights, 0.38, color=palette[k], label=labels[k])
                for bar, c, height in zip(bars, kept, heights, strict=True):
                    canvas.tip(bar, f"{labels[k]}: {classes[c]} {height:.3f}")
            axis.set_xticks(places, [classes[c] for c in kept] if row == count - 1 or len(classes) > 10 else [])
            axis.tick_params(axis="x", labelsize=7)
            if max(map(len, classes)) > 3:
                for text in axis.get_xticklabels():
                    text.set(rotation=45, ha="right", rotation_mode="anchor")
            axis.set_ylim(0, 1)
            axis.set_yticks([0, 0.5, 1])
            if row == 0:
                place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 1.45)}
                axis.legend(ncols=2, **place, **LEGEND)
    return canvas.svg("bars", "Sample images with the class probabilities of both ends, the midpoint and the bridge")


def _likely(tables: Sequence[Tensor], most: int) -> list[int]:
    """All classes if there are few, otherwise those with the highest probability in any table."""
    if len(tables[0]) <= most:
        return list(range(len(tables[0])))
    peak = np.max([table.numpy() for table in tables], axis=0)
    return sorted(np.argsort(-peak)[:most].tolist())


def _picture(axis: Axes, image: Tensor, truth: str) -> None:
    pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
    axis.imshow(pixels if pixels.shape[-1] == 3 else pixels[..., 0], cmap="gray", interpolation="nearest")
    axis.set_axis_off()
    axis.set_title(truth, fontsize=8, color=INK)


def training_figure(metrics: Mapping[str, Mapping[str, Sequence[Epoch]]]) -> str:
    """Training losses by epoch, one panel per folder of artefacts: modes, curves, bridges."""
    canvas = Canvas(1, max(1, len(metrics)), 2.6)
    for axis, (folder, series) in zip(canvas.axes, metrics.items(), strict=False):
        styles = cycle(product(DASHES, COLOURS))
        for (dash, colour), (name, epochs) in zip(styles, series.items(), strict=False):
            numbers, losses = [epoch.number for epoch in epochs], [epoch.losses["train"] for epoch in epochs]
            (line,) = axis.plot(numbers, losses, dash, color=colour, linewidth=1.2, label=name)
            canvas.tip(line, f"{folder} {name}: loss {losses[-1]:.4g} after epoch {numbers[-1]}")
        axis.set_title(folder, fontsize=9, color=INK)
        axis.set_xlabel("epoch")
        whole_ticks(axis)
    canvas.axes[0].set_ylabel("training loss")
    canvas.legends()
    return canvas.svg("training", "Training losses by epoch of " + ", ".join(metrics))
