"""Every score of a model and its cost, from one pass over the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from modebridge.batches import check_batch, check_labels, check_loader, copied
from modebridge.ensembles import Cascade, Ensemble, SetRule, average, scale
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import classes_last
from modebridge.scoring.cost import Cost, cost
from modebridge.scoring.dense import PlaceSums
from modebridge.scoring.scores import hits, surprisals
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
    tables, numbers = zip(*_predictions(model, data), strict=True)
    return torch.cat(tables), torch.cat(numbers)


def _predictions(model: Callable[[Any], Tensor], data: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """The probabilities (B, *P, K) and labels (B, *P) of every batch, of which there is at least one."""
    check_loader(data, "the data")
    seen = False
    with _evaluating(model):
        for item in data:
            images, labels = check_batch(item, "the data")
            table, seen = model(copied(images)), True
            if not isinstance(table, Tensor) or table.dim() < 2 or len(table) != len(labels):
                got = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
                raise ModebridgeError(
                    f"Expected the model to return probabilities ({len(labels)}, K) for {len(labels)} labels, "
                    f"but got {got}; return one row of class probabilities per image."
                )
            if labels.dim() > 1 or table.dim() > 2:
                check_labels(labels, table.shape[1:], "the data")
            yield table, labels.to(table.device)
    if not seen:
        raise ModebridgeError(
            "Expected data to have batches to predict on, but got none; pass a loader with at least one batch "
            "that can be iterated more than once."
        )


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


Model: TypeAlias = Ensemble | Cascade | Mode | nn.Module | Exported
"""What can be scored."""


@torch.no_grad()
def evaluate(model: Model, test: Batches, *, net: nn.Module | None = None, intervals: bool = False) -> Scored:
    """Every score of a model, and its cost, from one pass over the data.

    Args:
        model: an ensemble or a cascade (call `calibrate(valid)` first to get calibrated scores), a mode with its `net`,
            any module that maps a batch to logits, or a file loaded by `DeployedEnsemble.load`.
        test: the test split, anything that yields (images, labels).
        net: the network of a mode.
        intervals: whether to add bootstrap intervals over images.

    Returns:
        Accuracy, NLL, ECE, Brier score and more, with the cost; prints as a table.

    >>> scored = evaluate(nn.Linear(4, 2), [(torch.eye(4), torch.arange(4) % 2)])
    >>> scored.n
    4
    """
    return score_with_images(model, test, net=net, intervals=intervals)[0]


def score_with_images(
    model: Model, test: Batches, *, net: nn.Module | None = None, intervals: bool = False
) -> tuple[Scored, Tensor]:
    """The scores of `evaluate`, and for each image (N, 3) its labels, those predicted right, and their NLL."""
    if isinstance(model, Mode):
        if net is None:
            raise ModebridgeError("Expected a mode with its network, but got no net; pass Ensemble(net, [mode]).")
        model = Ensemble(net, [model])
    if isinstance(model, nn.Module) and not isinstance(model, Ensemble | Cascade):
        model = Ensemble(model, [Mode.from_module(model)])
    whole = model.ensemble if isinstance(model, Cascade) else model
    if isinstance(whole, Ensemble):
        assert isinstance(model, Ensemble | Cascade)
        temperature = float(whole.temperature) if whole.calibrated else None
        threshold, sets = model.threshold if isinstance(model, Cascade) else None, model.sets
    elif hasattr(whole, "meta"):
        rule, temperature, threshold = whole.meta.get("sets"), whole.meta["temperature"], whole.meta.get("threshold")
        sets = SetRule(**rule) if rule else None
    else:
        hint = "to score probabilities, use the functions of modebridge.scoring"
        hint = "open a file with DeployedEnsemble.load" if isinstance(model, str | PathLike) else hint
        raise ModebridgeError(
            f"Expected evaluate to get an ensemble, a cascade, a mode, a module or an exported file, but got "
            f"{type(model).__name__}; {hint}."
        )
    first: list[Inputs] = []
    deferred: list[Tensor] = []

    def answer(images: Inputs) -> Tensor:
        first[:] = first or [images]
        if isinstance(model, Ensemble):
            return average(model.table(images, "of data"), model.mean)
        if isinstance(model, Cascade):
            table, unsure = model.answer(images)
        else:
            said = model(images)
            table, unsure = classes_last(torch.as_tensor(said.probabilities)), torch.as_tensor(said.used) > 1
        deferred.append(unsure)
        return table

    def price() -> Cost:
        # Files of 0.2 do not say how many parameters they have.
        counted = cost(whole, first[0]) if isinstance(whole, Ensemble) else Cost(**{"params": 0, **whole.meta["cost"]})
        if threshold is None:
            return counted
        relative = 1 + share() * (counted.relative_flops - 1)
        return replace(counted, flops=counted.flops * relative / counted.relative_flops, relative_flops=relative)

    def share() -> float:
        return 1.0 if threshold is None else float(torch.cat(deferred).double().mean())

    own = temperature if isinstance(model, Ensemble) else None  # the others answer with calibrated probabilities
    with _evaluating(model):
        scored, images = _scored(_predictions(answer, test), own, price, sets, intervals)
    if not isinstance(model, Ensemble):
        scored = replace(scored, raw_nll=math.nan, raw_ece=math.nan, raw_brier=math.nan, temperature=temperature)
        scored = replace(scored, threshold=threshold, deferred_share=share())
    return scored, images


def _scored(
    predictions: Iterable[tuple[Tensor, Tensor]],
    temperature: float | None,
    price: Callable[[], Cost],
    sets: SetRule | None,
    intervals: bool,
) -> tuple[Scored, Tensor]:
    """The scores of predictions: of all images at once, or image by image if their places are classified."""
    tables, numbers, places = [], [], PlaceSums()
    for table, labels in predictions:
        if table.dim() > 2:
            places.add(table, table if temperature is None else scale(table, temperature), labels)
        else:
            tables.append(table)
            numbers.append(labels)
    if not tables:
        return places.scored(price(), temperature, intervals=intervals), places.table[:, [0, 1, 4]]
    plain, labels = torch.cat(tables), torch.cat(numbers)
    tempered = plain if temperature is None else scale(plain, temperature)
    scored = Scored.of(plain, tempered, labels, price(), sets=sets, intervals=intervals, temperature=temperature)
    right, losses = hits(plain, labels), surprisals(tempered, labels)
    return scored, torch.stack([torch.ones_like(right), right, losses], dim=1).cpu()
