"""Students trained with mixup or CutMix, alone and with heads that imitate their teachers, on digits.

    python benchmarks/student_heads.py --seeds 48-55 --out FILE.json --cache runs/frontier

Uses the recipe digits: four modes, and students of all four with 60 epochs. A student with heads is the base of
`fit_bridge(net, [student, *modes], budget=0.05)`, the library's default. FILE.json gets one record per seed and row;
modes and students are kept in the cache, which benchmarks/frontier.py shares.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import TypeAlias

import torch

import modebridge as mb
from frontier.scoring import keep, read
from frontier.table import interval
from modebridge.bridges import mode_target
from modebridge.members import DistilledMember
from modebridge.recipes import Recipe, find_recipe
from modebridge.runs import Run, RunFolder
from seed_ranges import seeds_in

STUDENTS: Mapping[str, Mapping[str, float]] = {
    "mixup 1": {},
    "CutMix 1": {"student_mixup": 0.0, "student_cutmix": 1.0},
}
BASELINE = "student, mixup 1"
COLUMNS = (("nll", 1.0, 4), ("accuracy", 100.0, 2))
"""Differences in the table: the score, its unit and its digits."""

Scored: TypeAlias = Mapping[int, Mapping[str, float]]
"""Scores by seed."""


def rows_of(seed: int, cache: Path) -> dict[str, mb.Scores]:
    """Scores on test images, calibrated on validation images, by row."""
    recipe: Recipe = find_recipe("digits")
    scores: dict[str, mb.Scores] = {}
    for name, mixing in STUDENTS.items():
        place = cache / ("digits" if not mixing else "digits-cutmix-students") / str(seed)
        run = Run(replace(recipe, **mixing), seed=seed, folder=RunFolder(place))  # type: ignore[arg-type]
        context, modes = run.context, [run.mode(k) for k in range(4)]
        valid, test = context.data.valid(), context.data.test()
        (student,) = run.load(DistilledMember(0)).networks.values()
        config = replace(recipe.bridge, seed=context.seed_of("bridges"))
        bases = {f"student, {name}": [student, *modes]} | ({"mode 0": modes} if not mixing else {})
        for title, networks in bases.items():
            fed = context.data.train("bridges", bridges=True)
            bridge = mb.fit_bridge(
                context.net,
                networks[0],
                fed,
                target=[mode_target(mode) for mode in networks[1:]],
                budget=0.05,
                design="auto",
                cutmix=1.0,
                config=config,
                valid=valid,
            )
            for row, bridges in ((title, []), (f"{title} + {bridge.heads} heads", [bridge])):
                ensemble = mb.BridgedEnsemble(context.net, networks[:1], bridges).calibrate(valid)
                scores[row] = mb.evaluate(ensemble, test)
        if not mixing:
            for count in (2, 3, 4):
                scores[f"DE-{count}"] = mb.evaluate(
                    mb.BridgedEnsemble(context.net, modes[:count]).calibrate(valid), test
                )
    return scores


def table(file: Path) -> list[str]:
    """Means over seeds, and paired differences to the student with 95 % intervals (t)."""
    by_row: dict[str, dict[int, dict[str, float]]] = {}
    for record in read(file):
        by_row.setdefault(record["variant"], {})[record["seed"]] = record
    lines = [
        f"| row | FLOPs | ACC % | NLL | NLL minus {BASELINE} | ACC minus it, points |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row, records in by_row.items():
        nll, acc, flops = (mean(record[key] for record in records.values()) for key in ("nll", "accuracy", "flops"))
        apart = ["", ""] if row == BASELINE else [_apart(records, by_row[BASELINE], *one) for one in COLUMNS]
        lines.append(f"| {row} | x{flops:.2f} | {100 * acc:.2f} | {nll:.4f} | {apart[0]} | {apart[1]} |")
    return lines


def _apart(ours: Scored, theirs: Scored, key: str, scale: float, digits: int) -> str:
    middle, low, high = interval([scale * (ours[seed][key] - theirs[seed][key]) for seed in ours])
    return f"{middle:+.{digits}f} [{low:+.{digits}f} to {high:+.{digits}f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("runs/frontier"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in seeds_in(given.seeds):
        made = [
            {
                "data": "digits",
                "seed": seed,
                "variant": row,
                "nll": scores.nll,
                "accuracy": scores.accuracy,
                "ece": scores.ece,
                "flops": scores.cost.relative_flops,
            }
            for row, scores in rows_of(seed, given.cache).items()
        ]
        keep(given.out, made)
        print(json.dumps({"seed": seed, "rows": len(made)}), flush=True)
    print("\n".join(table(given.out)))


if __name__ == "__main__":
    main()
