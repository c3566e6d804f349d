"""The tables of a hold with committed logits: scores, how closely bridges match their targets, paired differences.

NLL, ECE and Brier are calibrated by a temperature fitted on the validation split. Intervals are 95 % percentile
bootstrap intervals over test images; all rows share the draws, so that every ratio and difference is paired, and
temperatures are not refitted. What each folder publishes is in published_*.py; rows stored as records (records.py) are
read from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from published import Published, Row, Rows
from published_bn import BN
from published_frn import FRN
from published_parts import PARTS
from published_tin200 import TIN200
from records import FILE, ece_of, nearness, read_records, records_of
from torch import Tensor

from members import read_all
from modebridge.runs import RunFolder
from modebridge.scoring import LogitTable, correspondence, dee, interval_of, resampled_means
from modebridge.scoring.scores import hits, surprisals

__all__ = ["RESULTS", "Scored", "record", "score_rows", "tables"]

RESULTS = {"cifar10-frn": FRN, "cifar10-bn": BN, "cifar10-parts": PARTS, "tin200-heads": TIN200}
"""Records by the name of the folder."""


class Scored(NamedTuple):
    """A row: values per image for intervals, and its other cells."""

    surprisal: Tensor
    right: Tensor
    ece: float
    brier: float
    temperature: float
    cost: tuple[float, float]


def record(published: Published, answers: LogitTable) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and notes of rows.safetensors: rows and correspondence of members whose logits are not kept."""
    tensors, notes = records_of(answers, published.recorded)
    names = {row[-1] for row in published.recorded}
    for (*_, name), targets in published.targets.items():
        for k, target in enumerate(targets if name in names else ()):
            tensors |= nearness(answers, name, target, k if len(targets) > 1 else None)
    return tensors, notes


