"""The tables of a hold from what lies in its results folder; no GPU, no data.

    python benchmarks/holds/rows.py results/cifar10-frn                     # print the tables, from logits (scored.py)
    python benchmarks/holds/rows.py results/tin200-frn                      # the same, from a few numbers per image
    python benchmarks/holds/rows.py results/cifar10-bn --record HOLD        # make rows.safetensors from full logits

Logits over 200 classes are 8 MB per member, and those of 45 heads over 10 classes 13 MB in all; records.py has what the
scores of a row need instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import records
import scored
import torch
from safetensors.torch import load_file, save_file
from tin200 import COMBINATIONS, TARGETS
from torch import Tensor

from members import cost_of, read_hold
from modebridge.evaluate import Answers, interval_of, resampled_means
from modebridge.nets import spec_of


def record(hold: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the notes of rows.safetensors, from the full logits that the Tiny ImageNet hold brought back."""
    labels = load_file(hold / "labels.safetensors")
    names = sorted({name for combination in COMBINATIONS for name in combination})
    logits = {name: load_file(hold / f"{name}.safetensors") for name in names}
    valid, test = ({name: tensors[split].float() for name, tensors in logits.items()} for split in ("valid", "test"))
    costs = {name: cost_of(name, spec_of("tin200")) for name in names}
    answers = Answers(valid, test, labels["valid"], labels["test"], costs)
    tensors, notes = records.records_of(answers, COMBINATIONS)
    for name, target in TARGETS.items():
        tensors |= records.nearness(answers, name, target)
    return tensors, notes


def tables(file: Path) -> list[str]:
    """Both tables in Markdown: the scores of every row, and how near bridges come to their targets."""
    wide, notes = records.read_records(file)
    one = wide["mode-0/surprisal"]
    gains = torch.stack([one - wide[f"{row}/surprisal"] for row in notes], dim=1)
    gap = list(notes).index("mode-0 + mode-1")
    drawn = resampled_means(gains)
    lines = [
        "| members | FLOPs | ACC % | NLL | ECE | Brier | T | way from DE-1 to DE-2 (NLL) |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for k, (row, note) in enumerate(notes.items()):
        own = {key: wide[f"{row}/{key}"] for key in ("surprisal", "confidence", "squared_error", "right")}
        low, high = interval_of(drawn[:, k] / drawn[:, gap])
        way = f"{100 * gains[:, k].mean() / gains[:, gap].mean():.0f} % [{100 * low:.0f} to {100 * high:.0f}]"
        if k in (0, gap):
            way = ""
        lines.append(
            f"| {row} | x{note['flops']:.2f} | {100 * own['right'].mean():.2f} | {own['surprisal'].mean():.4f} | "
            f"{records.ece_of(own['confidence'], own['right']):.4f} | {own['squared_error'].mean():.4f} | "
            f"{note['temperature']:.3f} | {way} |"
        )
    lines += ["", "| bridge | imitates | R2 | KL |", "|---|---|---:|---:|"]
    for name, target in TARGETS.items():
        part = {key: wide[f"{name}/{key}"] for key in ("kl", "residual", "variation")}
        lines.append(
            f"| {name} | {' + '.join(target)} | {1 - part['residual'].sum() / part['variation'].sum():.3f} | "
            f"{part['kl'].mean():.3f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", type=Path, metavar="HOLD")
    given = parser.parse_args()
    file, published = given.folder / records.FILE, scored.RESULTS.get(given.folder.name)
    if given.record:
        given.folder.mkdir(parents=True, exist_ok=True)
        if published is None:
            tensors, notes = record(given.record)
        else:
            tensors, notes = scored.record(published, read_hold(given.record, spec_of("cifar10", "bn")))
        save_file(tensors, file, notes)
    print("\n".join(tables(file) if published is None else scored.tables(given.folder)))


if __name__ == "__main__":
    main()
