"""Decisions on calibrated probabilities: sets with a coverage, answers with a risk, cascades with a limited loss.

Every rule is fitted on held-out images and holds for images like them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from modebridge.ensembles.temperature import check_table
from modebridge.errors import ModebridgeError

Method: TypeAlias = Literal["aps", "raps", "lac"]

PENALTY, FREE = 0.01, 5
"""RAPS adds PENALTY for every class beyond the FREE most probable ones, as its authors do."""

TIED = 1e-5
"""Relative difference of probabilities that count as equal."""

THRESHOLDS = (1 - 10 ** -torch.linspace(6, 0, 601, dtype=torch.float64)).float().double()
"""Confidences from which a threshold is chosen, from the highest to 0. They do not depend on the data: tests in this
order keep their level without a correction for their number (Angelopoulos et al., Learn Then Test, 2021)."""

SERIES = (0.98, 0.02)
"""How two series of such tests share the probability of error: see `AnswerRule.fit`."""


@dataclass(frozen=True)
class SetRule:
    """Which classes to name, so that the true one is among them with a given probability (split conformal).

    Args:
        coverage: probability that a set contains the true class, over draws of validation and new images.
        method: "lac" takes every class that is probable enough, which gives the smallest sets; "aps" takes classes
            until their total probability is high enough, so that hard images get larger sets; "raps" is "aps" with a
            penalty on long sets, for many classes.
        limits: largest score of a class that is taken; one for all classes, or one per class.
        images: number of images it was fitted on.

    >>> rule = SetRule(coverage=0.9, method="lac", limits=[-0.25], images=100)
    >>> rule(torch.tensor([[0.5, 0.3, 0.2], [0.98, 0.01, 0.01]])).tolist()
    [[True, True, False], [True, False, False]]
    """

    coverage: float
    method: Method
    limits: Sequence[float]
    images: int

    def __post_init__(self) -> None:
        check_share(self.coverage, "coverage")
        if self.method not in get_args(Method):
            raise ModebridgeError(f"Expected method to be aps, raps or lac, but got {self.method!r}; choose one.")
        if not self.limits or not all(map(math.isfinite, self.limits)):
            raise ModebridgeError(f"Expected limits to be finite, but got {self.limits}; fit them again.")

    @classmethod
    def fit(
        cls, probabilities: Tensor, labels: Tensor, coverage: float, method: Method = "aps", *, per_class: bool = False
    ) -> SetRule:
        """Fit the limits on probabilities (N, K) and labels (N,) of held-out images.

        With `per_class`, the coverage holds for the images of every class instead of on average.
        """
        cls(coverage, method, [0.0], 0)  # checks them
        check_table(probabilities, labels, "sets")
        scores = class_scores(probabilities, method).gather(1, labels.view(-1, 1))[:, 0]
        parts = [scores[labels == k] for k in range(probabilities.shape[1])] if per_class else [scores]
        limits = []
        for k, part in enumerate(parts):
            place = max(1, math.ceil((len(part) + 1) * coverage - 1e-9))  # 10 * 0.9 is more than 9 in floating point
            if place > len(part):
                raise ModebridgeError(
                    f"Expected at least {math.ceil(coverage / (1 - coverage) - 1e-9)} validation images"
                    f"{f' of class {k}' if per_class else ''} for a coverage of {coverage:g}, but got {len(part)}; use "
                    f"more images{', or one limit for all classes' if per_class else ''}, or a lower coverage."
                )
            limit = float(part.kthvalue(place).values)
            # A little more than the score itself, which many images may share: rounding must not decide about them.
            limits.append(limit + TIED * abs(limit))
        return cls(coverage, method, limits, len(labels))

    def __call__(self, probabilities: Tensor) -> Tensor:
        """The sets of images as a mask (N, K); the most probable class is in every set."""
        scores = class_scores(probabilities, self.method)
        limits = torch.tensor(self.limits, dtype=scores.dtype, device=scores.device)
        return (scores <= limits) | (probabilities >= probabilities.amax(dim=-1, keepdim=True))


def class_scores(probabilities: Tensor, method: Method) -> Tensor:
    """How unusual each class would be (N, K); sets take the classes with low scores.

    For "aps" that is minus the total probability of the class and of all that are not more probable, -1 for the most
    probable one, which is in every set. (Without its randomization the original leaves out the class itself, which
    gives empty sets for confident images; sums from the smallest up are precise for unlikely classes too.)

    >>> class_scores(torch.tensor([[0.25, 0.5, 0.25]]), "lac").tolist()
    [[-0.25, -0.5, -0.25]]
    >>> class_scores(torch.tensor([[0.25, 0.625, 0.125], [0.5, 0.25, 0.25]]), "aps").tolist()
    [[-0.375, -1.0, -0.125], [-1.0, -0.5, -0.5]]
    """
    if method == "lac":
        return -probabilities
    count = probabilities.shape[-1]
    ordered, places = probabilities.topk(count, dim=-1, largest=False)  # ONNX has no stable sort
    scores = -ordered.cumsum(dim=-1)
    if method == "raps":
        beyond = torch.arange(count, 0, -1, device=scores.device) - FREE
        scores = scores + PENALTY * beyond.clamp_min(0)
    # Classes that are equally probable, up to rounding, have the score of the lowest among them, whatever their order.
    group = nn.functional.pad((ordered[..., 1:] > ordered[..., :-1] * (1 + TIED)).long(), (1, 0)).cumsum(dim=-1)
    scores = torch.zeros_like(scores).scatter_reduce(-1, group, scores, "amin", include_self=False).gather(-1, group)
    return torch.zeros_like(scores).scatter(-1, places, scores)


@dataclass(frozen=True)
class AnswerRule:
    """Which images to answer, and which to hand over to a person.

    Args:
        threshold: images whose top probability is at least this are answered.
        risk: largest share of wrong answers.
        confidence: probability, over draws of the validation images, that the risk is kept.
        answered: share of the validation images that is answered.
        images: number of images it was fitted on.
    """

    threshold: float
    risk: float
    confidence: float
    answered: float
    images: int

    def __post_init__(self) -> None:
        check_share(self.risk, "risk")
        check_share(self.confidence, "confidence")
        if not 0 <= self.threshold <= 1:
            raise ModebridgeError(f"Expected a threshold from 0 to 1, but got {self.threshold}; fit it again.")

    @classmethod
    def fit(cls, probabilities: Tensor, labels: Tensor, risk: float, confidence: float = 0.95) -> AnswerRule:
        """Find the lowest threshold that keeps the risk, on probabilities (N, K) and labels (N,) of held-out images.

        Thresholds are tested from the highest to the lowest by the exact binomial test (Clopper-Pearson), up to the
        first that fails. There are two series of tests: one begins where just enough images are answered to show the
        risk, the other, for data with a few confident errors, where half of them are. (That the number of answers
        decides where to begin is valid if errors become more frequent as the confidence falls.) The second one gets a
        small part of the probability of error, which is enough on large splits.
        """
        cls(0.0, risk, confidence, 0.0, 0)  # checks them
        check_table(probabilities, labels, "a threshold")
        top, guess = probabilities.max(dim=-1)
        answered = _at_least(top)
        wrong = _at_least(top[guess != labels])
        enough, half = (_fewest(risk, share * (1 - confidence)) for share in SERIES)
        starts = {enough: SERIES[0] * (1 - confidence), max(half, len(labels) // 2): SERIES[1] * (1 - confidence)}
        lowest = _lowest(wrong, answered, risk, starts)
        if lowest is None:
            raise ModebridgeError(
                f"Expected a threshold with a risk of at most {risk:g} at a confidence of {confidence:g}, but the "
                f"{len(labels)} validation images ({int(wrong[-1])} wrong) show none; allow a higher risk, or use more "
                f"images: at least {enough} right answers in a row are needed."
            )
        return cls(float(THRESHOLDS[lowest]), risk, confidence, float(answered[lowest]) / len(labels), len(labels))

    def __call__(self, probabilities: Tensor) -> Tensor:
        """Whether each image is answered (N,)."""
        return probabilities.amax(dim=-1) >= self.threshold


def cascade_threshold(first: Tensor, full: Tensor, labels: Tensor, max_loss: float, confidence: float = 0.95) -> float:
    """The lowest threshold of a cascade that loses at most a share of images, with a confidence.

    An image is lost if all members together are right and the first one, which is used alone, is wrong. The accuracy of
    the cascade is then at most `max_loss` below that of all members.

    Args:
        first: calibrated probabilities (N, K) of the first member, on held-out images.
        full: calibrated probabilities (N, K) of all members.
        labels: (N,).
        max_loss: largest share of lost images, such as 0.002.
        confidence: probability that this holds, over draws of the images.
    """
    check_share(max_loss, "max_loss")
    check_share(confidence, "confidence")
    for table in (first, full):
        check_table(table, labels, "a threshold")
    top, guess = first.max(dim=-1)
    lost = _at_least(top[(guess != labels) & (full.argmax(dim=-1) == labels)])
    lowest = _lowest(lost, torch.full_like(lost, len(labels)), max_loss, {0: 1 - confidence})
    if lowest is None:
        raise ModebridgeError(
            f"Expected a threshold that loses at most {100 * max_loss:g} % of the images, but {len(labels)} validation "
            f"images cannot show that (it takes {_fewest(max_loss, 1 - confidence)}, even without any loss); use "
            "more images, or allow more."
        )
    return float(THRESHOLDS[lowest])


def check_share(value: float, what: str) -> None:
    """Raise an error unless a number is within (0, 1)."""
    if not 0 < value < 1:
        percent = value if 1 < value < 100 else 90 if what in ("coverage", "confidence") else 5
        raise ModebridgeError(
            f"Expected {what} to be between 0 and 1, but got {value}; for {percent:g} percent, write {percent / 100:g}."
        )


def _at_least(confidences: Tensor) -> Tensor:
    """The number of confidences that are at least each threshold (T,)."""
    ranked = confidences.detach().double().cpu().sort().values
    return len(ranked) - torch.searchsorted(ranked, THRESHOLDS)


def _lowest(failures: Tensor, trials: Tensor, risk: float, starts: Mapping[int, float]) -> int | None:
    """The lowest threshold at which binomial tests reject a higher risk, or None.

    From each start, a number of trials with a probability of error, tests go down to the first failure.
    """
    from scipy.stats import binom

    values = binom.cdf(failures.numpy(), trials.numpy(), risk)
    lowest = []
    for start, error in starts.items():
        for k in (trials >= start).nonzero()[:, 0].tolist():
            if values[k] > error:
                break
            lowest.append(k)
    return max(lowest, default=None)


def _fewest(risk: float, error: float) -> int:
    """The number of trials that show a risk if none of them fails, with a probability of error."""
    return math.ceil(math.log(error) / math.log(1 - risk) - 1e-9)
