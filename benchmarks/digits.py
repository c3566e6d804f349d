"""The results of the demo over several seeds: how much of the gap a bridge closes, with the spread.

    python benchmarks/digits.py --seeds 5

Prints one line per seed, and the means with their standard deviations (ddof 1) over seeds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path

import torch

from modebridge import __version__
from modebridge.recipes import find_recipe
from modebridge.report import Row, closed_gap
from modebridge.runs import run_recipe


def figures(rows: list[Row]) -> dict[str, float]:
    nll = {row.name: row.nll for row in rows}
    one, two = nll["DE-1"], nll["DE-2"]
    return {
        **nll,
        "gap": one - two,
        "gain of 1 bridge I": one - nll["DE-1 + 1 bridge I"],
        "gain of 1 label control": one - nll["DE-1 + 1 label control"],
        "closed by 1 bridge I": closed_gap(one, nll["DE-1 + 1 bridge I"], two),
        "second bridge I": nll["DE-1 + 1 bridge I"] - nll["DE-1 + 2 bridges I"],
        "third bridge I": nll["DE-1 + 2 bridges I"] - nll["DE-1 + 3 bridges I"],
        "type II on DE-2": two - nll["DE-2 + 1 bridge II"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the results of every seed to this file")
    arguments = parser.parse_args()
    runs: list[dict[str, float]] = []
    for seed in range(arguments.seeds):
        result = run_recipe(find_recipe("digits"), seed=seed)
        runs.append({**figures(result.rows), "seconds": sum(result.seconds.values())})
        last = runs[-1]
        print(
            f"seed {seed}: gap {last['gap']:.3f}, closed by 1 bridge I {last['closed by 1 bridge I']:.0%}, type II "
            f"{last['type II on DE-2']:+.4f}, {last['seconds']:.0f} s" + "".join(f"; {w}" for w in result.warnings),
            flush=True,
        )
    print(f"\nmodebridge {__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
          f"{torch.get_num_threads()} cores, {arguments.seeds} seeds; NLL calibrated on validation\n")  # fmt: skip
    print("| figure | mean | sd | lowest | highest |\n|---|---:|---:|---:|---:|")
    for name in runs[0]:
        values = [run[name] for run in runs]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        print(f"| {name} | {statistics.mean(values):.4f} | {spread:.4f} | {min(values):.4f} | {max(values):.4f} |")
    gap = statistics.mean(run["gap"] for run in runs)
    for what in ("bridge I", "label control"):
        gain = statistics.mean(run[f"gain of 1 {what}"] for run in runs)
        print(f"\nmean gain of one {what} / mean gap from DE-1 to DE-2: {gain / gap:.0%}", end="")
    wins = sum(run["type II on DE-2"] > 0 for run in runs)
    print(f"\nDE-2 + type II beats DE-2 on {wins} of {len(runs)} seeds")
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
