"""What ensembles and cascades have in common: calibrated probabilities, and decisions on them."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Self

import torch
from torch import Tensor

from modebridge.batches import check_batch, check_labels
from modebridge.ensembles.decisions import AnswerRule, Method, SetRule
from modebridge.ensembles.forward import EvaluationOnly
from modebridge.ensembles.temperature import sampled
from modebridge.errors import ModebridgeError
from modebridge.nets import second
from modebridge.types import Batches, Inputs


class Predictor(EvaluationOnly):
    """A module whose `probabilities` can be turned into classes, sets of classes, and answers or none."""

    def __init__(self) -> None:
        super().__init__()
        self.sets: SetRule | None = None
        """The rule of `predict_sets`, fitted by `conformal`."""
        self.answers: AnswerRule | None = None
        """The rule by which `predict` abstains, fitted by `abstain`."""
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    def _rules(self) -> str:
        return f"{', sets' if self.sets is not None else ''}{', answers' if self.answers is not None else ''}"

    def save(self, path: str | PathLike[str], *, net: str | None = None) -> None:
        """Write it as a folder that `modebridge.load` reads; see `modebridge.files.save`."""
        from modebridge.files import save

        save(self, path, net=net)

    def probabilities(self, images: Inputs, what: str = "you passed") -> Tensor:
        """The calibrated probabilities with classes as the last axis, (B, *P, K)."""
        raise NotImplementedError

    @torch.no_grad()
    def predict_proba(self, images: Inputs) -> Tensor:
        """The calibrated probabilities (B, K), without gradients."""
        return self(images)  # type: ignore[no-any-return]

    @torch.no_grad()
    def predict(self, images: Inputs) -> Tensor:
        """The most probable class of each image (B,); -1 for NaN, and where it abstains, after `abstain`."""
        probabilities = self.probabilities(images)
        answered = probabilities.isfinite().all(dim=-1)
        if self.answers is not None:
            answered &= self.answers(probabilities)
        classes: Tensor = probabilities.argmax(dim=-1)
        return classes.where(answered, -1)

    @torch.no_grad()
    def predict_sets(self, images: Inputs) -> Tensor:
        """The classes of each image as a mask (B, K) that contains the true one as often as `conformal` was told."""
        if self.sets is None:
            raise ModebridgeError("Expected sets to be fitted, but they are not; call conformal(valid, coverage=0.9).")
        return second(self.sets(self.probabilities(images)))

    def conformal(
        self, valid: Batches, coverage: float = 0.9, method: Method = "aps", *, per_class: bool = False
    ) -> Self:
        """Fit sets of classes that contain the true one with a probability of at least `coverage`.

        The promise is split conformal prediction's: it holds for new images like those of `valid`, however good the
        networks are, on average over draws of `valid`. Call it after `calibrate`; the same images may serve for both,
        though separate ones are stricter.

        Args:
            valid: held-out data; at least 9 images for a coverage of 0.9, 99 for 0.99.
            coverage: the probability.
            method: "aps", "raps" or "lac", see `SetRule`.
            per_class: whether the coverage holds for the images of every class, which needs more images.
        """
        self.sets = SetRule.fit(*self.collect(valid, self.probabilities), coverage, method, per_class=per_class)
        return self

    def abstain(self, valid: Batches, risk: float = 0.01, confidence: float = 0.95) -> Self:
        """Fit the confidence below which `predict` returns -1, so that at most a share `risk` of its answers is wrong.

        This holds with a probability of `confidence` over draws of `valid`, the held-out data; if they cannot show it
        for any threshold, an error says so.
        """
        self.answers = AnswerRule.fit(*self.collect(valid, self.probabilities), risk, confidence)
        return self

    @torch.no_grad()
    def collect(self, valid: Batches, predict: Callable[[Inputs, str], Tensor]) -> tuple[Tensor, Tensor]:
        """The predictions (N, K) on held-out data, and its labels (N,).

        If a network classifies pixels, N of them are drawn, the same in every call: `PLACES` of each image.
        """
        self.train(self.training)  # the members go to evaluation mode, whatever was done to them
        tables, truths = [], []
        for item in valid:
            images, labels = check_batch(item, "valid")
            table = predict(images, "of valid")
            check_labels(labels, table.shape[1:], "valid")
            rows = sampled(table, labels.to(table.device))
            tables.append(rows[0])
            truths.append(rows[1])
        if not tables:
            raise ModebridgeError(
                "Expected valid to have batches to calibrate on, but got none; pass the validation split."
            )
        return torch.cat(tables), torch.cat(truths)


def _forget(predictor: Predictor, _: object) -> None:
    """Rules hold for the weights that they were fitted with."""
    predictor.sets = predictor.answers = None
