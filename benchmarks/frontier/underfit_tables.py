"""Tables of bridges on modes that underfit: one factor at a time, and what `fit_bridge` chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TypeAlias

from frontier.scoring import Record
from frontier.table import interval, way
from frontier.underfit_variants import BASELINE, CHOICES, FIT, FITTING, MIXING, MIXUP, VARIANTS

__all__ = ["confirm", "table"]

Rows: TypeAlias = Mapping[str, Mapping[int, Record]]
"""Records by variant and seed."""


def table(records: Sequence[Record]) -> list[str]:
    """The lines of the Markdown tables: one per level, then what each factor changes at every level."""
    levels = _levels(records)
    lines = [line for data, rows in levels.items() for line in _of_one(data, rows)]
    pairs = [pair for pair in _pairs() if any(set(pair) <= rows.keys() for rows in levels.values())]
    lines += ["### One factor at a time: difference in NLL", "", "| | " + " | ".join(levels) + " |"]
    lines.append("|---|" + "---:|" * len(levels))
    for one, other in pairs:
        cells = [_apart(rows, one, other) for rows in levels.values()]
        instead = next(part for part in other.split("; ") if part not in one.split("; "))
        lines.append(f"| {one} minus {instead} | " + " | ".join(cells) + " |")
    return lines


def confirm(records: Sequence[Record]) -> list[str]:
    """The lines of a Markdown table: what the choice of `fit_bridge` is worth at every level, the best fit first."""
    against = (*CHOICES, "DE-1", "DE-2")
    lines = [
        "| modes | right on training images | labels on | CutMix on | ACC % | NLL | "
        + " | ".join(f"minus {name}" for name in against)
        + " |",
        "|---|" + "---:|" * (5 + len(against)),
    ]
    levels = _levels(records)
    for data in sorted(levels, key=lambda data: -mean(f["train"]["accuracy"] for f in levels[data][FIT].values())):
        rows = levels[data]
        fits = rows[FIT]
        picked = {seed: rows[fit["chosen"]][seed] for seed, fit in fits.items()}
        choices = [fit["chosen"] for fit in fits.values()]
        cells = [
            data.split("; ")[1].removeprefix("modes: "),
            f"{100 * mean(fit['train']['accuracy'] for fit in fits.values()):.1f} %",
            f"{sum(name != FITTING for name in choices)} of {len(choices)}",
            f"{sum(name != MIXUP for name in choices)} of {len(choices)}",
            f"{100 * mean(record['test']['accuracy'] for record in picked.values()):.2f}",
            f"{mean(record['test']['nll'] for record in picked.values()):.4f}",
            *(_apart({**rows, "": picked}, "", name) for name in against),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _levels(records: Sequence[Record]) -> dict[str, dict[str, dict[int, Record]]]:
    levels: dict[str, dict[str, dict[int, Record]]] = {}
    for record in records:
        levels.setdefault(record["data"], {}).setdefault(record["variant"], {})[record["seed"]] = record
    return levels


def _of_one(data: str, rows: Rows) -> list[str]:
    fits = list(rows[FIT].values())
    kl = {split: mean(fit["kl"][split] for fit in fits) for split in fits[0]["kl"]}
    losses = {name: mean(record["test"]["nll"] for record in row.values()) for name, row in rows.items() if name != FIT}
    every = [accuracy for fit in fits for accuracy in fit["train_accuracies"]]
    lines = [
        f"### {data}",
        "",
        f"Seeds {', '.join(map(str, rows[FIT]))}. Mode 0 on plain training images: "
        f"{100 * mean(fit['train']['accuracy'] for fit in fits):.1f} % right, NLL "
        f"{mean(fit['train']['nll'] for fit in fits):.3f}; all modes {100 * mean(every):.1f} % "
        f"({100 * min(every):.1f} to {100 * max(every):.1f}). Mean KL from the other modes to mode 0: on training "
        "images "
        + ", ".join(f"{split} {kl[split]:.3f}" for split in MIXING)
        + f"; on validation images {kl['valid']:.3f}. In brackets 95 % t intervals over seeds.",
        "",
        f"| beside mode 0 | FLOPs | ACC % | NLL | way to DE-2 | NLL minus {BASELINE} |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, loss in losses.items():
        row = rows[name].values()
        share = way(losses["DE-1"], loss, losses["DE-2"])
        cells = [
            f"x{mean(record['flops'] for record in row):.2f}",
            f"{100 * mean(record['test']['accuracy'] for record in row):.2f}",
            f"{loss:.4f}",
            "" if share is None else f"{100 * share:.0f} %",
            "" if name == BASELINE else _apart(rows, name, BASELINE),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _pairs() -> list[tuple[str, str]]:
    """Variants that differ in one factor, the second of which has that of the baseline."""
    usual = BASELINE.split("; ")
    pairs = []
    for factor in (2, 1, 0):
        for name in VARIANTS:
            parts = name.split("; ")
            other = "; ".join([*parts[:factor], usual[factor], *parts[factor + 1 :]])
            if other != name and other in VARIANTS:
                pairs.append((name, other))
    return pairs


def _apart(rows: Rows, one: str, other: str) -> str:
    """The paired difference in NLL with its interval; empty if not measured."""
    if one not in rows or other not in rows:
        return ""
    shared = [seed for seed in rows[one] if seed in rows[other]]
    middle, low, high = interval([rows[one][s]["test"]["nll"] - rows[other][s]["test"]["nll"] for s in shared])
    return f"{middle:+.4f} [{low:+.4f} to {high:+.4f}]" if len(shared) > 1 else f"{middle:+.4f}"
