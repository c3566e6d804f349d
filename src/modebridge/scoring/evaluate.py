"""Every score of a model and its cost, from one pass over the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from modebridge.batches import check_batch, copied
from modebridge.ensembles import Ensemble, SetRule, average, scale
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.scoring.cost import Cost, cost
from modebridge.scoring.table import Scored
from modebridge.types import Batches, Inputs


class Exported(Protocol):
    """A file of an ensemble, as `DeployedEnsemble` loads it: predicts, and knows its cost."""

    meta: dict[str, Any]

    def __call__(self, images: Any) -> Any: ...


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
            table = model(copied(images))
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
def evaluate(
    model: Ensemble | Mode | nn.Module | Exported,
    test: Batches,
    *,
    net: nn.Module | None = None,
    intervals: bool = False,
) -> Scored:
    """Every score of a model, and its cost, from one pass over the data.

    Args:
        model: an ensemble (call `ensemble.calibrate(valid)` first to get calibrated scores), a mode with its `net`, any
            module that maps a batch to logits, or a file loaded by `DeployedEnsemble.load`.
        test: the test split, anything that yields (images, labels).
        net: the network of a mode.
        intervals: whether to add bootstrap intervals over images.
    """
    if isinstance(model, Mode):
        if net is None:
            raise ModebridgeError("Expected a mode with its network, but got no net; pass net=.")
        model = Ensemble(net, [model])
    elif isinstance(model, nn.Module) and not isinstance(model, Ensemble):
        model = Ensemble(model, [Mode.from_module(model)])
    if isinstance(model, Ensemble):
        return _of_ensemble(model, test, intervals)
    if not hasattr(model, "meta"):
        raise ModebridgeError(
            f"Expected evaluate to get an ensemble, a mode, a module or an exported file, but got "
            f"{type(model).__name__}; to score probabilities, use the functions of modebridge.scoring."
        )
    file = model
    table, labels = predict(lambda images: torch.as_tensor(file(images).probabilities), test)
    # Files of 0.2 do not say how many parameters they have.
    price = Cost(**{"params": 0, **model.meta["cost"]})
    rule = model.meta.get("sets")
    sets = SetRule(**rule) if rule else None
    temperature = model.meta["temperature"]
    scored = Scored.of(table, table, labels, price, sets=sets, intervals=intervals, temperature=temperature)
    # Files return calibrated probabilities only.
    return replace(scored, raw_nll=math.nan, raw_ece=math.nan, raw_brier=math.nan)


def _of_ensemble(ensemble: Ensemble, test: Batches, intervals: bool) -> Scored:
    first: list[Inputs] = []

    def mean(images: Inputs) -> Tensor:
        first[:] = first or [images]
        return average(ensemble.members(images, "data"), ensemble.mean)

    with _evaluating(ensemble):
        plain, labels = predict(mean, test)
    temperature = float(ensemble.temperature) if ensemble.calibrated else None
    tempered = scale(plain, ensemble.temperature) if ensemble.calibrated else plain
    price = cost(ensemble, first[0])
    return Scored.of(plain, tempered, labels, price, sets=ensemble.sets, intervals=intervals, temperature=temperature)
