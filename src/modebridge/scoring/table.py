"""What a results table consists of: rows of members, their cost and their scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor

from modebridge.ensembles import SetRule
from modebridge.errors import aligned
from modebridge.scoring.cost import Cost
from modebridge.scoring.scores import (
    FEW,
    Interval,
    accuracy,
    brier,
    ece,
    hits,
    interval_of,
    nll,
    resampled_means,
    surprisals,
)
from modebridge.scoring.selective import risk_coverage


@dataclass(frozen=True)
class MemberCost:
    """The cost that a member adds to a forward pass of one image.

    Args:
        flops: multiply-adds.
        params: number of parameters.
        reads: the members whose features it reads.
        usable: whether it can be part of a deployed ensemble; False for members that are only targets.
        alone: whether it cannot be combined with others, because it is another network.
    """

    flops: float
    params: int
    reads: tuple[str, ...] = ()
    usable: bool = True
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A set of members, or any other model, with its cost and its scores on some images.

    Scores without prefix are calibrated, if there is a temperature; `raw_` scores are not.

    Args:
        members: names of the members; none for a model without names.
        threshold: for a cascade: images for which the first member is at least this confident use it alone.
        deferred_share: share of images that need the other members; 1 if not a cascade.
        n: number of images.
        cost: cost of one image, relative to one network; for a cascade the average over the images.
        accuracy: share of correct predictions; independent of the temperature.
        nll: negative log likelihood in nats.
        ece: expected calibration error, 15 bins.
        brier: Brier score, summed over classes.
        aurc: area under the risk-coverage curve: the mean error over all shares of images answered, the most confident
            first.
        excess_aurc: the same minus that of the best order.
        accuracy_at_90: accuracy on the 90 % most confident images.
        answered_at_5: largest share of images that can be answered with 5 % errors.
        coverage: share of images whose set contains the true class; nan if no sets were fitted.
        set_size: mean number of classes in a set.
        iou: intersection over union of each class, over all labeled places; only if the model classifies places, whose
            means are the scores above. NaN for a class that neither occurs nor is predicted.
        dice: Dice score of each class, likewise.
        raw_nll: negative log likelihood without the temperature; nan for exported files, which have no such output.
        raw_ece: expected calibration error without the temperature.
        raw_brier: Brier score without the temperature.
        temperature: temperature fitted on validation data; None if there is none.
        dee: deep ensemble equivalent by the NLL; nan if there is no reference.
        intervals: 95 % bootstrap intervals over images, if requested: "accuracy" and "nll"; in a table also "gain", the
            paired difference of one network's NLL and this one, and "closed", its share of the gain of two networks.
    """

    members: tuple[str, ...] = ()
    threshold: float | None = None
    deferred_share: float = 1.0
    n: int
    cost: Cost
    accuracy: float
    nll: float
    ece: float
    brier: float
    aurc: float = math.nan
    excess_aurc: float = math.nan
    accuracy_at_90: float = math.nan
    answered_at_5: float = math.nan
    coverage: float = math.nan
    set_size: float = math.nan
    iou: tuple[float, ...] = ()
    dice: tuple[float, ...] = ()
    raw_nll: float
    raw_ece: float
    raw_brier: float
    temperature: float | None = None
    dee: float = math.nan
    intervals: Mapping[str, Interval] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plain: Tensor,
        tempered: Tensor,
        labels: Tensor,
        cost: Cost,
        *,
        sets: SetRule | None = None,
        intervals: bool = False,
        **more: Any,
    ) -> Self:
        """Score probabilities (N, K) before and after calibration."""
        bounds, curve = {}, risk_coverage(tempered, labels)
        if sets is not None:
            mask = sets(tempered)
            more["coverage"] = float(mask.gather(1, labels.view(-1, 1)).double().mean())
            more["set_size"] = float(mask.sum(dim=1).double().mean())
        if intervals:
            means = resampled_means(torch.stack([hits(plain, labels), surprisals(tempered, labels)], dim=1))
            bounds = {"accuracy": interval_of(means[:, 0]), "nll": interval_of(means[:, 1])}
        return cls(
            n=len(labels),
            cost=cost,
            accuracy=accuracy(plain, labels),
            nll=nll(tempered, labels),
            ece=ece(tempered, labels),
            brier=brier(tempered, labels),
            aurc=curve.aurc,
            excess_aurc=curve.excess_aurc,
            accuracy_at_90=curve.accuracy_at(0.9),
            answered_at_5=curve.coverage_at(0.05),
            raw_nll=nll(plain, labels),
            raw_ece=ece(plain, labels),
            raw_brier=brier(plain, labels),
            intervals=bounds,
            **more,
        )

    @property
    def mean_iou(self) -> float:
        """The mean of `iou` over the classes that have one; NaN if the model classifies whole images."""
        return _mean(self.iou)

    @property
    def mean_dice(self) -> float:
        """The mean of `dice`, likewise."""
        return _mean(self.dice)

    def to_dict(self) -> dict[str, Any]:
        """Plain, flat data for JSON; numbers that are not finite become None."""
        record = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("cost", "intervals")}
        record |= {
            "members": list(self.members),
            "relative_flops": self.cost.relative_flops,
            "relative_params": self.cost.relative_params,
        }
        record |= {f"{name}_interval": list(ends) for name, ends in self.intervals.items()}
        for name in ("iou", "dice"):
            record[name] = [None if math.isnan(one) else one for one in record[name]] or None
        return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in record.items()}

    def __str__(self) -> str:
        """The scores as a small table.

        >>> numbers = {"nll": 0.395, "ece": 0.021, "brier": 0.17, "raw_nll": 0.41, "raw_ece": 0.034, "raw_brier": 0.175}
        >>> print(Scored(n=900, cost=Cost(1e6, 10, 1.05, 1.08), accuracy=0.88, temperature=1.3, **numbers))
        score     calibrated  uncalibrated
        accuracy      88.00%        88.00%
        NLL           0.3950        0.4100
        ECE           0.0210        0.0340
        Brier         0.1700        0.1750
        900 images; temperature 1.30; FLOPs x1.05 and parameters x1.08 of one network
        """

        def texts(*others: float) -> list[str]:
            return [f"{self.accuracy:.2%}", *(f"{score:.4f}" for score in others)]

        columns, facts = [["score", "accuracy", "NLL", "ECE", "Brier"]], [f"{self.n:,} images"]
        if self.temperature is not None:
            columns.append(["calibrated", *texts(self.nll, self.ece, self.brier)])
            facts.append(f"temperature {self.temperature:.2f}")
        if not math.isnan(self.raw_nll):
            columns.append(["uncalibrated", *texts(self.raw_nll, self.raw_ece, self.raw_brier)])
        if self.intervals:
            (low, high), (least, most) = self.intervals["accuracy"], self.intervals["nll"]
            columns.append(["95% interval", f"{low:.2%} to {high:.2%}", f"{least:.4f} to {most:.4f}", "", ""])
            facts[0] += " (the interval is too short with so few)" if self.n < FEW else ""
        facts.append(
            f"FLOPs x{self.cost.relative_flops:.2f} and parameters x{self.cost.relative_params:.2f} of one network"
        )
        more = []
        if not math.isnan(self.aurc):
            more.append(f"AURC {self.aurc:.4f}; accuracy on the 90 % most confident images {self.accuracy_at_90:.2%}")
        if self.iou:
            more.append(f"mean IoU {self.mean_iou:.2%}; mean Dice {self.mean_dice:.2%}; all scores are per place")
        if not math.isnan(self.coverage):
            more.append(f"sets of {self.set_size:.2f} classes on average, {self.coverage:.2%} with the true class")
        return "\n".join([*aligned([*zip(*columns, strict=True)]), "; ".join(facts), *more])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # notebooks
        printer.text(str(self))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True)