def tables(folder: Path, only: Rows | None = None) -> list[str]:
    """Three tables in Markdown: scores of every row, correspondence, differences; or only the scores of some rows."""
    published, answers = RESULTS[folder.name], read_logits(folder)
    tensors, _ = read_records(folder / FILE)
    rows = list(only or published.rows)
    scores = score_rows(folder, rows, answers)
    values = torch.stack([column for score in scores for column in (score.surprisal, score.right)], dim=1)
    drawn, means = resampled_means(values), values.mean(dim=0)
    place = {row: 2 * k for k, row in enumerate(rows)}
    ensembles = [tuple(f"mode-{k}" for k in range(count)) for count in range(1, published.modes + 1)]
    one, two = (place[members] for members in ensembles[:2])
    reference = [float(means[place[members]]) for members in ensembles]
    lines = [
        "| members | FLOPs | params | ACC % | NLL | ECE | Brier | T | DEE | way from DE-1 to DE-2: NLL | ACC |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row, score in zip(rows, scores, strict=True):
        mean_nll, right = (float(means[place[row] + k]) for k in (0, 1))
        numbers = (100 * right, mean_nll, score.ece, score.brier, score.temperature)
        cells = [f"{value:.{digits}f}" for value, digits in zip(numbers, (2, 4, 4, 4, 3), strict=True)]
        ways = [_way(means, drawn, place[row] + k, one + k, two + k) for k in (0, 1)]
        cells += [f"{dee(mean_nll, reference):.2f}", *(ways if place[row] not in (one, two) else ("", ""))]
        flops, params = score.cost
        lines.append(f"| {' + '.join(row)} | x{flops:.2f} | x{params:.2f} | {' | '.join(cells)} |")
    if only:
        return lines
    lines += [
        "",
        "| bridge | imitates | R2 | KL |",
        "|---|---|---:|---:|",
        *_correspondences(published, answers, tensors),
    ]
    lines += ["", "| difference | NLL | ACC, points |", "|---|---:|---:|"]
    for title, (ours, theirs) in published.pairs.items():
        nll, accuracy = (_difference(drawn, means, place, ours, theirs, k) for k in (0, 1))
        lines.append(f"| {title} | {_signed(nll, 4, 1)} | {_signed(accuracy, 2, 100)} |")
    return lines


def read_logits(folder: Path) -> LogitTable | None:
    """The logits of a folder; None if everything in it is recorded."""
    return read_all(RunFolder(folder, writes=False)) if (folder / "logits").exists() else None


def score_rows(folder: Path, rows: Rows, answers: LogitTable | None = None) -> list[Scored]:
    """Rows from logits, or from records if they are stored there."""
    published, answers = RESULTS[folder.name], answers or read_logits(folder)
    tensors, notes = read_records(folder / FILE)
    return [
        _recorded(row, tensors, notes)
        if " + ".join(row) in notes
        else _scored(answers, *published.cascades.get(row[0], (row, None)))
        for row in rows
    ]


def _scored(answers: LogitTable | None, members: Row, cost: float | None) -> Scored:
    """A row from logits; with an average cost, a cascade whose threshold is chosen for it."""
    assert answers is not None
    threshold, labels = None if cost is None else answers.threshold(members, cost), answers.test_labels
    table, numbers = answers.calibrated(members, threshold=threshold), answers.score(members, threshold=threshold)
    costs = numbers.relative_flops, numbers.relative_params
    surprisal, right = surprisals(table, labels).double(), hits(table, labels).double()
    return Scored(surprisal, right, numbers.ece, numbers.brier, numbers.temperature, costs)


def _recorded(row: Row, tensors: dict[str, Tensor], notes: dict[str, dict[str, float]]) -> Scored:
    name = " + ".join(row)
    surprisal, right, confidence, error = (
        tensors[f"{name}/{key}"] for key in ("surprisal", "right", "confidence", "squared_error")
    )
    note = notes[name]
    cost = note["flops"], note["params"]
    return Scored(surprisal, right, ece_of(confidence, right), float(error.mean()), note["temperature"], cost)


def _correspondences(published: Published, answers: LogitTable | None, tensors: dict[str, Tensor]) -> list[str]:
    lines = []
    for row, targets in published.targets.items():
        for k, target in enumerate(targets):
            name = " + ".join(row) + (f", head {k}" if len(targets) > 1 else "")
            if f"{name}/kl" in tensors:
                kl, residual, variation = (tensors[f"{name}/{key}"] for key in ("kl", "residual", "variation"))
                r2, mean_kl = float(1 - residual.sum() / variation.sum()), float(kl.mean())
            else:
                assert answers is not None
                heads = answers.heads(row[-1])
                imitator = heads[k].double().softmax(dim=-1) if len(targets) > 1 else answers.probabilities(row)
                agreement = correspondence(answers.probabilities(target), imitator)
                r2, mean_kl = agreement.r2, agreement.kl
            lines.append(f"| {name} | {' + '.join(target)} | {r2:.3f} | {mean_kl:.3f} |")
    return lines


def _way(means: Tensor, drawn: Tensor, row: int, one: int, two: int) -> str:
    share = (means[row] - means[one]) / (means[two] - means[one])
    low, high = interval_of((drawn[:, row] - drawn[:, one]) / (drawn[:, two] - drawn[:, one]))
    return f"{100 * share:.0f} % [{100 * low:.0f} to {100 * high:.0f}]"


def _difference(
    drawn: Tensor, means: Tensor, place: dict[Row, int], ours: Rows, theirs: Rows, k: int
) -> tuple[float, float, float]:
    a, b = ([place[row] + k for row in rows] for rows in (ours, theirs))
    low, high = interval_of(drawn[:, a].mean(dim=1) - drawn[:, b].mean(dim=1))
    return float(means[a].mean() - means[b].mean()), low, high


def _signed(interval: tuple[float, float, float], digits: int, unit: float) -> str:
    value, low, high = (f"{unit * number:+.{digits}f}" for number in interval)
    return f"{value} [{low} to {high}]"
