"""Print the deep ensembles of a results folder from its logits; needs no GPU and no data.

    python benchmarks/holds/table.py results/cifar10-frn

One row per number of modes: mean and standard deviation (ddof 0, as in the paper) over all sets of that size.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from pathlib import Path

from modebridge.runs.folder import RunFolder
from modebridge.runs.read_answers import read_answers
from modebridge.scoring import LogitTable


def deep_ensembles(answers: LogitTable) -> list[str]:
    """The lines of the Markdown table."""
    modes = [name for name in answers.test if name.startswith("mode-")]
    lines = ["| members | sets | ACC % | NLL | ECE | Brier |", "|---|---:|---:|---:|---:|---:|"]
    for count in range(1, len(modes) + 1):
        scores = [answers.score(members) for members in itertools.combinations(modes, count)]
        cells = [
            _spread([100 * score.accuracy for score in scores], 2),
            *(_spread([getattr(score, name) for score in scores], 4) for name in ("nll", "ece", "brier")),
        ]
        lines.append(f"| DE-{count} | {len(scores)} | {' | '.join(cells)} |")
    return lines


def _spread(values: list[float], digits: int) -> str:
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    return f"{mean:.{digits}f}" + (f" +- {deviation:.{digits}f}" if len(values) > 1 else "")


if __name__ == "__main__":
    print("\n".join(deep_ensembles(read_answers(RunFolder(Path(sys.argv[1]), writes=False)))))
