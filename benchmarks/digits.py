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

from modebridge.recipes import changed, find_recipe
from modebridge.runs import run_recipe
from published import add_seed, seeds_in

METHODS = f"members_file={Path(__file__).with_name('controls.py')}", "methods=paper,heads,controls,distilled"


def scores_of(seed: int, settings: list[str]) -> dict[str, dict[str, float]]:
    """Cost, accuracy and calibrated NLL of every row, trained with one seed."""
    result = run_recipe(changed(find_recipe("digits"), settings), seed=seed)
    return {
        row.name: {
            "flops": round(row.scores.cost.relative_flops, 4),
            "accuracy": row.scores.accuracy,
            "nll": row.scores.nll,
        }
        for row in result.rows
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-7")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    given = parser.parse_args()
    for seed in seeds_in(given.seeds, given.out):
        add_seed(given.out, "digits", seed, scores_of(seed, [*METHODS, *given.settings]))
        print(f"seed {seed} done", flush=True)
    for name, row in json.loads(given.out.read_text())["tables"][0]["rows"].items():
        print(f"{name:40} x{row['flops']:.2f} {sum(row['nll']) / len(row['nll']):.4f}")


if __name__ == "__main__":
    main()
