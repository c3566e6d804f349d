"""What the columns of tables mean."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["TERMS", "abbreviations"]

_COST = "relative to one network"
_SCORES = {
    "ACC": "accuracy on the test split, in percent",
    "NLL": "negative log-likelihood in nats; lower is better",
    "ECE": "expected calibration error in 15 bins; lower is better",
    "BS": "Brier score, summed over classes; lower is better",
    "DEE": "deep ensemble equivalent, the number of networks that a deep ensemble needs for the same NLL",
    "T": "temperature fitted on the validation split; above 1 it makes predictions less confident, below 1 more",
}
TERMS = {
    "FLOPs": f"multiply-adds per image, {_COST}; for a cascade the average over the test images",
    "params": f"number of parameters, {_COST}",
    "#Params": f"number of parameters, {_COST}",
    "ACC %": _SCORES["ACC"],
    "Brier": _SCORES["BS"],
    **_SCORES,
    "NLL, log. mean": "NLL when the members are averaged by the mean of their logits instead of their probabilities "
    "(--mean logarithmic)",
    "R2": "share of the variance of the midpoint's probabilities that is explained; higher is better",
    "R2 per class": "R2 of each class, averaged over classes",
    "KL": "Kullback-Leibler divergence from the midpoint's prediction, in nats; lower is better",
    "time": f"measured time of a forward pass, {_COST}",
    "training": "training cost in epochs of one network",
    "valid ACC": "accuracy on the validation split, in percent",
    "bridge FLOPs": f"multiply-adds of the bridge alone, {_COST}",
    "bridge #Params": f"number of parameters of the bridge alone, {_COST}",
    "AUROC": "area under the ROC curve; 0.5 is chance, 1 is perfect",
    "FPR95 %": "share of other images that are accepted when 95 % of the test images are",
}
"""Explanations by column name."""
SHORT = ("ECE", "BS", "DEE", "R2", "KL", "AUROC", "FPR95 %")
"""Columns that are explained below every table that has them, not only on hover."""


def abbreviations(columns: Iterable[str]) -> dict[str, str]:
    """Explanations to print below a table.

    >>> list(abbreviations(["FLOPs", "ACC", "BS"]))
    ['BS']
    """
    return {name: TERMS[name] for name in columns if name in SHORT}
