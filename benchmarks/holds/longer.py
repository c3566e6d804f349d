"""What longer training changed in results/cifar10-bn: its rows beside those of an earlier commit, paired by test image.

The modes of both are the same. The earlier hold had time for 55, 59 and 76 epochs of curves, bridges and students.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

from cifar10_bn_plans import IN_RECIPES
from published import Row
from scored import score_rows

from modebridge.scoring import interval_of, resampled_means

__all__ = ["ROWS", "longer"]

ROWS: tuple[Row, ...] = (
    *((f"curve-0-{j}",) for j in (1, 2)),
    *(
        ("mode-0", name)
        for name in (
            *("I-0-1-small", "I-0-2-small", "other-0-1-small", "other-0-2-small"),
            *("mean-3-small", "self-0-small", "labels-0-1-small"),
            *("heads-0-midpoints-small", "heads-0-others-small", "heads-0-midpoints+others-small"),
            *("heads-0-others-medium", "heads-others-built", "heads-others-early", "heads-others-taps"),
        )
    ),
    ("mode-0", "mode-1", "II-0-1-small"),
    ("distilled-0",),
    ("student-labels",),
)


def longer(folder: Path, commit: str) -> list[str]:
    """The lines of the Markdown table.

    Args:
        folder: the results folder, in a clone with its history.
        commit: an earlier commit, in which heads have the names of the hold.
    """
    before = {kept: name for name, kept in IN_RECIPES.items()}
    with tempfile.TemporaryDirectory() as scratch:
        then = score_rows(_at(commit, folder, Path(scratch)), [tuple(before.get(n, n) for n in row) for row in ROWS])
    epochs = ("fewer epochs", "100 epochs")
    titles = [
        "members",
        *(f"{score}, {how}" for score in ("ACC %", "NLL") for how in epochs),
        "difference in NLL, 95 %",
    ]
    lines = [f"| {' | '.join(titles)} |", "|---|---:|---:|---:|---:|---:|"]
    for row, old, new in zip(ROWS, then, score_rows(folder, ROWS), strict=True):
        change = new.surprisal - old.surprisal
        low, high = interval_of(resampled_means(change[:, None])[:, 0])
        cells = [f"{100 * one.right.mean():.2f}" for one in (old, new)]
        cells += [f"{one.surprisal.mean():.4f}" for one in (old, new)]
        lines.append(f"| {' + '.join(row)} | {' | '.join(cells)} | {change.mean():+.4f} ({low:+.4f} to {high:+.4f}) |")
    return lines


def _at(commit: str, folder: Path, scratch: Path) -> Path:
    """A copy of the folder as it was in a commit."""
    command = ["git", "-C", str(folder), "archive", commit, "."]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    place = scratch / folder.name
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(place, filter="data")
    return place
