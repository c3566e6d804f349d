"""Seeds as given on the command line."""

from __future__ import annotations

__all__ = ["seeds_in"]


def seeds_in(text: str) -> list[int]:
    """The seeds of "5", "20,21" or "30-37"; none of an empty text.

    >>> seeds_in("5"), seeds_in("20,30-32"), seeds_in("")
    ([5], [20, 30, 31, 32], [])
    """
    ranges = [part.split("-") for part in text.split(",") if part]
    return [seed for ends in ranges for seed in range(int(ends[0]), int(ends[-1]) + 1)]
