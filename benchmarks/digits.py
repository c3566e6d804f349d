"""Bridges, their controls and students on the demo's digits over several seeds.

    python benchmarks/digits.py --seeds 0-7 --out FILE.json [--set methods=heads,controls,distilled] [--set modes=4]
    python benchmarks/published.py FILE.json

Prints the mean over seeds of every row of the results table, and writes a score per seed. About a minute per seed on
two cores; seeds that the file already has are not run again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from modebridge.recipes import changed, find_recipe
from modebridge.runs import run_recipe

METHODS = f"members_file={Path(__file__).with_name('controls.py')}", "methods=paper,heads,controls,distilled"


def seeds_in(text: str) -> list[int]:
    """The seeds that "5", "20,21" or "30-37" name.

    >>> seeds_in("3,30-32")
    [3, 30, 31, 32]
    """
    ranges = [part.partition("-") for part in text.split(",")]
    return [seed for first, _, last in ranges for seed in range(int(first), int(last or first) + 1)]


def scores_of(seed: int, settings: list[str]) -> dict[str, dict[str, float]]:
    """Cost, accuracy and calibrated NLL of every row, trained with one seed."""
    result = run_recipe(changed(find_recipe("digits"), settings), seed=seed)
    return {
        row.name: {
            "flops": round(row.scores.cost.relative_flops, 4),
            "accuracy": round(row.scores.accuracy, 5),
            "nll": round(row.scores.nll, 5),
        }
        for row in result.rows
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-7")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    given = parser.parse_args()
    known: dict[str, Any] = json.loads(given.out.read_text())["tables"][0] if given.out.exists() else {}
    table = known or {"title": "digits", "seeds": [], "rows": {}}
    for seed in seeds_in(given.seeds):
        if seed in table["seeds"]:
            continue
        table["seeds"].append(seed)
        for name, scores in scores_of(seed, [*METHODS, *given.settings]).items():
            row = table["rows"].setdefault(name, {"flops": scores["flops"], "accuracy": [], "nll": []})
            row["accuracy"].append(scores["accuracy"])
            row["nll"].append(scores["nll"])
        given.out.write_text(json.dumps({"tables": [table]}, indent=1) + "\n")
        print(f"seed {seed} done", flush=True)
    for name, row in table["rows"].items():
        print(f"{name:40} x{row['flops']:.2f} {sum(row['nll']) / len(row['nll']):.4f}")


if __name__ == "__main__":
    main()
