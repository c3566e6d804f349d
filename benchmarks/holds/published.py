"""What a results folder publishes, one record per folder; scored.py creates the tables from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Published", "Row", "Rows"]

Row: TypeAlias = tuple[str, ...]
"""Members to average."""

Rows: TypeAlias = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Published:
    """The record of a results folder.

    Args:
        modes: number of modes; the first, the first two, ... are the deep ensembles used as reference.
        rows: rows of the table of scores.
        targets: what each row imitates, one entry per head; a single member is a row of one.
        pairs: differences by title: the mean over some rows minus the mean over others.
        cascades: cascades by title, which is also a row: confident images use only the first member, others all; the
            number is the average cost on validation images.
        recorded: rows of members whose logits are not kept; rows.safetensors has a few numbers per image instead.
    """

    modes: int
    rows: Rows
    targets: Mapping[Row, Rows]
    pairs: Mapping[str, tuple[Rows, Rows]]
    cascades: Mapping[str, tuple[Row, float]] = field(default_factory=dict)
    recorded: Rows = ()
