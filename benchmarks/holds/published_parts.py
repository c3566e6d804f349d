"""What results/cifar10-parts publishes: which part of the default helps on CIFAR-10; see published.py.

All six bridges had 118 epochs on the same modes, in two passes: mixup 0.4 and CutMix 1.0.
"""

from __future__ import annotations

import heads_frn
from published import Published, Row, Rows

__all__ = ["PARTS"]

_MODES = tuple(f"mode-{k}" for k in range(4))
_ENSEMBLES: list[Row] = [_MODES[:count] for count in (1, 2, 3, 4)]
_WIDE, _PLAIN = heads_frn.HEADS
_ONE, _PLAIN_MIXUP, _WIDE_MIXUP, _LABELS = heads_frn.PARTS
_BRIDGES = (*heads_frn.PARTS, _PLAIN, _WIDE)


def _pair(ours: str, theirs: str) -> tuple[Rows, Rows]:
    return [("mode-0", ours)], [("mode-0", theirs)]


PARTS = Published(
    modes=4,
    rows=[*_ENSEMBLES, *((name,) for name in _BRIDGES), *(("mode-0", name) for name in _BRIDGES)],
    recorded=[*_ENSEMBLES, *((name,) for name in _BRIDGES), *(("mode-0", name) for name in _BRIDGES)],
    targets={
        (_ONE,): [("mode-1",)],
        **{(name,): [(mode,) for mode in _MODES[1:]] for name in _BRIDGES[1:] if name != _LABELS},
    },
    pairs={
        "3 heads against 1: plain blocks, mixup": _pair(_PLAIN_MIXUP, _ONE),
        "one wide block against plain ones: 3 heads, mixup": _pair(_WIDE_MIXUP, _PLAIN_MIXUP),
        "one wide block against plain ones: 3 heads, CutMix": _pair(_WIDE, _PLAIN),
        "CutMix against mixup: 3 heads, plain blocks": _pair(_PLAIN, _PLAIN_MIXUP),
        "CutMix against mixup: 3 heads, one wide block": _pair(_WIDE, _WIDE_MIXUP),
        "all three: the default against 1 head, plain blocks, mixup": _pair(_WIDE, _ONE),
        "a head on labels too, plain blocks, mixup": _pair(_LABELS, _PLAIN_MIXUP),
        "3 heads, one wide block, mixup against DE-2": ([("mode-0", _WIDE_MIXUP)], [_MODES[:2]]),
        "the default against DE-2": ([("mode-0", _WIDE)], [_MODES[:2]]),
    },
)
