"""One sentence that says what a run has shown, whatever it has shown."""

from __future__ import annotations

from collections.abc import Sequence

from modebridge.report.rows import Row

__all__ = ["closed_gap", "summary"]


def closed_gap(one: float, bridged: float, two: float) -> float:
    """The share of the way from one network's NLL to two networks' that a bridged ensemble goes.

    >>> round(closed_gap(0.44, 0.40, 0.36), 2)
    0.5
    """
    return (one - bridged) / (one - two) if one != two else float("nan")


def summary(rows: Sequence[Row]) -> str:
    """What the user just saw, with the figures of this very run."""
    by_name = {row.name: row for row in rows}
    one, two, bridged = by_name["DE-1"], by_name["DE-2"], by_name["DE-1 + 1 bridge I"]
    best = min((row for row in rows if row.name.startswith("DE-1 +") and row.name.endswith(" I")), key=lambda r: r.nll)
    control = by_name.get("DE-1 + 1 label control")
    if two.nll >= one.nll:
        return (
            f"What you just saw: on this seed a second network brought nothing (NLL {one.nll:.3f} to {two.nll:.3f}), "
            "so there was no gap for bridges to close; try another seed."
        )
    share = closed_gap(one.nll, bridged.nll, two.nll)
    if share <= 0:
        return (
            f"What you just saw: a second network brought NLL from {one.nll:.3f} to {two.nll:.3f}, but on this seed "
            f"one bridge brought nothing ({bridged.nll:.3f}); try another seed, or train curves and bridges longer."
        )
    return (
        f"What you just saw: one small bridge at x{bridged.relative_flops:.2f} the FLOPs of one network went "
        f"{share:.0%} of the way from one network's NLL ({one.nll:.3f}) to two networks' ({two.nll:.3f} at x2.00), and "
        f"{best.name} at x{best.relative_flops:.2f} is worth {best.dee:.1f} networks"
        + (
            f"; the same bridge trained on labels alone, without a curve, went "
            f"{closed_gap(one.nll, control.nll, two.nll):.0%}."
            if control is not None
            else "."
        )
    )
