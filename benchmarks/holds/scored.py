"""The tables of a hold whose logits are committed: scores, how near bridges come to their targets, paired differences.

NLL, ECE and Brier are calibrated by a temperature from the validation split. Intervals are 95 % percentile bootstrap
intervals over test images, one draw for all rows, so that every ratio and difference is paired; temperatures stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from cifar10_bridges import OTHERS, combinations
from torch import Tensor

from members import kept_name, read_all
from modebridge.ensembles import scale
from modebridge.evaluate import Answers, correspondence, dee, interval_of, resampled_means
from modebridge.evaluate.scores import brier, ece, hits, surprisals
from modebridge.runs import RunFolder

__all__ = ["PAIRS", "TARGETS", "rows_of", "tables"]

BUNDLE = ("mode-0", "other-0-1-small", "I-0-3-small")
"""What bundle.onnx has: the two small bridges with the lowest validation NLL beside mode 0; see bundle.py."""

_MODES = tuple(f"mode-{k}" for k in range(4))
_CURVE, _OTHER = ([("mode-0", f"{kind}-0-{j}-small") for j in OTHERS] for kind in ("I", "other"))
_THREE_CURVES, _THREE_OTHERS = (("mode-0", *(f"{kind}-0-{j}-small" for j in OTHERS)) for kind in ("I", "other"))

Rows = Sequence[tuple[str, ...]]

PAIRS: dict[str, tuple[Rows, Rows]] = {
    "1 type I bridge against DE-1": (_CURVE[:1], [("mode-0",)]),
    "1 type I bridge against the midpoint itself": (_CURVE[:1], [("mode-0", "curve-0-1")]),
    "curve against other mode, mean over 3": (_CURVE, _OTHER),
    "curve against other mode, 3 bridges": ([_THREE_CURVES], [_THREE_OTHERS]),
    "curve against other mode, medium": ([("mode-0", "I-0-1-medium")], [("mode-0", "other-0-1-medium")]),
    "curve against mean of both modes": (_CURVE[:1], [("mode-0", "mean-0-1-small")]),
    "curve against mean of all 4 modes": (_CURVE[:1], [("mode-0", "mean-4-small")]),
    "curve against own mode": (_CURVE[:1], [("mode-0", "self-0-small")]),
    "own mode against DE-1": ([("mode-0", "self-0-small")], [("mode-0",)]),
    "curve against labels": (_CURVE[:1], [("mode-0", "labels-0-1-small")]),
    "labels against DE-1, mean over 2": (
        [("mode-0", "labels-0-1-small"), ("mode-0", "labels-0-1-small-b")],
        [("mode-0",)],
    ),
    "medium against small, curve": ([("mode-0", "I-0-1-medium")], _CURVE[:1]),
    "medium against small, other mode": ([("mode-0", "other-0-1-medium")], _OTHER[:1]),
    "2 type I bridges against 1": ([_THREE_CURVES[:3]], _CURVE[:1]),
    "3 type I bridges against 2": ([_THREE_CURVES], [_THREE_CURVES[:3]]),
    "3 type I bridges against DE-2": ([_THREE_CURVES], [_MODES[:2]]),
    "DE-2 + type II against DE-2": ([(*_MODES[:2], "II-0-1-small")], [_MODES[:2]]),
    "DE-2 + type II: curve against labels": ([(*_MODES[:2], "II-0-1-small")], [(*_MODES[:2], "II-labels-small")]),
    "type I on mode 1 against mode 1": ([("mode-1", "I-1-0-small")], [("mode-1",)]),
    "student of DE-4 against DE-1": ([("distilled-0",)], [("mode-0",)]),
    "student of DE-4 against DE-1, mean over 4 modes": ([("distilled-0",)], [(mode,) for mode in _MODES]),
    "student of DE-4 against 1 type I bridge": ([("distilled-0",)], _CURVE[:1]),
    "student of DE-4 against labels with its mixup": ([("distilled-0",)], [("student-labels",)]),
    "labels with mixup against DE-1, mean over 4 modes": ([("student-labels",)], [(mode,) for mode in _MODES]),
    "student of DE-4: mixup 1.0 against 0.4 (162 epochs)": ([("distilled-0",)], [("student-4-mixup-0.4",)]),
    "mode 0 + student of DE-4 against DE-2": ([("mode-0", "distilled-0")], [_MODES[:2]]),
}
"""Differences that the page speaks of: the mean over some rows less the mean over others."""

TARGETS: dict[str, tuple[str, ...]] = {
    **{f"I-0-{j}-small": (f"curve-0-{j}",) for j in OTHERS},
    "I-1-0-small": ("curve-0-1",),
    "I-0-1-medium": ("curve-0-1",),
    "II-0-1-small": ("curve-0-1",),
    **{f"other-0-{j}-small": (f"mode-{j}",) for j in OTHERS},
    "other-0-1-medium": ("mode-1",),
    "mean-0-1-small": _MODES[:2],
    "mean-4-small": _MODES,
    "mean-4-medium": _MODES,
    "self-0-small": ("mode-0",),
}
"""What each small network imitates."""


def rows_of(answers: Answers) -> list[tuple[str, ...]]:
    """The rows of the table: those of the hold's own log, and the bundle's."""
    bridges = ["labels-0-small", "labels-0-small-b", "labels-0-medium", "II-labels-small", *TARGETS]
    rows = [tuple(kept_name(name) for name in row) for row in combinations(bridges)]
    students = ("distilled-0", "student-4-mixup-0.4", "student-labels")
    rows += [(name,) for name in students] + [("mode-0", name) for name in students]
    return [row for row in (*rows, BUNDLE) if all(name in answers.test for name in row)]


def tables(folder: Path, only: Rows | None = None) -> list[str]:
    """Three tables in Markdown: scores of every row, correspondence, differences; or the first, of some rows only."""
    answers = read_all(RunFolder(folder, writes=False))
    rows = list(only or rows_of(answers))
    labels, columns, scores, nlls = answers.test_labels, [], [], {}
    for row in rows:
        plain, temperature = answers.probabilities(row), answers.temperature(row)
        tempered = scale(plain, temperature)
        surprisal, right = surprisals(tempered, labels).double(), hits(plain, labels).double()
        columns += [surprisal, right]
        nlls[row] = float(surprisal.mean())
        scores.append((100 * right.mean(), nlls[row], ece(tempered, labels), brier(tempered, labels), temperature))
    values = torch.stack(columns, dim=1)
    drawn, means = resampled_means(values), values.mean(dim=0)
    place = {row: 2 * k for k, row in enumerate(rows)}
    one, two = place[_MODES[:1]], place[_MODES[:2]]
    reference = [nlls[_MODES[:count]] for count in range(1, 5)]
    lines = [
        "| members | FLOPs | params | ACC % | NLL | ECE | Brier | T | DEE | way from DE-1 to DE-2: NLL | ACC |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row, score in zip(rows, scores, strict=True):
        flops, params = answers.cost(row)
        cells = [f"{value:.{digits}f}" for value, digits in zip(score, (2, 4, 4, 4, 3), strict=True)]
        ways = [_way(means, drawn, place[row] + k, one + k, two + k) for k in (0, 1)]
        cells += [f"{dee(nlls[row], reference):.2f}", *(ways if place[row] not in (one, two) else ("", ""))]
        lines.append(f"| {' + '.join(row)} | x{flops:.2f} | x{params:.2f} | {' | '.join(cells)} |")
    if only:
        return lines
    lines += ["", "| bridge | imitates | R2 | KL |", "|---|---|---:|---:|"]
    for name, target in TARGETS.items():
        near = correspondence(answers.probabilities(target), answers.probabilities([name]))
        lines.append(f"| {name} | {' + '.join(target)} | {near.r2:.3f} | {near.kl:.3f} |")
    lines += ["", "| difference | NLL | ACC, points |", "|---|---:|---:|"]
    for title, (ours, theirs) in PAIRS.items():
        nll, accuracy = (_difference(drawn, means, place, ours, theirs, k) for k in (0, 1))
        lines.append(f"| {title} | {_signed(nll, 4, 1)} | {_signed(accuracy, 2, 100)} |")
    return lines


def _way(means: Tensor, drawn: Tensor, row: int, one: int, two: int) -> str:
    share = (means[row] - means[one]) / (means[two] - means[one])
    low, high = interval_of((drawn[:, row] - drawn[:, one]) / (drawn[:, two] - drawn[:, one]))
    return f"{100 * share:.0f} % [{100 * low:.0f} to {100 * high:.0f}]"


def _difference(
    drawn: Tensor, means: Tensor, place: dict[tuple[str, ...], int], ours: Rows, theirs: Rows, k: int
) -> tuple[float, float, float]:
    a, b = ([place[row] + k for row in rows] for rows in (ours, theirs))
    low, high = interval_of(drawn[:, a].mean(dim=1) - drawn[:, b].mean(dim=1))
    return float(means[a].mean() - means[b].mean()), low, high


def _signed(found: tuple[float, float, float], digits: int, unit: float) -> str:
    value, low, high = (f"{unit * one:+.{digits}f}" for one in found)
    return f"{value} [{low} to {high}]"
