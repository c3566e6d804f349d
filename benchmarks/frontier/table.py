"""The table of the comparison: means and deviations over seeds, paired differences, and the choice on validation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from scipy.special import stdtrit

from frontier.scoring import Record
from frontier.variants import BASELINE

__all__ = ["interval", "table", "way"]

LIMITS = (1.06, 1.20)
"""FLOPs budgets, in multiples of one base network, for which a variant is chosen; rounded to two digits."""
HEAD = (
    f"| variant | FLOPs | params | ACC % | NLL | ECE | way to DE-2: NLL | ACC | NLL minus {BASELINE} | ACC minus it | "
    "valid NLL | s |"
)


def table(records: Sequence[Record]) -> list[str]:
    """The lines of the Markdown tables, one per data set."""
    lines: list[str] = []
    for data in dict.fromkeys(record["data"] for record in records):
        by_variant: dict[str, dict[int, Record]] = {}
        for record in records:
            if record["data"] == data:
                by_variant.setdefault(record["variant"], {})[record["seed"]] = record
        lines += [f"### {data}", "", *_of_one(by_variant), ""]
    return lines


def _of_one(rows: Mapping[str, Mapping[int, Record]]) -> list[str]:
    seeds = sorted({seed for row in rows.values() for seed in row})
    order = sorted(rows, key=lambda name: (round(_cost(rows[name]), 2), _mean(rows[name], "test", "nll")))
    source = "t intervals over seeds" if len(seeds) > 1 else "intervals over test images"
    lines = [
        f"Seeds {', '.join(map(str, seeds))}. Scores on test images, mean +- standard deviation (ddof 1) over seeds; "
        "temperatures (and weights) from validation images. Ways are of the means. In brackets 95 % "
        f"{source} of the paired difference to {BASELINE}, not corrected for the number of variants. Validation NLL is "
        "cross-fitted in five parts. Seconds are a variant's share of the pass that trained it. *Lines to beat* are in "
        "italics.",
        "",
        HEAD,
        "|---|" + "---:|" * (HEAD.count("|") - 2),
    ]
    lines += [_line(name, rows, len(seeds)) for name in order]
    for limit in LIMITS:
        lines += ["", _choice(limit, rows, len(seeds))]
    return lines


def _line(name: str, rows: Mapping[str, Mapping[int, Record]], seeds: int) -> str:
    row = rows[name]
    title = f"*{name}*" if _any(row)["line"] else name
    if len(row) < seeds:
        title += f" ({len(row)} of {seeds} seeds)"
    seconds = "" if _any(row)["line"] else f"{statistics.mean(r['seconds'] for r in row.values()):.0f}"
    ways = [f"{share:.0%}".replace("%", " %") if share is not None else "" for share in _ways(name, rows)]
    cells = [
        title,
        f"x{_cost(row):.2f}",
        f"x{statistics.mean(record['params'] for record in row.values()):.2f}",
        _spread([100 * record["test"]["accuracy"] for record in row.values()], 2),
        _spread([record["test"]["nll"] for record in row.values()], 4),
        _spread([record["test"]["ece"] for record in row.values()], 4),
        *ways,
        _difference(name, rows, "nll", 1, 4),
        _difference(name, rows, "accuracy", 100, 2),
        f"{_mean(row, 'valid', 'nll'):.4f}",
        seconds,
    ]
    return "| " + " | ".join(cells) + " |"


def _ways(name: str, rows: Mapping[str, Mapping[int, Record]]) -> list[float | None]:
    """The shares of the gap from DE-1 to DE-2 that a variant closes, on the seeds that all three have."""
    if "DE-1" not in rows or "DE-2" not in rows:
        return [None, None]
    shared = [seed for seed in rows[name] if seed in rows["DE-1"] and seed in rows["DE-2"]]

    def mean(title: str, key: str) -> float:
        return statistics.mean(rows[title][seed]["test"][key] for seed in shared)

    return [
        way(mean("DE-1", key), mean(name, key), mean("DE-2", key)) if shared else None for key in ("nll", "accuracy")
    ]


def way(one: float, here: float, two: float) -> float | None:
    """The share of the gap from one network to two that is closed; None if there is no gap.

    >>> way(0.4, 0.35, 0.3)
    0.5
    """
    return round((here - one) / (two - one), 6) + 0.0 if two != one else None  # + 0.0: no -0


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """The mean of values and the ends of its t interval, which are NaN for a single value.

    >>> [round(x, 3) for x in interval([1.0, 2.0, 3.0])]  # 2 -+ 4.303 / sqrt(3)
    [2.0, -0.484, 4.484]
    """
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = float(stdtrit(len(values) - 1, (1 + level) / 2)) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def _difference(name: str, rows: Mapping[str, Mapping[int, Record]], key: str, unit: float, digits: int) -> str:
    """The paired difference to the baseline: over seeds, or over test images if there is only one seed."""
    if name == BASELINE or BASELINE not in rows:
        return ""
    row, base = rows[name], rows[BASELINE]
    values = [unit * (row[seed]["test"][key] - base[seed]["test"][key]) for seed in row if seed in base]
    if not values:
        return ""
    mean, low, high = interval(values)
    if len(values) == 1:
        images = _any(row).get("over_images")
        if not images:
            return f"{mean:+.{digits}f}"
        low, high = (unit * end for end in images[key])
    return f"{mean:+.{digits}f} [{low:+.{digits}f} to {high:+.{digits}f}]"


def _choice(limit: float, rows: Mapping[str, Mapping[int, Record]], seeds: int) -> str:
    """The variant with the lowest mean validation NLL within a budget, among those that all seeds have."""
    within = [
        name
        for name, row in rows.items()
        if not _any(row)["line"] and len(row) == seeds and round(_cost(row), 2) <= limit
    ]
    if not within:
        return f"No variant with all seeds costs at most x{limit:.2f}."
    best = min(within, key=lambda name: _mean(rows[name], "valid", "nll"))
    row = rows[best]
    share = _ways(best, rows)[0]
    gone = "" if share is None else f", {share:.0%}".replace("%", " %") + " of the way from DE-1 to DE-2 in NLL"
    return (
        f"At most x{limit:.2f}, best on validation of {len(within)}: **{best}** (validation NLL "
        f"{_mean(row, 'valid', 'nll'):.4f}); on test {100 * _mean(row, 'test', 'accuracy'):.2f} % / "
        f"{_mean(row, 'test', 'nll'):.4f}{gone}; minus {BASELINE}: NLL {_difference(best, rows, 'nll', 1, 4) or 0}, "
        f"accuracy {_difference(best, rows, 'accuracy', 100, 2) or 0}."
    )


def _any(row: Mapping[int, Record]) -> Record:
    return next(iter(row.values()))


def _cost(row: Mapping[int, Record]) -> float:
    return statistics.mean(record["flops"] for record in row.values())


def _mean(row: Mapping[int, Record], split: str, key: str) -> float:
    return statistics.mean(record[split][key] for record in row.values())


def _spread(values: Sequence[float], digits: int) -> str:
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} +- {statistics.stdev(values):.{digits}f}"
