"""The result of a run in two sentences, and the few rows that show it."""

from __future__ import annotations

from collections.abc import Sequence

from modebridge.scoring import LogitTable, Row, deep_ensembles

SKILL = 0.1
"""The share of the guessing NLL that one network must remove before anything can be compared."""

SHOWN = ("one", "distilled", "heads", "bridge", "control", "cascade", "two")
"""The roles of the rows that are shown first; a bridge only where there are no heads."""


def short_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows that a newcomer needs: one network, what is made of several at its cost, the best, two networks.

    Also the deep ensemble that the verdict compares with.
    """
    hidden = "bridge" if any(row.role == "heads" for row in rows) else ""
    named = _named(rows)
    also = best_cheap(rows), named and _reached(named, rows)
    return [row for row in rows if row in also or (row.role in SHOWN and row.role != hidden)]


def _named(rows: Sequence[Row]) -> Row | None:
    """The row that the verdict is about: that of heads, else of a bridge, else the best cheap one."""
    by_role = {row.role: row for row in rows}
    return by_role.get("heads") or by_role.get("bridge") or best_cheap(rows)


def _reached(row: Row, rows: Sequence[Row]) -> Row | None:
    """The largest deep ensemble whose NLL a row has, at the precision that is printed."""
    return next(
        (one for one in reversed(deep_ensembles(rows)) if round(row.scores.nll, 3) <= round(one.scores.nll, 3)), None
    )


def best_cheap(rows: Sequence[Row]) -> Row | None:
    """The row of the lowest NLL among what was made of the networks and costs less than two."""
    cheap = [row for row in rows if row.is_cheap and row.family != rows[0].family]
    return min(cheap, key=lambda row: row.scores.nll, default=None)


def closed_gap(one: float, bridged: float, two: float) -> float:
    """The share of the gap between one network's NLL and two networks' that a bridged ensemble closes.

    >>> round(closed_gap(0.44, 0.40, 0.36), 2)
    0.5
    """
    return (one - bridged) / (one - two) if one != two else float("nan")


def networks_alone(rows: Sequence[Row], table: LogitTable) -> dict[str, float]:
    """The NLL of each network of the largest deep ensemble, alone, by its name."""
    largest = max((row.members for row in deep_ensembles(rows)), key=len)
    return {name: table.score([name]).nll for name in largest}


def verdict(rows: Sequence[Row], guess_nll: float, alone: Sequence[float] = ()) -> str:
    """What was gained and at what cost.

    Args:
        rows: the rows of a run.
        guess_nll: the NLL of predicting the class frequencies.
        alone: the NLL of each network alone; it is said if the first is the worst, since all rows build on it.
    """
    said = _verdict(rows, guess_nll)
    if len(alone) > 1 and alone[0] == max(alone):
        worst = f" The first network is the worst of the {len(alone)}, which flatters the rest"
        said += f"{worst}: the best one alone has {min(alone):.3f}."
    return said


def _verdict(rows: Sequence[Row], guess_nll: float) -> str:
    by_role = {row.role: row for row in rows}
    one, two = (by_role[role].scores for role in ("one", "two"))
    if one.nll > (1 - SKILL) * guess_nll:
        return (
            f"One network is hardly better than guessing: its NLL is {one.nll:.3f}, that of predicting the class "
            f"frequencies {guess_nll:.3f}. Train the networks longer before you compare anything."
        )
    best = best_cheap(rows)
    if not helps(by_role["two"]):
        said = f"Two networks are not clearly better than one here: NLL {two.nll:.3f} and {one.nll:.3f}"
        if best is None or not helps(best):
            return f"{said}. Nothing else helped either; use more test images, or train the networks longer."
        return f"{said}. What helped most for less than the cost of two is {best.name}: NLL {_price(best)}."
    named = _named(rows)
    if named is None:
        return (
            f"Two networks take the NLL from {one.nll:.3f} to {two.nll:.3f}, at twice the cost. Nothing else was made."
        )
    said = f"{named.name[:1].upper()}{named.name[1:].replace(' + ', ' with ')} {_cost(named)} and {_worth(named, rows)}"
    control, own = by_role.get("control", named), named.scores
    cheaper = control.scores.cost.relative_flops <= own.cost.relative_flops
    if control not in (named, best) and cheaper and control.scores.nll <= own.nll:
        said += f"; the control, {control.name}, has {control.scores.nll:.3f} at no more cost"
    if best is None or round(best.scores.nll, 3) >= round(named.scores.nll, 3):
        return f"{said}. Nothing else here that costs less than two networks is better."
    return f"{said}. The lowest NLL for less than the cost of two: {best.name}, {_price(best)}."


def helps(row: Row) -> bool:
    """Whether a row is better than one network by more than the test images could show by chance."""
    return row.scores.intervals.get("gain", (1.0,))[0] > 0


def _price(row: Row) -> str:
    return f"{row.scores.nll:.3f} at x{row.scores.cost.relative_flops:.2f}"


def _cost(row: Row) -> str:
    more = row.scores.cost.relative_flops - 1
    return f"takes {more:.0%} more multiply-adds".replace("%", " %") if more >= 0.005 else "costs no more"


def _worth(row: Row, rows: Sequence[Row]) -> str:
    """How many networks a row is worth, at the precision that is printed."""
    one, two, *_ = (round(other.scores.nll, 3) for other in deep_ensembles(rows))
    own, reached = round(row.scores.nll, 3), _reached(row, rows)
    if not helps(row) or reached is None:
        how = "worse" if row.scores.intervals.get("gain", (0.0, 0.0))[1] < 0 else "not clearly better"
        return f"is {how} than one network: NLL {own:.3f}, one network {one:.3f}"
    if reached.role == "one":
        share = f"{closed_gap(one, own, two):.0%}"
        if bounds := row.scores.intervals.get("closed"):
            share += f" (95% interval {100 * bounds[0]:.0f} to {100 * bounds[1]:.0f})"
        figures = f"NLL {own:.3f}, one {one:.3f}, two {two:.3f}"
        return f"closes {share} of the gap between one network and two: {figures}".replace("%", " %")
    (low, _), (_, high) = (each.scores.intervals["gain"] for each in (row, reached))
    how, count = "better than" if low > high else "about as good as", reached.name.partition(" ")[0]
    return f"is {how} {reached.name}: NLL {own:.3f}, one {one:.3f}, {count} {reached.scores.nll:.3f}"
