"""What `advise` chooses on the demo's digits over several seeds, beside one network and the best in hindsight.

    python benchmarks/advise.py --seeds 0-7 --out results/digits/advise.json
    python benchmarks/published.py results/digits/advise.json

Choices are made on validation images, all of them or the first 100 or 70, and scored on test images. The best in
hindsight has the lowest test NLL within the budget. About 30 seconds per seed on one core.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from modebridge.recipes import find_recipe
from modebridge.runs import run_recipe
from modebridge.scoring import LogitTable, advise
from published import seeds_in

BUDGETS, SIZES = (1.06, 1.2, 2.0, 3.0), (397, 100, 70)


def choices(table: LogitTable, budget: float, images: int) -> dict[str, tuple[str, ...]]:
    """The members of each row."""
    few = {name: logits[..., :images, :] for name, logits in table.valid.items()}
    chosen = advise(replace(table, valid=few, valid_labels=table.valid_labels[:images]), budget).chosen
    known = advise(replace(table, valid=table.test, valid_labels=table.test_labels), budget)
    best = min(known.by_size, key=lambda one: one.nll)
    return {"DE-1": ("mode-0",), "advise": chosen.members, "best in hindsight": best.members}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-7")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "Expected validation data")
    seeds = seeds_in(given.seeds)
    tables: dict[str, Any] = {}
    for seed in seeds:
        logits = run_recipe(find_recipe("digits"), seed=seed).table
        for images in SIZES:
            for budget in BUDGETS:
                title = f"{images} validation images, budget x{budget:g}"
                rows = tables.setdefault(title, {"title": title, "seeds": seeds, "rows": {}})["rows"]
                for name, members in choices(logits, budget, images).items():
                    scored = logits.score(members)
                    row = rows.setdefault(name, {"flops": 0.0, "accuracy": [], "nll": []})
                    row["flops"] += scored.cost.relative_flops / len(seeds)
                    row["accuracy"].append(round(scored.accuracy, 5))
                    row["nll"].append(round(scored.nll, 5))
    given.out.write_text(json.dumps({"tables": list(tables.values())}) + "\n")


if __name__ == "__main__":
    main()
