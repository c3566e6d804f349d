"""Print the tables of a hold from its results folder; needs no GPU and no data.

    python benchmarks/holds/rows.py results/cifar10-frn                     # from logits (scored.py)
    python benchmarks/holds/rows.py results/tin200-frn                      # from a few numbers per image
    python benchmarks/holds/rows.py results/cifar10-bn --record HOLD        # create rows.safetensors from full logits
    python benchmarks/holds/rows.py results/cifar10-frn --record results/cifar10-frn    # the same, before deleting some
    python benchmarks/holds/rows.py results/cifar10-parts --record FRONTIER # from logits of benchmarks/frontier.py
    python benchmarks/holds/rows.py results/cifar10-bn --earlier 8be4edc    # beside the shorter training of that commit

Logits over 200 classes take 8 MB per member, and those of 45 heads over 10 classes 13 MB in all, so records.py stores
only what the scores need.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import records
import scored
import torch
from longer import longer
from safetensors.torch import load_file, save_file
from tin200 import COMBINATIONS, TARGETS
from torch import Tensor

from members import cost_of, read_all, read_frontier, read_hold
from modebridge.nets import spec_of
from modebridge.runs import RunFolder
from modebridge.scoring import LogitTable, interval_of, resampled_means


def record(hold: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and notes of rows.safetensors, from the full logits of the Tiny ImageNet hold."""
    labels = load_file(hold / "labels.safetensors")
    names = sorted({name for combination in COMBINATIONS for name in combination})
    logits = {name: load_file(hold / f"{name}.safetensors") for name in names}
    valid, test = ({name: tensors[split].float() for name, tensors in logits.items()} for split in ("valid", "test"))
    costs = {name: cost_of(name, spec_of("tin200")) for name in names}
    answers = LogitTable(valid, test, labels["valid"], labels["test"], costs)
    tensors, notes = records.records_of(answers, COMBINATIONS)
    for name, target in TARGETS.items():
        tensors |= records.nearness(answers, name, target)
    return tensors, notes


def tables(file: Path) -> list[str]:
    """Both tables in Markdown: the scores of every row, and how closely bridges match their targets."""
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
        data = {key: wide[f"{row}/{key}"] for key in ("surprisal", "confidence", "squared_error", "right")}
        low, high = interval_of(drawn[:, k] / drawn[:, gap])
        way = f"{100 * gains[:, k].mean() / gains[:, gap].mean():.0f} % [{100 * low:.0f} to {100 * high:.0f}]"
        if k in (0, gap):
            way = ""
        lines.append(
            f"| {row} | x{note['flops']:.2f} | {100 * data['right'].mean():.2f} | {data['surprisal'].mean():.4f} | "
            f"{records.ece_of(data['confidence'], data['right']):.4f} | {data['squared_error'].mean():.4f} | "
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


def read(hold: Path, folder: Path) -> LogitTable:
    """The logits to record: of a results folder, of benchmarks/frontier.py, or of a hold."""
    if (hold / "recipe.toml").exists():
        return read_all(RunFolder(hold, writes=False))
    if (hold / "0-members.json").exists():
        return read_frontier(hold, folder.with_name("cifar10-frn"))
    specs = {"tin200-heads": spec_of("tin200"), "cifar10-bn": spec_of("cifar10", "bn")}
    return read_hold(hold, specs.get(folder.name, spec_of("cifar10", "frn")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", type=Path, metavar="HOLD")
    parser.add_argument(
        "--earlier", metavar="COMMIT", help="of cifar10-bn: only the table of what longer training changed"
    )
    given = parser.parse_args()
    if given.earlier:
        print("\n".join(longer(given.folder, given.earlier)))
        return
    file, published = given.folder / records.FILE, scored.RESULTS.get(given.folder.name)
    if given.record:
        given.folder.mkdir(parents=True, exist_ok=True)
        if published is None:
            tensors, notes = record(given.record)
        else:
            tensors, notes = scored.record(published, read(given.record, given.folder))
        save_file(tensors, file, notes)
    print("\n".join(tables(file) if published is None else scored.tables(given.folder)))


if __name__ == "__main__":
    main()
