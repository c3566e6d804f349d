"""The data that the scores of a row need, nine bytes per test image, if logits are too large to commit.

Calibrated and plain surprisal of the label, top probability, squared error, and whether the prediction is right.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from published import Row, Rows
from safetensors import safe_open
from torch import Tensor

from modebridge.ensembles import scale
from modebridge.scoring import LogitTable
from modebridge.scoring.scores import hits, squared_errors, surprisals

__all__ = ["FILE", "ece_of", "nearness", "read_records", "records_of"]

FILE = "rows.safetensors"
BINS = 15


def records_of(answers: LogitTable, rows: Rows) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and notes of some rows, from full logits."""
    tensors: dict[str, Tensor] = {}
    notes: dict[str, dict[str, float]] = {}
    for members in rows:
        plain, temperature, right = answers.probabilities(members), answers.temperature(members), answers.test_labels
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
    return tensors, {"rows": json.dumps(notes)}


def nearness(answers: LogitTable, name: str, target: Row, head: int | None = None) -> dict[str, Tensor]:
    """The data per image that R2 and KL of a small network, or of one of its heads, need."""
    aim, guess = answers.probabilities(target), answers.probabilities([name])
    if head is not None:
        name, guess = f"{name}, head {head}", answers.heads(name)[head].double().softmax(dim=-1)
    return {
        f"{name}/kl": (aim * (aim.clamp(min=1e-30).log() - guess.clamp(min=1e-30).log())).sum(dim=1).half(),
        f"{name}/residual": (aim - guess).square().sum(dim=1).half(),
        f"{name}/variation": (aim - aim.mean(dim=0)).square().sum(dim=1).half(),
    }


def read_records(file: Path) -> tuple[dict[str, Tensor], dict[str, dict[str, float]]]:
    """Tensors in double precision, and notes by row; empty if the file does not exist."""
    if not file.exists():
        return {}, {}
    with safe_open(file, "pt") as opened:
        notes = json.loads(opened.metadata()["rows"])
        return {name: opened.get_tensor(name).double() for name in opened.keys()}, notes  # noqa: SIM118 - not a mapping


def ece_of(confidence: Tensor, right: Tensor) -> float:
    """The expected calibration error from top probabilities."""
    part = (confidence * BINS).ceil().clamp(1, BINS).long() - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, part, right - confidence)
    return float(gaps.abs().sum() / len(right))
