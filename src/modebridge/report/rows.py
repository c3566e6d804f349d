"""One row of a results table: a set of members, its cost and its scores."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from modebridge.scoring import Combined, Interval

__all__ = ["Row", "as_dicts", "row_of"]


@dataclass(frozen=True, kw_only=True)
class Row(Combined):
    """A scored combination as a row of a table.

    Args:
        name: name as in the paper, such as "DE-1 + 1 bridge I".
        dee: deep ensemble equivalent by the calibrated NLL.
        note: purpose of the row, if its name does not say it.
        gain_interval: paired 95 % bootstrap interval of DE-1's NLL minus this row's, over the same test images.
        closed_interval: the same for the share of the gap between DE-1's and DE-2's NLL; None if there is no gap.
        guess_nll: NLL of predicting the class frequencies; nan if unknown.
        logarithmic_nll: calibrated NLL with the logarithmic mean of the same members; nan if unknown.
        family: group in plots; the family of the first row is the reference.
        role: role in the summary: "one" and "two" networks, the first "bridge", its "control", "heads".
    """

    name: str
    dee: float
    note: str = ""
    gain_interval: Interval | None = None
    closed_interval: Interval | None = None
    guess_nll: float = math.nan
    logarithmic_nll: float = math.nan
    family: str = ""
    role: str = ""


def row_of(
    name: str, combined: Combined, dee: float, note: str = "", family: str = "", role: str = "", **more: Any
) -> Row:
    """The row of a combination; `more` holds the other fields of a row."""
    return Row(name=name, dee=dee, note=note, family=family, role=role, **vars(combined), **more)


def as_dicts(rows: list[Row]) -> list[dict[str, object]]:
    """Rows as plain data for JSON; values that are not finite become None."""
    return [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in map(asdict, rows)
    ]
