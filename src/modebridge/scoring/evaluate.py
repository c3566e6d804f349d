"""Every score of a bridged ensemble and its cost, from one pass over the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.batches import check_batch
from modebridge.ensembles import Ensemble, average, scale
from modebridge.errors import ModebridgeError
from modebridge.nets import without_side_effects
from modebridge.scoring.bootstrap import Interval, bootstrap_mean
from modebridge.scoring.cost import Cost, cost
from modebridge.scoring.scores import accuracy, brier, ece, hits, nll, surprisals
from modebridge.types import Batches, Inputs

__all__ = ["Scores", "evaluate", "predict"]


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


@dataclass(frozen=True)
class Scores:
    """Scores of a bridged ensemble on some data, and its cost.

    Names are as in `Combined`: scores without prefix use the ensemble's output, calibrated once `calibrate` was
    called; `raw_` scores use the mean probability without a temperature.

    Args:
        n: number of images scored.
        accuracy: share of correct predictions; independent of the temperature.
        nll: negative log likelihood in nats, with the ensemble's temperature.
        ece: expected calibration error with the temperature, 15 bins.
        brier: Brier score with the temperature, summed over classes.
        raw_nll: negative log likelihood without a temperature; equal to `nll` if none was fitted.
        raw_ece: expected calibration error without a temperature.
        raw_brier: Brier score without a temperature.
        temperature: temperature fitted on validation data; None if there is none.
        cost: cost of one image, relative to one base network.
        accuracy_interval: 95 % bootstrap interval over images, if requested.
        nll_interval: 95 % bootstrap interval of `nll`, if requested.
    """

    n: int
    accuracy: float
    nll: float
    ece: float
    brier: float
    raw_nll: float
    raw_ece: float
    raw_brier: float
    temperature: float | None
    cost: Cost
    accuracy_interval: Interval | None = None
    nll_interval: Interval | None = None

    def __str__(self) -> str:
        """The scores as a small table.

        >>> print(Scores(900, 0.88, 0.395, 0.021, 0.17, 0.41, 0.034, 0.175, 1.3, Cost(1e6, 10, 1.05, 1.08)))
        score     calibrated  uncalibrated
        accuracy      88.00%        88.00%
        NLL           0.3950        0.4100
        ECE           0.0210        0.0340
        Brier         0.1700        0.1750
        900 images; temperature 1.30; FLOPs x1.05 and parameters x1.08 of one network
        """
        columns = [["uncalibrated", *_texts(self.accuracy, self.raw_nll, self.raw_ece, self.raw_brier)]]
        facts = [f"{self.n:,} images", f"FLOPs x{self.cost.relative_flops:.2f}"]
        if self.temperature is not None:
            columns.insert(0, ["calibrated", *_texts(self.accuracy, self.nll, self.ece, self.brier)])
            facts.insert(1, f"temperature {self.temperature:.2f}")
        if self.accuracy_interval is not None and self.nll_interval is not None:
            (low, high), (least, most) = self.accuracy_interval, self.nll_interval
            columns.append(["95% interval", f"{low:.2%} to {high:.2%}", f"{least:.4f} to {most:.4f}", "", ""])
        widths = [max(map(len, column)) for column in columns]
        names = ("score", "accuracy", "NLL", "ECE", "Brier")
        lines = [
            "  ".join([f"{name:8}", *(f"{text:>{width}}" for text, width in zip(row, widths, strict=True))]).rstrip()
            for name, *row in zip(names, *columns, strict=True)
        ]
        last = f"{'; '.join(facts)} and parameters x{self.cost.relative_params:.2f} of one network"
        return "\n".join([*lines, last])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the table in notebooks too."""
        printer.text(str(self))

    @property
    def cnll(self) -> float | None:
        """The calibrated NLL: `nll`, or None if no temperature was fitted."""
        return None if self.temperature is None else self.nll

    @property
    def cece(self) -> float | None:
        """The calibrated ECE: `ece`, or None if no temperature was fitted."""
        return None if self.temperature is None else self.ece


def _texts(accuracy: float, *others: float) -> list[str]:
    return [f"{accuracy:.2%}", *(f"{score:.4f}" for score in others)]


@torch.no_grad()
def evaluate(ensemble: Ensemble, data: Batches, *, intervals: bool = False) -> Scores:
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
    return Scores(
        n=len(labels),
        accuracy=accuracy(plain, labels),
        nll=nll(tempered, labels),
        ece=ece(tempered, labels),
        brier=brier(tempered, labels),
        raw_nll=nll(plain, labels),
        raw_ece=ece(plain, labels),
        raw_brier=brier(plain, labels),
        temperature=float(ensemble.temperature) if ensemble.calibrated else None,
        cost=cost(ensemble, first[0]),
        accuracy_interval=bootstrap_mean(hits(plain, labels)) if intervals else None,
        nll_interval=bootstrap_mean(surprisals(tempered, labels)) if intervals else None,
    )
