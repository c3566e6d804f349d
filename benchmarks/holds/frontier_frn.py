"""Write the records that `benchmarks/frontier.py table` prints, from the committed logits of results/cifar10-frn.

    python benchmarks/holds/frontier_frn.py results/cifar10-frn results/frontier-cifar10.json
    python benchmarks/frontier.py table results/frontier-cifar10.json

Two passes on the same modes: the heads (118 epochs, CutMix 1.0) and the others (145 epochs, mixup 0.4). The file of the
hold itself has only the heads, scored before their logits were rounded to half precision.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from heads_frn import HEADS

from frontier.scoring import Record, Spent, keep, records
from frontier.variants import VARIANTS
from members import read_all
from modebridge.runs import RunFolder
from modebridge.scoring import LogitTable

__all__ = ["remade"]

EARLIER = {
    "paper small": ("I-0-1-small",),
    "paper medium": ("I-0-1-medium",),
    "3 paper bridges": tuple(f"I-0-{j}-small" for j in (1, 2, 3)),
    "3 small bridges on the others": tuple(f"other-0-{j}-small" for j in (1, 2, 3)),
    "1 head: other mode": ("other-0-1-small",),
    "1 head: mean of DE-4": ("mean-4-small",),
    "control: labels": ("labels-0-1-small",),
    "control: self": ("self-0-small",),
}
"""Variants of the comparison that an earlier pass trained, by their members in the folder."""
LOGS = {"log-bridges.txt": 18, "log-heads.txt": len(HEADS)}
"""The logs of the two passes, and how many bridges each trained."""


def remade(folder: Path) -> list[Record]:
    """The records of all variants and of the lines to beat."""
    every = read_all(RunFolder(folder, writes=False))
    earlier, heads = (_spent(folder / log, count) for log, count in LOGS.items())
    names = {f"mode-{k}": f"mode-{k}" for k in range(4)} | {"midpoint-1": "curve-0-1", "student": "distilled-0"}
    spent: dict[str, Spent] = {}
    for members, trained in ((EARLIER, earlier), ({title: (name,) for name, title in HEADS.items()}, heads)):
        for title, bridges in members.items():
            parts = [str(part) for part in VARIANTS[title].parts]
            names |= dict(zip(parts, bridges, strict=True))
            spent |= dict.fromkeys(parts, trained)
    valid, test = ({name: table[kept] for name, kept in names.items()} for table in (every.valid, every.test))
    costs = {name: every.costs[kept] for name, kept in names.items()}
    answers = LogitTable(valid, test, every.valid_labels, every.test_labels, costs)
    variants = {title: VARIANTS[title] for title in (*EARLIER, *HEADS.values())}
    return records(answers, variants, {"data": "cifar10", "seed": 0}, spent)


def _spent(log: Path, bridges: int) -> Spent:
    """A bridge's share of the seconds of its pass, and the epochs, from the log."""
    lines = re.findall(r"^\[ *([\d.]+) s\] (?:bridges|mixup 0, cutmix 1) (\d+)/\d+ ([\d.]+) s", log.read_text(), re.M)
    start, end = float(lines[0][0]) - float(lines[0][2]), float(lines[-1][0])
    return (end - start) / bridges, int(lines[-1][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    keep(given.out, remade(given.folder))


if __name__ == "__main__":
    main()
