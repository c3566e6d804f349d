"""Scores of variants from the logits of members; temperatures and weights are fitted on the validation split only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from frontier.variants import BASELINE, Variant
from modebridge.ensembles import fit_temperature, scale
from modebridge.scoring import LogitTable
from modebridge.scoring.scores import accuracy, ece, hits, nll, surprisals

__all__ = ["Record", "Spent", "fit_weights", "keep", "lines", "read", "records", "score"]

Record: TypeAlias = dict[str, Any]

Spent: TypeAlias = tuple[float, int]
"""Seconds and epochs of training."""

FOLDS = 5
"""Number of folds of the validation images, to score there what is fitted there."""


def fit_weights(members: Tensor, labels: Tensor, *, rounds: int = 500) -> Tensor:
    """The mixture weights (M,) of members with the lowest NLL, by expectation maximisation.

    The NLL of a mixture is convex in its weights and no step increases it, so the steps converge to the optimum.

    Args:
        members: probabilities (M, N, K).
        labels: (N,).
        rounds: number of steps.
    """
    right = members.double()[:, torch.arange(len(labels)), labels]
    weights = torch.full((len(members),), 1 / len(members), dtype=torch.float64)
    for _ in range(rounds):
        joint = weights[:, None] * right
        weights = (joint / joint.sum(dim=0).clamp_min(1e-300)).mean(dim=1)
    return weights


def score(
    answers: LogitTable,
    members: Sequence[str],
    *,
    weighted: bool = False,
    against: Sequence[str] = (),
    raw: bool = False,
) -> Record:
    """The scores and costs of a combination of members.

    For test images, the temperature (and weights, if any) are fitted on all validation images. For validation images,
    they are fitted on the other four folds, so that variants with more to fit have no advantage.

    Args:
        answers: logits and costs of all members.
        members: names of the members.
        weighted: fit one weight per head.
        against: members to compare with, per image, on the test split.
        raw: do not fit a temperature.
    """
    valid, test = (_heads(answers, members, split) for split in ("valid", "test"))
    labels = {"valid": answers.valid_labels, "test": answers.test_labels}
    mixture = _fit(valid, labels["valid"], weighted=weighted, raw=raw)
    tables = {"valid": _cross_fitted(valid, labels["valid"], weighted=weighted, raw=raw), "test": _apply(mixture, test)}
    record: Record = {
        split: {
            "accuracy": accuracy(table, labels[split]),
            "nll": nll(table, labels[split]),
            "ece": ece(table, labels[split]),
        }
        for split, table in tables.items()
    }
    record["flops"], record["params"] = answers.cost(members)
    record["temperature"] = mixture[1]
    if weighted:
        record["weights"] = [round(float(weight), 4) for weight in mixture[0]]
    if against:
        other = _apply(_fit(_heads(answers, against, "valid"), labels["valid"]), _heads(answers, against, "test"))
        differences = {
            "nll": surprisals(tables["test"], labels["test"]).double() - surprisals(other, labels["test"]).double(),
            "accuracy": hits(tables["test"], labels["test"]).double() - hits(other, labels["test"]).double(),
        }
        record["over_images"] = {key: _normal_interval(values) for key, values in differences.items()}
    return record


def _heads(answers: LogitTable, members: Sequence[str], split: str) -> Tensor:
    """The probabilities (M, N, K) of every head of every member."""
    return torch.stack([head.double().softmax(-1) for name in members for head in answers.heads(name, split)])


def _fit(heads: Tensor, labels: Tensor, *, weighted: bool = False, raw: bool = False) -> tuple[Tensor, float]:
    """Weights (M,) and temperature."""
    equal = torch.full((len(heads),), 1 / len(heads), dtype=torch.float64)
    weights = fit_weights(heads, labels) if weighted else equal
    return weights, 1.0 if raw else fit_temperature(_mean(weights, heads), labels)


def _apply(mixture: tuple[Tensor, float], heads: Tensor) -> Tensor:
    weights, temperature = mixture
    return scale(_mean(weights, heads), temperature)


def _mean(weights: Tensor, heads: Tensor) -> Tensor:
    return torch.einsum("m,mnk->nk", weights, heads)


def _cross_fitted(heads: Tensor, labels: Tensor, *, weighted: bool, raw: bool) -> Tensor:
    fold = torch.arange(len(labels)) % FOLDS
    table = torch.empty(heads.shape[1:], dtype=heads.dtype)
    for k in range(FOLDS):
        fitted = _fit(heads[:, fold != k], labels[fold != k], weighted=weighted, raw=raw)
        table[fold == k] = _apply(fitted, heads[:, fold == k])
    return table


def _normal_interval(values: Tensor) -> list[float]:
    """The 95 % interval of the mean over images."""
    mean, half = float(values.mean()), 1.96 * float(values.std()) / len(values) ** 0.5
    return [mean - half, mean + half]


def lines(answers: LogitTable) -> dict[str, tuple[tuple[str, ...], bool]]:
    """The combinations to beat, by title: members, and whether no temperature is fitted."""
    modes = tuple(f"mode-{k}" for k in range(4))
    rows: dict[str, tuple[tuple[str, ...], bool]] = {"DE-1 without temperature": (modes[:1], True)}
    rows |= {f"DE-{count}": (modes[:count], False) for count in (1, 2, 3, 4)}
    if "midpoint-1" in answers.test:
        rows["DE-1 + midpoint itself"] = ("mode-0", "midpoint-1"), False
    if "student" in answers.test:
        rows["student of DE-4"] = ("student",), False
        rows["DE-1 + student of DE-4"] = ("mode-0", "student"), False
    return rows


def records(
    answers: LogitTable, variants: Mapping[str, Variant], facts: Mapping[str, object], spent: Mapping[str, Spent]
) -> list[Record]:
    """One record per variant whose bridges all have logits; with the baseline, also records of the lines to beat.

    Args:
        answers: logits and costs of all members.
        variants: variants to score; empty for only the lines to beat.
        facts: entries of every record: data set, seed.
        spent: by bridge, its share of the seconds of the pass that trained it, and its epochs.
    """
    members = {name: ("mode-0", *map(str, variant.parts)) for name, variant in variants.items()}
    ready = {name: names for name, names in members.items() if all(name in answers.test for name in names)}
    against = ready.get(BASELINE, ())
    made = [
        {**facts, "variant": title, "line": True, **score(answers, names, raw=raw, against=against)}
        for title, (names, raw) in (lines(answers) if against or not variants else {}).items()
    ]
    for name, names in ready.items():
        variant = variants[name]
        scores = score(answers, names, weighted=variant.weighted, against=against)
        training = {
            "seconds": round(sum(spent[part][0] for part in names[1:]), 2),
            "epochs": spent[names[1]][1],
            "regime": str(variant.parts[0].regime),
        }
        made.append({**facts, "variant": name, "line": False, **scores, **training})
    return made


def keep(file: Path, made: Sequence[Record]) -> None:
    """Add records to a JSON Lines file, replacing those of the same data set, seed and variant."""
    table = {_key(record): record for record in [*read(file), *made]}
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(file.name + ".partial")
    partial.write_text("".join(json.dumps(_rounded(record)) + "\n" for record in table.values()))
    partial.replace(file)


def read(file: Path) -> list[Record]:
    """The records of a file; empty if it does not exist."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _key(record: Record) -> tuple[object, ...]:
    return record["data"], record["seed"], record["variant"]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value
