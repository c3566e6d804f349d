"""A cascade: one network for the images that it is sure of, all members of an ensemble for the others."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from modebridge.batches import check_batch, take_rows
from modebridge.ensembles.checks import check_inputs, refusing
from modebridge.ensembles.ensemble import Ensemble
from modebridge.ensembles.forward import (
    Output,
    average,
    confidence_of,
    deferring,
    member_logits,
    probabilities_of,
)
from modebridge.ensembles.predictor import Predictor
from modebridge.ensembles.temperature import fit_temperature, scale
from modebridge.errors import ModebridgeError
from modebridge.nets import second
from modebridge.types import Batches, Inputs


class Cascade(Predictor):
    """The first network of an ensemble alone, and all of its members for images that it is not sure of.

    The further members run only on those images. `calibrate` fits a temperature for either case, and the threshold for
    an average cost.

    Args:
        ensemble: at least two modes and possibly bridges; the first mode is the first network. It is not copied.
        threshold: images whose top probability is at least this (for networks that classify pixels: on average over
            them) use the first network alone. None leaves it to `calibrate`.

    >>> from torch import nn
    >>> from modebridge.modes import Mode
    >>> net = nn.Linear(4, 3)
    >>> both = Ensemble(net, [Mode.from_module(nn.Linear(4, 3)) for _ in range(2)])
    >>> Cascade(both, 0.9)(torch.rand(5, 4)).shape
    torch.Size([5, 3])
    """

    first_temperature: Tensor

    def __init__(self, ensemble: Ensemble, threshold: float | None = None) -> None:
        super().__init__()
        if not isinstance(ensemble, Ensemble):
            raise ModebridgeError(
                f"Expected the members of a cascade as an Ensemble, but got {type(ensemble).__name__}; build one."
            )
        if ensemble.mean != "probability":
            raise ModebridgeError(
                f"Expected the mean of probabilities for a cascade, but got {ensemble.mean}; use mean='probability'."
            )
        if len(ensemble.bases) < 2:
            raise ModebridgeError("Expected a cascade to have two networks or more, but got one; pass several modes.")
        if threshold is not None and not threshold >= 0:
            raise ModebridgeError(f"Expected threshold to be at least 0, but got {threshold}; 0.9 is usual.")
        self.ensemble, self._threshold = ensemble, threshold
        self.register_buffer("first_temperature", ensemble.temperature.clone())

    def __repr__(self) -> str:
        threshold = None if self._threshold is None else round(self._threshold, 4)
        return f"Cascade({self.ensemble}, threshold={threshold}{self._rules()})"

    @property
    def threshold(self) -> float:
        """The confidence from which on an image uses the first network alone."""
        if self._threshold is None:
            raise ModebridgeError(
                "Expected a cascade to have a threshold, but got none; call calibrate(valid, average_cost=1.15) first."
            )
        return float(self._threshold)

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._threshold = float(value)
        self.sets = self.answers = None  # they hold for the threshold that they were fitted with

    @torch.no_grad()
    def calibrate(self, valid: Batches, average_cost: float | None = None) -> Self:
        """Fit both temperatures on held-out data, and the threshold at which images cost as much on average.

        The cost is in multiples of the first network, counting networks only: 1.15 with two networks sends 15 % of the
        held-out images to the second one. Rules for sets and answers are dropped, as by `Ensemble.calibrate`.
        """
        if average_cost is None and self._threshold is None:
            raise ModebridgeError(
                "Expected an average cost for a cascade without a threshold, but got none; pass average_cost=1.15."
            )
        most = len(self.ensemble.bases)
        if average_cost is not None and not 1 <= average_cost <= most:
            raise ModebridgeError(
                f"Expected average_cost to be between 1 and the {most} networks of the cascade, but got "
                f"{average_cost:g}; change it."
            )
        self.sets = self.answers = None
        self.ensemble.calibrate(valid)
        alone = self.collect(valid, lambda images, _: probabilities_of(self.ensemble.read(0, images)[0]))
        self.first_temperature.fill_(fit_temperature(*alone))
        if average_cost is not None:
            share = (average_cost - 1) / (most - 1)
            sure = [confidence_of(self._alone(check_batch(item, "valid")[0])[0]) for item in valid]
            self.threshold = deferring(torch.cat(sure), share)
        return self

    def forward(self, images: Inputs) -> Tensor:
        """The calibrated probabilities (B, K)."""
        return second(self.probabilities(images))

    def probabilities(self, images: Inputs, what: str = "you passed") -> Tensor:
        return self.answer(images, what)[0]

    def answer(self, images: Inputs, what: str = "you passed") -> tuple[Tensor, Tensor]:
        """The probabilities with classes as the last axis, and which images (B,) used all members."""
        self.check_evaluating()
        images = check_inputs(images, self.ensemble._tokens, what)
        ensemble = self.ensemble
        with refusing(images, ensemble, what):
            first, output = self._alone(images)
        unsure = confidence_of(first) < self.threshold
        rows = unsure.nonzero()[:, 0]
        if not len(rows):
            return first, unsure
        few = take_rows(images, rows)
        outputs: dict[int, Output] = {0: (output[0][rows], {tap: part[rows] for tap, part in output[1].items()})}
        outputs |= {k: ensemble.read(k, few) for k in range(1, len(ensemble.bases))}
        members = probabilities_of(torch.stack(member_logits(outputs, ensemble.reads)))
        whole = first.clone()
        whole[rows] = scale(average(members), ensemble.temperature).to(first.dtype)
        return whole, unsure

    def _alone(self, images: Inputs) -> tuple[Tensor, Output]:
        """The calibrated probabilities of the first network, and its logits and features."""
        output = self.ensemble.read(0, images)
        return scale(probabilities_of(output[0]), self.first_temperature), output
