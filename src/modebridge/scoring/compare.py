"""Several models on the same images: scores, costs, and paired differences to the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from modebridge.batches import Mapped, check_batch, check_loader
from modebridge.errors import ModebridgeError, aligned
from modebridge.scoring.evaluate import Model, score_with_images
from modebridge.scoring.scores import interval_of, resampled_means
from modebridge.scoring.table import Scored
from modebridge.types import Batch, Batches


@dataclass(frozen=True, repr=False)
class Comparison:
    """Scores of models by name, and how each differs from the first: value, and ends of its 95 % interval.

    Intervals are bootstrap intervals over images, paired: all models are scored on the same ones. They do not include
    the spread between trainings.
    """

    scores: Mapping[str, Scored]
    differences: Mapping[str, Mapping[str, tuple[float, float, float]]]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One flat record per model."""
        return [
            {"name": name, **scored.to_dict()}
            | {f"{score}_difference": list(found) for score, found in self.differences.get(name, {}).items()}
            for name, scored in self.scores.items()
        ]

    def __repr__(self) -> str:
        base = next(iter(self.scores))
        rows = [["", "cost", "params", "accuracy", "NLL", f"NLL minus {base}", f"accuracy minus {base}, points"]]
        mixed = len({scored.temperature is None for scored in self.scores.values()}) > 1
        for name, scored in self.scores.items():
            apart = ["", ""]
            if (found := self.differences.get(name)) is not None:
                apart = ["{:+.4f} [{:+.4f} to {:+.4f}]".format(*found["nll"])]
                apart.append("{:+.2f} [{:+.2f} to {:+.2f}]".format(*(100 * one for one in found["accuracy"])))
            cost = [f"x{scored.cost.relative_flops:.2f}", f"x{scored.cost.relative_params:.2f}"]
            shown = f"{name} (not calibrated)" if mixed and scored.temperature is None else name
            rows.append([shown, *cost, f"{scored.accuracy:.2%}", f"{scored.nll:.4f}", *apart])
        return "\n".join(aligned(rows))


@torch.no_grad()
def compare(models: Mapping[str, Model], test: Batches) -> Comparison:
    """Score models on the same images; prints as a table.

    Args:
        models: ensembles, cascades, modules or exported files by name, as `evaluate` takes them; the first is what the
            others are compared with. Calibrate them before, on other images.
        test: the test split, anything that yields (images, labels).

    Returns:
        A table of scores, costs and paired 95 % intervals; `to_dicts()` has them as data.

    >>> from torch import nn
    >>> test = [(torch.eye(4), torch.arange(4) % 2)]
    >>> print(compare({"one": nn.Linear(4, 2), "other": nn.Linear(4, 2)}, test).to_dicts()[1]["name"])
    other
    """
    if not isinstance(models, Mapping) or not models:
        raise ModebridgeError(
            f"Expected models by name, but got {type(models).__name__ if models else 'none'}; pass a dict, "
            "{'one network': ensemble, ...}."
        )
    check_loader(test, "test")
    found, orders = {}, []
    for name, model in models.items():
        labels: list[Tensor] = []
        found[name] = score_with_images(model, Mapped(test, partial(_noted, labels)))
        orders.append(torch.cat([each.flatten() for each in labels]))
    if not all(torch.equal(orders[0], order) for order in orders):
        raise ModebridgeError("Expected test to have one order of images, but it changes; pass it without shuffling.")
    drawn = resampled_means(torch.cat([images for _, images in found.values()], dim=1))
    rates = [_rates(drawn[:, 3 * k : 3 * k + 3]) for k in range(len(found))]
    values = [_rates(images.mean(dim=0, keepdim=True)) for _, images in found.values()]
    differences = {}
    for k, name in enumerate(found):
        if k:
            differences[name] = {
                score: (float(values[k][score] - values[0][score]), *interval_of(rates[k][score] - rates[0][score]))
                for score in ("nll", "accuracy")
            }
    return Comparison({name: scored for name, (scored, _) in found.items()}, differences)


def _noted(labels: list[Tensor], item: object) -> Batch:
    """A batch whose labels are kept."""
    batch = check_batch(item, "the data")
    labels.append(batch[1].cpu())
    return batch


def _rates(means: Tensor) -> dict[str, Tensor]:
    """Scores per label from means over images of labels, right ones and NLL."""
    return {"accuracy": means[:, 1] / means[:, 0], "nll": means[:, 2] / means[:, 0]}
