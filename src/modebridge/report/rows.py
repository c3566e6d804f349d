"""One row of a results table: a set of members, what it costs and how well it does."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from modebridge.evaluate import Combined, Interval

__all__ = ["Row", "as_dicts", "row_of"]


@dataclass(frozen=True, kw_only=True)
class Row(Combined):
    """A scored combination with its place in a table.

    Args:
        name: in the words of the paper, "DE-1 + 1 bridge I".
        dee: deep ensemble equivalent by the calibrated NLL.
        note: what the row is there for, where its name does not say it.
        gain_interval: 95 % bootstrap interval of DE-1's NLL less this row's, over the same test images.
        closed_interval: the same of the share of the way from DE-1's NLL to DE-2's; None where there is no way to go.
        guess_nll: the NLL of knowing no more than how often each class occurs; nan where nobody has said.
        family: what it belongs to in plots; that of the first row is what the others are compared with.
        logarithmic_nll: the calibrated NLL by the logarithmic mean of the same members; nan where nobody has made it.
        role: what the summary takes it for: "one" and "two" networks, the first "bridge", its "control".
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
    """The row of a combination; `more` are the other fields of a row."""
    return Row(name=name, dee=dee, note=note, family=family, role=role, **vars(combined), **more)


def as_dicts(rows: list[Row]) -> list[dict[str, object]]:
    """Rows as plain data, for JSON, which knows no infinity: such a DEE is None."""
    return [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in map(asdict, rows)
    ]
