"""The result of a run in one sentence, whatever it is."""

from __future__ import annotations

from collections.abc import Sequence

from modebridge.report.rows import Row

__all__ = ["closed_gap", "summary"]

SKILL = 0.1
"""The share of the guessing NLL that one network must remove before anything can be compared."""
TOO_GOOD = 1.5
"""A small bridge that closes this much of the gap is a sign of poorly trained networks, not of a good bridge."""


def closed_gap(one: float, bridged: float, two: float) -> float:
    """The share of the gap between one network's NLL and two networks' that a bridged ensemble closes.

    >>> round(closed_gap(0.44, 0.40, 0.36), 2)
    0.5
    """
    return (one - bridged) / (one - two) if one != two else float("nan")


def summary(rows: Sequence[Row]) -> str:
    """The summary of a run with its own numbers; without a percentage if there is no gap to measure."""
    by_role = {row.role: row for row in rows}
    one, two, bridged = by_role["one"], by_role["two"], by_role["bridge"]
    share = closed_gap(one.nll, bridged.nll, two.nll)
    if one.nll > (1 - SKILL) * one.guess_nll:
        return (
            f"What you just saw is not a result yet: one network's NLL is {one.nll:.3f}, and predicting the class "
            f"frequencies gives {one.guess_nll:.3f}. The modes are not trained well enough to compare anything: "
            "train them longer."
        )
    if two.nll >= one.nll:
        return (
            f"What you just saw: on this seed a second network did not help (NLL {one.nll:.3f} to {two.nll:.3f}), "
            "so there is no gap for bridges to close; try another seed."
        )
    if two.gain_interval is not None and two.gain_interval[0] <= 0:
        low, high = two.gain_interval
        return (
            f"What you just saw: a second network took the NLL from {one.nll:.3f} to {two.nll:.3f}, a gain that these "
            f"test images cannot tell from zero (95 % interval {low:.3f} to {high:.3f}), so there is no gap to compare "
            f"bridges with; one bridge has {bridged.nll:.3f}. Use more test images, or train the modes longer."
        )
    if share <= 0:
        return (
            f"What you just saw: a second network took the NLL from {one.nll:.3f} to {two.nll:.3f}, but on this seed "
            f"one bridge did not help ({bridged.nll:.3f}); try another seed, or train curves and bridges longer."
        )
    if share > TOO_GOOD or (bridged.closed_interval is not None and bridged.closed_interval[0] > 1):
        return (
            f"What you just saw: one small bridge took the NLL from {one.nll:.3f} to {bridged.nll:.3f}, further than a "
            f"whole second network did ({two.nll:.3f}). Modes that are not fully trained look like that: train them "
            "longer before you believe it."
        )
    heads, control = by_role.get("heads"), by_role.get("control")
    best = min((row for row in rows if row.family == bridged.family), key=lambda row: row.nll)
    return (
        f"What you just saw: one small bridge at x{bridged.relative_flops:.2f} the FLOPs of one network went "
        f"{_share(one, bridged, two)} of the way from one network's NLL ({one.nll:.3f}) to two networks' "
        f"({two.nll:.3f} at x2.00), and {best.name} at x{best.relative_flops:.2f} is worth {_worth(best, rows)}"
        + (
            f"; the same bridge trained on labels alone, without a curve, went {_share(one, control, two)}."
            if control is not None
            else "."
        )
        + (
            f" {heads.name}, one bridge at x{heads.relative_flops:.2f} that needs no curve, went "
            f"{_share(one, heads, two)}."
            if heads is not None
            else ""
        )
        + (" In brackets: 95 % intervals over the test images." if bridged.closed_interval is not None else "")
    )


def _share(one: Row, bridged: Row, two: Row) -> str:
    percent = f"{closed_gap(one.nll, bridged.nll, two.nll):.0%}"
    if bridged.closed_interval is None:
        return percent
    low, high = bridged.closed_interval
    return f"{percent} [{low:.0%} to {high:.0%}]"


def _worth(best: Row, rows: Sequence[Row]) -> str:
    """The DEE, capped at the largest deep ensemble that was measured: beyond it there is only extrapolation."""
    most = max(len(row.members) for row in rows if row.family == rows[0].family)
    return f"{best.dee:.1f} networks" if best.dee <= most else f"more than {most} networks"
