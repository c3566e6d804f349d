"""The logits of every member on held-out images: enough to score any combination without running a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from modebridge.ensembles import Mean, average, fit_temperature, scale
from modebridge.errors import ModebridgeError, near
from modebridge.scoring.bootstrap import Interval, bootstrap_mean
from modebridge.scoring.cascade import cascaded, choose_threshold
from modebridge.scoring.scores import accuracy, brier, ece, hits, nll, surprisals

__all__ = ["Combined", "LogitTable", "MemberCost"]


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
class Combined:
    """A combination of members, scored on the test split with a temperature from the validation split.

    Args:
        members: names of the members.
        relative_flops: multiply-adds relative to one base network; for a cascade the average over the test images.
        relative_params: parameters relative to one base network.
        accuracy: share of correct predictions.
        nll: negative log likelihood after calibration.
        ece: expected calibration error after calibration.
        brier: Brier score after calibration.
        raw_nll: negative log likelihood before calibration.
        raw_ece: expected calibration error before calibration.
        raw_brier: Brier score before calibration.
        temperature: temperature fitted on the validation split.
        nll_interval: 95 % bootstrap interval of `nll` over test images, if requested.
        accuracy_interval: 95 % bootstrap interval of `accuracy`, if requested.
        threshold: for a cascade: images for which the first member is at least this confident use it alone.
        asked: share of test images that need the other members; 1 if not a cascade.
        mean: how the members' probabilities are averaged.
    """

    members: tuple[str, ...]
    relative_flops: float
    relative_params: float
    accuracy: float
    nll: float
    ece: float
    brier: float
    raw_nll: float
    raw_ece: float
    raw_brier: float
    temperature: float
    nll_interval: Interval | None = None
    accuracy_interval: Interval | None = None
    threshold: float | None = None
    asked: float = 1.0
    mean: Mean = "probability"


@dataclass(frozen=True)
class LogitTable:
    """The logits of every member on the validation and test splits.

    Args:
        valid: validation logits (N, K) by member; (H, N, K) for H heads, each of which counts as one in the mean.
        test: test logits by member.
        valid_labels: validation labels (N,).
        test_labels: test labels (N,).
        costs: costs by member; a mode costs one base network.
    """

    valid: Mapping[str, Tensor]
    test: Mapping[str, Tensor]
    valid_labels: Tensor
    test_labels: Tensor
    costs: Mapping[str, MemberCost]
    _temperatures: dict[tuple[Mean, tuple[str, ...]], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def probabilities(self, members: Sequence[str], split: str = "test", mean: Mean = "probability") -> Tensor:
        """The mean probability (N, K) of some members, in float64."""
        if not members:
            raise ModebridgeError("Expected a combination to have members, but got none; pass at least one mode.")
        heads = [head for name in members for head in self.heads(name, split)]
        return average([head.double().softmax(dim=-1) for head in heads], mean)

    def heads(self, member: str, split: str = "test") -> list[Tensor]:
        """The logits (N, K) of each head of a member."""
        table = self.test if split == "test" else self.valid
        if member not in table:
            raise ModebridgeError(f"Expected a member of this run, but got '{member}'; {near(member, table)}")
        logits = table[member]
        return [logits] if logits.ndim == 2 else list(logits)

    def temperature(self, members: Sequence[str], mean: Mean = "probability") -> float:
        """The temperature of a combination, fitted on the validation split and cached."""
        key = mean, tuple(members)
        if key not in self._temperatures:
            probabilities = self.probabilities(members, "valid", mean)
            self._temperatures[key] = fit_temperature(probabilities, self.valid_labels)
        return self._temperatures[key]

    def calibrated(
        self,
        members: Sequence[str],
        split: str = "test",
        *,
        threshold: float | None = None,
        mean: Mean = "probability",
    ) -> Tensor:
        """The calibrated probability of a combination, or of a cascade if there is a threshold."""
        long = scale(self.probabilities(members, split, mean), self.temperature(members, mean))
        if threshold is None:
            return long
        return cascaded(self.calibrated(members[:1], split, mean=mean), long, threshold)[0]

    def threshold(self, members: Sequence[str], average_cost: float, mean: Mean = "probability") -> float:
        """The threshold at which a cascade has the given average cost on the validation images.

        Args:
            members: names of the members; the first runs on all images.
            average_cost: average multiply-adds relative to one base network.
            mean: how the first member's heads are averaged, if it has several.
        """
        alone, whole = self.cost(members[:1])[0], self.cost(members)[0]
        confidences = self.calibrated(members[:1], "valid", mean=mean).amax(dim=-1)
        return choose_threshold(confidences, alone, whole - alone, average_cost)

    def cost(self, members: Sequence[str]) -> tuple[float, float]:
        """Relative multiply-adds and parameters, including modes that are read but are not members."""
        unit = next((cost for cost in self.costs.values() if not cost.reads and not cost.alone), None)
        if unit is None:
            raise ModebridgeError("Expected the answers to include a mode as unit of cost, but got only bridges.")
        run = dict.fromkeys(members)
        for name in members:
            run |= dict.fromkeys(self.costs[name].reads)
        flops, params = sum(self.costs[n].flops for n in run), sum(self.costs[n].params for n in run)
        return flops / unit.flops, params / unit.params

    def score(
        self,
        members: Sequence[str],
        *,
        threshold: float | None = None,
        mean: Mean = "probability",
        intervals: bool = False,
    ) -> Combined:
        """Every score of a combination on the test split.

        Args:
            members: names of the members.
            threshold: for a cascade, see `threshold`: the first member runs on all images, the others only on those
                where it is less confident. The cost depends on their share of the test images.
            mean: how the members' probabilities are averaged.
            intervals: whether to compute bootstrap intervals, which takes longer.
        """
        plain, labels = self.probabilities(members, mean=mean), self.test_labels
        temperature = self.temperature(members, mean)
        tempered = scale(plain, temperature)
        flops, params = self.cost(members)
        asked = 1.0
        if threshold is not None:
            first = self.probabilities(members[:1], mean=mean)
            tempered, unsure = cascaded(scale(first, self.temperature(members[:1], mean)), tempered, threshold)
            plain = plain.where(unsure[:, None], first)
            asked, alone = float(unsure.double().mean()), self.cost(members[:1])[0]
            flops = alone + asked * (flops - alone)
        return Combined(
            members=tuple(members),
            relative_flops=flops,
            relative_params=params,
            accuracy=accuracy(plain, labels),
            nll=nll(tempered, labels),
            ece=ece(tempered, labels),
            brier=brier(tempered, labels),
            raw_nll=nll(plain, labels),
            raw_ece=ece(plain, labels),
            raw_brier=brier(plain, labels),
            temperature=temperature,
            nll_interval=bootstrap_mean(surprisals(tempered, labels)) if intervals else None,
            accuracy_interval=bootstrap_mean(hits(plain, labels)) if intervals else None,
            threshold=threshold,
            asked=asked,
            mean=mean,
        )
