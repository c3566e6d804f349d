"""One pass over the data, every score of a bridged ensemble, and its cost beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.batches import check_batch
from modebridge.ensembles import BridgedEnsemble, average, scale
from modebridge.errors import ModebridgeError
from modebridge.evaluate.bootstrap import Interval, bootstrap_mean
from modebridge.evaluate.cost import Cost, cost
from modebridge.evaluate.scores import accuracy, brier, ece, hits, nll, surprisals
from modebridge.guards import untouched
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

    Names are those of `Combined`: plain ones are of the probabilities that the ensemble gives, calibrated once
    `calibrate` was called; `raw_` ones are of the plain mean probability, without a temperature.

    Args:
        n: how many images were scored.
        accuracy: the share of right answers; a temperature does not change it.
        nll: negative log likelihood in nats, with the ensemble's temperature.
        ece: expected calibration error with it, 15 bins.
        brier: Brier score with it, summed over classes.
        raw_nll: negative log likelihood without a temperature; `nll` is the same where none was fitted.
        raw_ece: the same of `ece`.
        raw_brier: the same of `brier`.
        temperature: the one fitted on validation data; None where there is none.
        cost: of one image, in units of one base network.
        accuracy_interval: 95 % bootstrap interval over images, where asked for.
        nll_interval: the same of `nll`.
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
        """The calibrated NLL: `nll`, or None where no temperature was fitted."""
        return None if self.temperature is None else self.nll

    @property
    def cece(self) -> float | None:
        """The calibrated ECE: `ece`, or None where no temperature was fitted."""
        return None if self.temperature is None else self.ece


def _texts(accuracy: float, *others: float) -> list[str]:
    return [f"{accuracy:.2%}", *(f"{score:.4f}" for score in others)]


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
        return average(ensemble._asked(images, "data"), ensemble.mean)

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
        cost=cost(ensemble, seen[0]),
        accuracy_interval=bootstrap_mean(hits(plain, labels)) if intervals else None,
        nll_interval=bootstrap_mean(surprisals(tempered, labels)) if intervals else None,
    )