class Row:
    """A row of the results table, before or after it is scored.

    Args:
        name: the name, in the paper's terms: "DE-1 + 1 bridge I".
        members: names of the members to average.
        family: the group it belongs to in plots; that of the first row is the reference for DEE.
        order: sort key of the row.
        note: the purpose of the row, if the name does not tell.
        role: its role in the summary: "one" and "two" networks, the first "bridge", its "control", "heads".
        average_cost: for a cascade, the average cost in networks on the validation images.
        scored: cost and scores; None before it is scored.
    """

    name: str
    members: tuple[str, ...]
    family: str
    order: tuple[float, ...] = ()
    note: str = ""
    role: str = ""
    average_cost: float | None = None
    scored: Scored | None = None

    @property
    def scores(self) -> Scored:
        """Cost and scores of a scored row."""
        assert self.scored is not None, self.name
        return self.scored

    @property
    def is_cheap(self) -> bool:
        """Whether it costs less than two networks and is not the first row: its share of the gain of two is shown."""
        return self.role != "one" and self.scores.cost.relative_flops < 2


def deep_ensembles(rows: Sequence[Row]) -> list[Row]:
    """The rows of one, two, ... networks: those of the first row's family, in the order of the table."""
    return [row for row in rows if row.family == rows[0].family]
