"""One pass over the data, every score of a bridged ensemble, and its cost beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.batches import check_batch
from modebridge.ensembles import BridgedEnsemble, scale
from modebridge.errors import ModebridgeError
from modebridge.evaluate.bootstrap import Interval, bootstrap_mean
from modebridge.evaluate.cost import Cost, cost
from modebridge.evaluate.scores import accuracy, brier, ece, hits, nll, surprisals
from modebridge.nets import untouched
from modebridge.types import Batches, Inputs

__all__ = ["Scores", "evaluate", "predict"]


@torch.no_grad()
def predict(model: Callable[[Any], Tensor], data: Batches) -> tuple[Tensor, Tensor]:
    """The probabilities (N, K) that a model gives on all of the data, and the labels (N,).

    Args:
        model: images (B, ...) to probabilities (B, K); a module is run in evaluation mode and left as it was, and
            so are the images.
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
            table = untouched(model, model, images)
            if not isinstance(table, Tensor) or table.dim() != 2 or len(table) != len(labels):
                got = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
                raise ModebridgeError(
                    f"Expected the model to give probabilities ({len(labels)}, K) for {len(labels)} labels, "
                    f"but got {got}; return one row of class probabilities an image."
                )
            tables.append(table)
            numbers.append(labels.to(table.device))
    if not tables:
        raise ModebridgeError(
            "Expected data to have batches to predict on, but got none; give a loader with at least one, "
            "and one that can be iterated again."
        )
    return torch.cat(tables), torch.cat(numbers)


@contextmanager
def _evaluating(model: object) -> Iterator[None]:
    """Evaluation mode for a while; every submodule then goes back to the mode it was in."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@dataclass(frozen=True)
class Scores:
    """What a bridged ensemble is worth on some data, and what it costs.

    Args:
        n: how many images were scored.
        accuracy: the share of right answers; a temperature does not change it.
        nll: of the plain mean probability (temperature 1), in nats.
        ece: the same, 15 bins.
        brier: the same, summed over classes.
        cnll: calibrated, that is with the ensemble's temperature; None where it was never calibrated.
        cece: the same.
        cbrier: the same.
        temperature: the one fitted on validation data; None where there is none.
        cost: of one image, in units of one base network.
        accuracy_interval: 95 % bootstrap interval over images, where asked for.
        nll_interval: the same.
        cnll_interval: the same.
    """

    n: int
    accuracy: float
    nll: float
    ece: float
    brier: float
    cnll: float | None
    cece: float | None
    cbrier: float | None
    temperature: float | None
    cost: Cost
    accuracy_interval: Interval | None = None
    nll_interval: Interval | None = None
    cnll_interval: Interval | None = None


@torch.no_grad()
def evaluate(ensemble: BridgedEnsemble, data: Batches, *, intervals: bool = False) -> Scores:
    """Every score of an ensemble from one pass over the data.

    Args:
        ensemble: calibrated beforehand (`ensemble.calibrate(valid)`) where calibrated scores are wanted.
        data: the test split: anything that yields (images, labels).
        intervals: whether to add bootstrap intervals over images.
    """
    if not isinstance(ensemble, BridgedEnsemble):
        raise ModebridgeError(
            f"Expected evaluate to be given a BridgedEnsemble, but got {type(ensemble).__name__}; "
            "make one, BridgedEnsemble(net, [Mode.from_module(net)]) for a single network."
        )
    seen: list[Inputs] = []

    def mean(images: Inputs) -> Tensor:
        seen[:] = seen or [images]
        return ensemble._asked(images, "data").mean(dim=0)

    with _evaluating(ensemble):
        plain, labels = predict(mean, data)
    calibrated = scale(plain, ensemble.temperature) if ensemble.calibrated else None
    return Scores(
        n=len(labels),
        accuracy=accuracy(plain, labels),
        nll=nll(plain, labels),
        ece=ece(plain, labels),
        brier=brier(plain, labels),
        cnll=None if calibrated is None else nll(calibrated, labels),
        cece=None if calibrated is None else ece(calibrated, labels),
        cbrier=None if calibrated is None else brier(calibrated, labels),
        temperature=None if calibrated is None else float(ensemble.temperature),
        cost=cost(ensemble, seen[0]),
        accuracy_interval=bootstrap_mean(hits(plain, labels)) if intervals else None,
        nll_interval=bootstrap_mean(surprisals(plain, labels)) if intervals else None,
        cnll_interval=(None if calibrated is None or not intervals else bootstrap_mean(surprisals(calibrated, labels))),
    )
