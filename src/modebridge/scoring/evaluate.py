"""Every score of a bridged ensemble and its cost, from one pass over the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.batches import check_batch
from modebridge.ensembles import Ensemble, average, scale
from modebridge.errors import ModebridgeError
from modebridge.nets import without_side_effects
from modebridge.scoring.cost import cost
from modebridge.scoring.table import Scored
from modebridge.types import Batches, Inputs

__all__ = ["evaluate", "predict"]


@torch.no_grad()
def predict(model: Callable[[Any], Tensor], data: Batches) -> tuple[Tensor, Tensor]:
    """The probabilities (N, K) of a model on all of the data, and the labels (N,).

    Args:
        model: maps images (B, ...) to probabilities (B, K); a module runs in evaluation mode. Neither it nor the images
            are changed.
        data: anything that yields (images, labels).

    >>> double = lambda images: torch.stack([images, 1 - images], dim=1)
    >>> predict(double, [(torch.tensor([0.25]), torch.tensor([1]))])
    (tensor([[0.2500, 0.7500]]), tensor([1]))
    """
    tables: list[Tensor] = []
    numbers: list[Tensor] = []
    with _evaluating(model):
        for item in data:
            images, labels = check_batch(item, "the data")
            table = without_side_effects(model, model, images)
            if not isinstance(table, Tensor) or table.dim() != 2 or len(table) != len(labels):
                got = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
                raise ModebridgeError(
                    f"Expected the model to return probabilities ({len(labels)}, K) for {len(labels)} labels, "
                    f"but got {got}; return one row of class probabilities per image."
                )
            tables.append(table)
            numbers.append(labels.to(table.device))
    if not tables:
        raise ModebridgeError(
            "Expected data to have batches to predict on, but got none; pass a loader with at least one batch "
            "that can be iterated more than once."
        )
    return torch.cat(tables), torch.cat(numbers)


@contextmanager
def _evaluating(model: object) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every submodule has its old mode."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def evaluate(ensemble: Ensemble, data: Batches, *, intervals: bool = False) -> Scored:
    """Every score of an ensemble from one pass over the data.

    Args:
        ensemble: the ensemble; call `ensemble.calibrate(valid)` first to get calibrated scores.
        data: the test split, anything that yields (images, labels).
        intervals: whether to add bootstrap intervals over images.
    """
    if not isinstance(ensemble, Ensemble):
        raise ModebridgeError(
            f"Expected evaluate to get a Ensemble, but got {type(ensemble).__name__}; "
            "for a single network create Ensemble(net, [Mode.from_module(net)])."
        )
    first: list[Inputs] = []

    def mean(images: Inputs) -> Tensor:
        first[:] = first or [images]
        return average(ensemble._checked_members(images, "data"), ensemble.mean)

    with _evaluating(ensemble):
        plain, labels = predict(mean, data)
    tempered = scale(plain, ensemble.temperature) if ensemble.calibrated else plain
    temperature = float(ensemble.temperature) if ensemble.calibrated else None
    return Scored.of(plain, tempered, labels, cost(ensemble, first[0]), intervals=intervals, temperature=temperature)
