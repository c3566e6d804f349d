"""The tables of `modebridge bench`: on screen, as Markdown, as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from modebridge.cli.show_commands import plain_table
from modebridge.deploy.benchmark import Result
from modebridge.errors import plural

__all__ = ["about_line", "goals", "markdown", "row_of", "table_of"]

GOAL = 5.0
"""How far relative time may exceed relative FLOPs, in percentage points of one network."""


def table_of(results: Sequence[Result]) -> Table:
    """The table for one way of running and one batch size."""
    one = results[0]
    columns = ("ms", "quartiles", "images/s", "time", "quartiles", "FLOPs", "points")
    table = plain_table(f"{one.way}, batch {one.batch}", *columns)
    for result in results:
        table.add_row(*_cells(result))
    return table


def _cells(one: Result) -> list[str]:
    took, part = one.timing.seconds, one.ratio
    return [
        one.name,
        _ms(took.median),
        f"{_ms(took.low)}-{_ms(took.high)}",
        f"{one.images_per_second:,.0f}",
        f"x{part.median:.3f}",
        f"{part.low:.2f}-{part.high:.2f}",
        f"x{one.flops:.3f}",
        f"{one.over:+.1f}",
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def markdown(results: Sequence[Result], about: Mapping[str, Any]) -> str:
    """All tables, and whether the goal is met."""
    lines: list[str] = []
    for way, batch in dict.fromkeys((one.way, one.batch) for one in results):
        lines += [
            f"{way}, batch {batch}. {about_line(about)}",
            "",
            "| members | ms | quartiles | images/s | time | quartiles | FLOPs | points over |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [f"| {' | '.join(_cells(one))} |" for one in results if (one.way, one.batch) == (way, batch)]
        lines.append("")
    return "\n".join([*lines, *goals(results), ""])


def about_line(about: Mapping[str, Any]) -> str:
    """Machine, settings and versions in one line."""
    versions = ", ".join(f"{name} {about[name]}" for name in ("torch", "onnxruntime", "modebridge") if about.get(name))
    threads = plural(about["threads"], "thread")
    load = "" if about["load"] is None else f", load {about['load']:.2f} before"
    return f"{about['what']}; {about['device']}, {threads}{load}, {about['precision']}; {versions}; {about['made']}"


def goals(results: Sequence[Result]) -> list[str]:
    """Whether the largest ensemble of one network and type I bridges meets the goal, per way and batch size."""
    sentences: list[str] = []
    for way, batch in dict.fromkeys((one.way, one.batch) for one in results):
        bridged = [one for one in results if (one.way, one.batch) == (way, batch) and one.name.endswith(" I")]
        if bridged:
            one = bridged[-1]
            judged = "within" if one.over <= GOAL else "NOT within"
            sentences.append(
                f"{way}, batch {batch}: {one.name} takes x{one.ratio.median:.3f} the time at x{one.flops:.3f} the "
                f"FLOPs, {judged} {GOAL:g} points."
            )
    return sentences


def row_of(one: Result) -> dict[str, Any]:
    """A row as data, for JSON."""
    took, part = one.timing.seconds, one.ratio
    return {
        "name": one.name,
        "way": one.way,
        "batch": one.batch,
        "seconds": {"median": took.median, "low": took.low, "high": took.high},
        "fastest": one.timing.fastest,
        "calls": one.timing.calls,
        "images_per_second": one.images_per_second,
        "ratio": {"median": part.median, "low": part.low, "high": part.high},
        "flops": None if math.isnan(one.flops) else one.flops,
    }
