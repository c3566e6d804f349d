"""One row of a results table: a set of members, what it costs and how well it does."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from modebridge.evaluate import Combined

__all__ = ["Row", "as_dicts", "row_of"]


@dataclass(frozen=True)
class Row:
    """A member set with its cost and its scores on the test split.

    Args:
        name: in the words of the paper, "DE-1 + 1 bridge I".
        relative_flops: multiply-adds, one base network being 1.
        relative_params: parameters, one base network being 1.
        accuracy: share of right answers.
        nll: negative log likelihood after calibration.
        ece: expected calibration error after calibration.
        brier: Brier score after calibration.
        dee: deep ensemble equivalent by the calibrated NLL.
        raw_nll: negative log likelihood before calibration.
        raw_ece: expected calibration error before calibration.
        raw_brier: Brier score before calibration.
        temperature: fitted on the validation split.
        nll_interval: 95 % bootstrap interval of `nll` over test images.
        note: what the row is there for, where its name does not say it.
        members: the names of its members.
        accuracy_interval: 95 % bootstrap interval of `accuracy` over test images.
    """

    name: str
    relative_flops: float
    relative_params: float
    accuracy: float
    nll: float
    ece: float
    brier: float
    dee: float
    raw_nll: float
    raw_ece: float
    raw_brier: float
    temperature: float
    nll_interval: tuple[float, float]
    note: str = ""
    members: tuple[str, ...] = ()
    accuracy_interval: tuple[float, float] = (math.nan, math.nan)


def row_of(name: str, combined: Combined, dee: float, note: str = "") -> Row:
    """The row of a combination that was scored with intervals."""
    missing = (math.nan, math.nan)
    return Row(
        name=name,
        relative_flops=combined.relative_flops,
        relative_params=combined.relative_params,
        accuracy=combined.accuracy,
        nll=combined.nll,
        ece=combined.ece,
        brier=combined.brier,
        dee=dee,
        raw_nll=combined.raw_nll,
        raw_ece=combined.raw_ece,
        raw_brier=combined.raw_brier,
        temperature=combined.temperature,
        nll_interval=combined.nll_interval or missing,
        note=note,
        members=combined.members,
        accuracy_interval=combined.accuracy_interval or missing,
    )


def as_dicts(rows: list[Row]) -> list[dict[str, object]]:
    """Rows as plain data, for JSON, which knows no infinity: such a DEE is None."""
    return [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in map(asdict, rows)
    ]
