"""Scores of networks that classify every place of an image, such as a pixel, from sums over each image."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from modebridge.scoring.cost import Cost
from modebridge.scoring.scores import brier, hits, interval_of, reliability, resampled_means, surprisals
from modebridge.scoring.table import Scored
from modebridge.types import IGNORED

BINS = 15

SUMS = 6
"""Sums of an image that do not depend on the class."""


class PlaceSums:
    """Sums over the labeled places of each image, batch by batch, so that no table of all places is ever kept.

    Scores are means over all labeled places; images are drawn for bootstrap intervals, since places of one image are
    alike. Images without a label do not count.
    """

    def __init__(self) -> None:
        self._images: list[list[float]] = []
        self._overlaps: list[Tensor] = []  # (3, K) each: places of a class that were found, all of them, all found
        # Count, confidence and hits by bin of the confidence, before and after calibration.
        self._bins = torch.zeros(2, 3, BINS, dtype=torch.float64)

    def add(self, plain: Tensor, tempered: Tensor, labels: Tensor) -> None:
        """Probabilities (B, *P, K) before and after calibration, and labels (B, *P)."""
        classes = plain.shape[-1]
        for numbers, *tables in zip(labels, plain, tempered, strict=True):
            known = numbers != IGNORED
            if not bool(known.any()):
                continue
            truth, both = numbers[known], [table[known] for table in tables]
            right = hits(both[0], truth)
            sums = [float(len(truth)), float(right.sum())]
            for k, table in enumerate(both):
                sums += [float(surprisals(table, truth).sum()), len(truth) * brier(table, truth)]
                bins = reliability(table, truth, BINS)
                means = torch.stack([torch.ones_like(bins.confidence), bins.confidence, bins.accuracy])
                self._bins[k] += (means * bins.count).nan_to_num(0.0).cpu()
            self._images.append(sums)
            parts = truth[right.bool()], truth, both[0].argmax(dim=-1)
            self._overlaps.append(torch.stack([part.bincount(minlength=classes).double().cpu() for part in parts]))

    @property
    def table(self) -> Tensor:
        """The sums of each image (N, 6 + 3 K).

        Labeled places, right ones, NLL and Brier score before calibration and after it; then, by class, places of the
        class that were found, all of the class, and all that were taken for it.
        """
        sums = torch.tensor(self._images, dtype=torch.float64).view(-1, SUMS)
        return torch.cat([sums, torch.stack(self._overlaps).flatten(1)], dim=1) if self._overlaps else sums

    def scored(self, cost: Cost, temperature: float | None, *, intervals: bool = False) -> Scored:
        """The scores of all images."""
        table, bounds = self.table, {}
        if intervals and len(table):
            drawn = resampled_means(table)
            rates = drawn[:, :SUMS] / drawn[:, :1]
            scores = {"accuracy": rates[:, 1], "nll": rates[:, 4], "mean_iou": _iou(drawn[:, SUMS:])[0].nanmean(dim=-1)}
            bounds = {name: interval_of(values) for name, values in scores.items()}
        total = table.sum(dim=0, keepdim=True)
        accuracy, raw_nll, raw_brier, nll, squares = (total[0, 1:SUMS] / total[0, 0]).tolist()
        raw_ece, ece = (_ece(*bins) for bins in self._bins)
        iou, dice = (tuple(values[0].tolist()) for values in _iou(total[:, SUMS:]))
        own: dict[str, Any] = {"iou": iou, "dice": dice, "intervals": bounds, "temperature": temperature}
        own |= {"accuracy": accuracy, "nll": nll, "ece": ece, "brier": squares}
        own |= {"raw_nll": raw_nll, "raw_ece": raw_ece, "raw_brier": raw_brier}
        return Scored(n=len(table), cost=cost, **own)


def _iou(overlaps: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union and Dice (R, K) from (R, 3 * K); NaN for a class that neither occurs nor is found."""
    both, truth, found = overlaps.view(len(overlaps), 3, -1).unbind(dim=1)
    return both / (truth + found - both), 2 * both / (truth + found)


def _ece(count: Tensor, confidence: Tensor, right: Tensor) -> float:
    total = float(count.sum())
    return float((right - confidence).abs().sum()) / total if total else math.nan
