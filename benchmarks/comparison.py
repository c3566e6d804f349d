"""Average the table of `modebridge study comparison` over several runs, for docs/methods.md.

Create the runs with `modebridge study comparison digits --seed 5 --out runs/comparison-5` and so on, then run
`python benchmarks/comparison.py runs/comparison-0 runs/comparison-5 runs/comparison-6`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

HEADER = "| members | FLOPs | params | training, epochs | time | ACC % | NLL | ECE | NLL by seed |"


def main() -> None:
    tables = [
        json.loads((Path(run) / "studies" / "comparison" / "table.json").read_text())["tables"][0]
        for run in sys.argv[1:]
    ]
    runs = [{row["name"]: row["cells"] for row in table["rows"]} for table in tables]
    print(HEADER + "\n|---|" + "---:|" * 8)
    for name in runs[0]:
        values = {
            key: [run[name][key]["mean"] for run in runs] for key in runs[0][name] if all(name in run for run in runs)
        }
        mean = {key: fmean(by_run) for key, by_run in values.items()}
        by_seed = ", ".join(f"{nll:.3f}".removeprefix("0") for nll in values["NLL"])
        print(
            f"| {name} | x{mean['FLOPs']:.2f} | x{mean['#Params']:.2f} | {mean['training']:.0f} | "
            f"x{mean['time']:.2f} | {mean['ACC']:.1f} | {mean['NLL']:.3f} | {mean['ECE']:.3f} | {by_seed} |"
        )


if __name__ == "__main__":
    main()
