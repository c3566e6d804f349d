"""The logits of every member on held-out images: enough to score any combination without running a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from modebridge.ensembles import ALL, SetRule, average, cascaded, deferring, fit_temperature, scale
from modebridge.errors import ModebridgeError, near
from modebridge.scoring.cost import Cost
from modebridge.scoring.scores import dee, interval_of, resampled_means, surprisals
from modebridge.scoring.table import MemberCost, Row, Scored, deep_ensembles

SETS = 0.9
"""The coverage of the sets in tables, fitted on the validation split."""

Split: TypeAlias = Literal["valid", "test"]


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
    _temperatures: dict[tuple[str, ...], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def on(self, test: Mapping[str, Tensor], test_labels: Tensor) -> LogitTable:
        """The same members, calibrated on the same validation images, on other test images."""
        other = replace(self, test=test, test_labels=test_labels)
        object.__setattr__(other, "_temperatures", self._temperatures)
        return other

    def probabilities(self, members: Sequence[str], split: Split = "test") -> Tensor:
        """The mean probability (N, K) of some members, in float64."""
        if not members:
            raise ModebridgeError("Expected a combination to have members, but got none; pass at least one mode.")
        return average(
            [head.double().softmax(dim=-1) for name in members for head in self.heads(name, split)], "probability"
        )

    def heads(self, member: str, split: Split = "test") -> list[Tensor]:
        """The logits (N, K) of each head of a member."""
        table = self.test if split == "test" else self.valid
        if member not in table:
            raise ModebridgeError(f"Expected a member of this run, but got '{member}'; {near(member, table)}")
        logits = table[member]
        return [logits] if logits.ndim == 2 else list(logits)

    def temperature(self, members: Sequence[str]) -> float:
        """The temperature of a combination, fitted on the validation split and cached."""
        key = tuple(members)
        if key not in self._temperatures:
            self._temperatures[key] = fit_temperature(self.probabilities(members, "valid"), self.valid_labels)
        return self._temperatures[key]

    def calibrated(self, members: Sequence[str], split: Split = "test", *, threshold: float | None = None) -> Tensor:
        """The calibrated probability of a combination, or of a cascade if there is a threshold."""
        return self._predicted(members, split, threshold)[1]

    def _predicted(
        self, members: Sequence[str], split: Split, threshold: float | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Probabilities before and after calibration, and which images use all members; None for all images."""
        plain = self.probabilities(members, split)
        tempered = scale(plain, self.temperature(members))
        if threshold is None:
            return plain, tempered, None
        first, first_tempered, _ = self._predicted(members[:1], split, None)
        tempered, unsure = cascaded(first_tempered, tempered, threshold)
        return plain.where(unsure[:, None], first), tempered, unsure

    def threshold(
        self, members: Sequence[str], average_cost: float, prices: Mapping[str, float] | None = None
    ) -> float:
        """The threshold at which a cascade has an average cost, in networks, on the validation images.

        The first member runs on all images. Prices are the cost of each member in networks; None uses multiply-adds.
        """
        if prices is None:
            alone, whole = self.cost(members[:1]).relative_flops, self.cost(members).relative_flops
        else:
            alone, whole = prices[members[0]], sum(prices[name] for name in members)
        if not average_cost >= alone:
            raise ModebridgeError(
                f"Expected an average cost of at least {alone:g}, that of the first network, but got {average_cost:g}; "
                "raise it."
            )
        if whole <= average_cost:
            return ALL
        confidence = self.calibrated(members[:1], "valid").amax(dim=-1)
        return deferring(confidence, (average_cost - alone) / (whole - alone))

    def cost(self, members: Sequence[str], deferred_share: float = 1.0) -> Cost:
        """The cost of some members, including modes that are read but are not members.

        The deferred share of the images needs more than the first member.
        """
        unit = next((cost for cost in self.costs.values() if not cost.reads and not cost.alone), None)
        if unit is None:
            raise ModebridgeError("Expected the answers to include a mode as unit of cost, but got only bridges.")
        run = dict.fromkeys([*members, *(read for name in members for read in self.costs[name].reads)])
        flops, params = sum(self.costs[name].flops for name in run), sum(self.costs[name].params for name in run)
        if deferred_share < 1:
            first = self.cost(members[:1]).flops
            flops = first + deferred_share * (flops - first)
        return Cost(flops, params, flops / unit.flops, params / unit.params)

    def score(
        self, members: Sequence[str], split: Split = "test", *, threshold: float | None = None, intervals: bool = False
    ) -> Scored:
        """Every score of a combination; the temperature comes from the validation split.

        With a threshold it is a cascade: the first member runs on all images, the others only on those where it is less
        confident, and the cost depends on their share of the images. Bootstrap intervals take longer.
        """
        plain, tempered, unsure = self._predicted(members, split, threshold)
        enough = len(self.valid_labels) >= SETS / (1 - SETS)
        known = (self.calibrated(members, "valid", threshold=threshold), self.valid_labels)
        share = 1.0 if unsure is None else float(unsure.double().mean())
        return Scored.of(
            plain,
            tempered,
            self.test_labels if split == "test" else self.valid_labels,
            self.cost(members, share),
            sets=SetRule.fit(*known, SETS) if enough else None,
            intervals=intervals,
            members=tuple(members),
            threshold=threshold,
            deferred_share=share,
            temperature=self.temperature(members),
        )

    def score_rows(self, rows: Sequence[Row]) -> list[Row]:
        """Score rows on the test split, with intervals, and compare them with deep ensembles.

        Thresholds of cascades come from the validation split. The first row's family are deep ensembles of 1, 2, ...
        networks, and the rows with the roles "one" and "two" are among them.
        """
        scored, losses = [], []
        for row in rows:
            threshold = None if row.average_cost is None else self.threshold(row.members, row.average_cost)
            scored.append(replace(row, scored=self.score(row.members, threshold=threshold, intervals=True)))
            losses.append(surprisals(self.calibrated(row.members, threshold=threshold), self.test_labels))
        levels = [row.scores.nll for row in deep_ensembles(scored)]
        nlls = resampled_means(torch.stack(losses, dim=1))
        one, two = (nlls[:, [row.role for row in rows].index(role)] for role in ("one", "two"))
        gap = interval_of(one - two)[0] > 0
        compared = []
        for row, nll in zip(scored, nlls.T, strict=True):
            intervals = dict(row.scores.intervals)
            if row.role != "one":
                intervals["gain"] = interval_of(one - nll)
            if row.is_cheap and gap:
                intervals["closed"] = interval_of((one - nll) / (one - two))
            level = dee(row.scores.nll, levels)
            compared.append(replace(row, scored=replace(row.scores, dee=level, intervals=intervals)))
        return compared

    @property
    def guess_nll(self) -> float:
        """The NLL of predicting the class frequencies of the test split."""
        frequency = self.test_labels.bincount().double() / len(self.test_labels)
        return float(-torch.special.xlogy(frequency, frequency).sum())
