"""Units as symbols: what becomes of them when axes are made equal, cut, merged and split."""

from __future__ import annotations

import torch

from modebridge.alignment.groups import fixed, free, groups_of, merge, pin, resolve, split, take, unify

WHY = ("something", "somewhere")


def sizes(axis) -> list[tuple[int, int, bool]]:
    return [(units.size, span, units.pinned is not None) for units, span in resolve(axis)]


def test_a_concatenation_cuts_what_reads_it():
    first, second, whole, other = free(3), free(5), free(8), free(8)
    unify(whole, first + second, WHY)
    assert sizes(whole) == [(3, 1, False), (5, 1, False)]
    unify(other, free(4) + free(4), WHY)
    unify(other, whole, WHY)
    assert sizes(whole) == sizes(other) == [(3, 1, False), (1, 1, False), (4, 1, False)]
    assert resolve(take(whole, 3, 8, WHY)) == resolve(second)
    pin(take(whole, 0, 3, WHY), WHY)
    assert sizes(first) == [(3, 1, True)]


def test_a_flattened_map_has_units_that_span_positions():
    channels, reader = free(4), free(36)
    flat = merge([channels, *fixed([3, 3])], WHY)
    unify(flat, reader, WHY)
    assert sizes(reader) == [(4, 9, False)]
    assert resolve(split(flat, [4, 3, 3], WHY)[0]) == resolve(channels)
    groups = groups_of({"reader": (reader,)}, {})
    moved = groups.permuted("reader", torch.arange(36), {0: torch.tensor([1, 0, 2, 3])})
    assert moved.tolist() == [*range(9, 18), *range(9), *range(18, 36)]
    # A cut inside of a unit, or a reshape across units, leaves nothing to permute.
    assert sizes(take(flat, 0, 10, WHY)) == [(10, 1, True)]
    assert sizes(channels) == [(4, 1, True)]


def test_what_meets_a_fixed_order_is_pinned_for_its_reason():
    units, crossed = free(6), free(6)
    unify(units, fixed([6], WHY)[0], ("another", "place"))
    assert groups_of({"weight": (units,)}, {}).stopped == (WHY,)
    split(crossed, [3, 2], WHY)
    unify(crossed, merge([free(2), *fixed([3])], WHY), WHY)
    assert sizes(crossed) == [(3, 2, True)]
