"""What a result folder publishes, one record per folder; scored.py makes the tables from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Published", "Row", "Rows"]

Row: TypeAlias = tuple[str, ...]
"""Members whose probabilities are averaged."""

Rows: TypeAlias = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Published:
    """The record of a result folder.

    Args:
        modes: how many there are; the first, the first two, ... are the deep ensembles that rows are measured by.
        rows: of the table of scores.
        targets: what each row imitates, one entry per head; a member alone is a row of one.
        pairs: differences by title: the mean over some rows less the mean over others.
        cascades: by title, which is a row of its own: the first member answers alone where it is sure, all of them
            where it is not; the number is the average cost on validation images.
        recorded: rows of members whose logits are not kept; rows.safetensors has a few numbers per image instead.
    """

    modes: int
    rows: Rows
    targets: Mapping[Row, Rows]
    pairs: Mapping[str, tuple[Rows, Rows]]
    cascades: Mapping[str, tuple[Row, float]] = field(default_factory=dict)
    recorded: Rows = ()
