"""One row of a results table: a set of members, what it costs and how well it does."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from modebridge.evaluate import Combined

__all__ = ["Row", "as_dicts", "row_of"]


@dataclass(frozen=True, kw_only=True)
class Row(Combined):
    """A scored combination with its place in a table.

    Args:
        name: in the words of the paper, "DE-1 + 1 bridge I".
        dee: deep ensemble equivalent by the calibrated NLL.
        note: what the row is there for, where its name does not say it.
    """

    name: str
    dee: float
    note: str = ""


def row_of(name: str, combined: Combined, dee: float, note: str = "") -> Row:
    """The row of a combination."""
    return Row(name=name, dee=dee, note=note, **vars(combined))


def as_dicts(rows: list[Row]) -> list[dict[str, object]]:
    """Rows as plain data, for JSON, which knows no infinity: such a DEE is None."""
    return [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in map(asdict, rows)
    ]
