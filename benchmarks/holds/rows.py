"""The tables of a hold from what lies in its results folder; no GPU, no data.

    python benchmarks/holds/rows.py results/cifar10-frn                     # print the tables, from logits (scored.py)
    python benchmarks/holds/rows.py results/tin200-frn                      # the same, from a few numbers per image
    python benchmarks/holds/rows.py results/tin200-frn --record HOLD        # make rows.safetensors from full logits

Logits over 200 classes are 8 MB per member; what the scores of a row need is the calibrated and the plain surprisal of
each test image's label, the top probability, whether it is right, and the squared error: nine bytes per image and row.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import scored
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tin200 import COMBINATIONS, TARGETS
from torch import Tensor

from members import cost_of
from modebridge.ensembles import scale
from modebridge.evaluate import Answers, interval_of, resampled_means
from modebridge.evaluate.scores import hits, squared_errors, surprisals
from modebridge.nets import spec_of

BINS = 15


def record(hold: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the notes of rows.safetensors, from the full logits that a hold brought back."""
    labels = load_file(hold / "labels.safetensors")
    names = sorted({name for combination in COMBINATIONS for name in combination})
    logits = {name: load_file(hold / f"{name}.safetensors") for name in names}
    valid, test = ({name: tensors[split].float() for name, tensors in logits.items()} for split in ("valid", "test"))
    answers = Answers(
        valid, test, labels["valid"], labels["test"], {name: cost_of(name, spec_of("tin200")) for name in names}
    )
    tensors: dict[str, Tensor] = {}
    notes: dict[str, dict[str, float]] = {}
    for members in COMBINATIONS:
        plain, temperature, right = answers.probabilities(members), answers.temperature(members), labels["test"]
        tempered, row = scale(plain, temperature), " + ".join(members)
        flops, params = answers.cost(members)
        notes[row] = {"flops": flops, "params": params, "temperature": temperature}
        tensors |= {
            f"{row}/surprisal": surprisals(tempered, right).half(),
            f"{row}/plain_surprisal": surprisals(plain, right).half(),
            f"{row}/confidence": tempered.max(dim=1).values.half(),
            f"{row}/squared_error": squared_errors(tempered, right).half(),
            f"{row}/right": hits(plain, right).to(torch.uint8),
        }
    for name, target in TARGETS.items():
        aim, guess = answers.probabilities(target), answers.probabilities([name])
        tensors |= {
            f"{name}/kl": (aim * (aim.clamp(min=1e-30).log() - guess.clamp(min=1e-30).log())).sum(dim=1).half(),
            f"{name}/residual": (aim - guess).square().sum(dim=1).half(),
            f"{name}/variation": (aim - aim.mean(dim=0)).square().sum(dim=1).half(),
        }
    return tensors, {"rows": json.dumps(notes)}


def tables(file: Path) -> list[str]:
    """Both tables in Markdown: the scores of every row, and how near bridges come to their targets."""
    with safe_open(file, "pt") as opened:
        notes = json.loads(opened.metadata()["rows"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
    wide = {name: tensor.double() for name, tensor in tensors.items()}
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
            f"{_ece(own['confidence'], own['right']):.4f} | {own['squared_error'].mean():.4f} | "
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


def _ece(confidence: Tensor, right: Tensor) -> float:
    part = (confidence * BINS).ceil().clamp(1, BINS).long() - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, part, right - confidence)
    return float(gaps.abs().sum() / len(right))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", type=Path, metavar="HOLD")
    given = parser.parse_args()
    if given.record:
        given.folder.mkdir(parents=True, exist_ok=True)
        tensors, notes = record(given.record)
        save_file(tensors, given.folder / "rows.safetensors", notes)
    file = given.folder / "rows.safetensors"
    print("\n".join(tables(file) if file.exists() else scored.tables(given.folder)))


if __name__ == "__main__":
    main()
