"""What results/tin200-heads publishes; see published.py."""

from __future__ import annotations

from published import Published, Row, Rows

__all__ = ["TIN200"]

_MODES = tuple(f"mode-{k}" for k in range(3))
_ENSEMBLES: list[Row] = [_MODES[:count] for count in (1, 2, 3)]
_OTHERS = ("other-0-1-small", "other-0-2-small")
_LABELS, _SELF = "labels-0-1-small", "self-0-small"
_MIXUP, _CUTMIX, _DEFAULT = "heads-others", "heads-others-cutmix", "heads-others-default-cutmix"
_WITH_LABELS, _WIDER = "heads-others-labels-default-cutmix", "heads-others-labels-x3-cutmix"
_BRIDGES = (*_OTHERS, _SELF, _LABELS, _MIXUP, _CUTMIX, _DEFAULT, _WITH_LABELS, _WIDER)

_ROWS: list[Row] = [
    *_ENSEMBLES,
    *((name,) for name in (*_MODES[1:], *_BRIDGES)),
    *(("mode-0", name) for name in _BRIDGES),
    ("mode-0", *_OTHERS),
    ("mode-0", _OTHERS[0], _LABELS),
    ("mode-0", _MIXUP, _LABELS),
    (*_MODES[:2], _LABELS),
    (*_MODES, _LABELS),
]


def _pair(ours: str, theirs: str) -> tuple[Rows, Rows]:
    return [("mode-0", ours)], [("mode-0", theirs)]


TIN200 = Published(
    modes=3,
    rows=_ROWS,
    recorded=_ROWS,
    targets={
        **{(name,): [(mode,)] for name, mode in zip(_OTHERS, _MODES[1:], strict=True)},
        (_SELF,): [("mode-0",)],
        **{(name,): [(mode,) for mode in _MODES[1:]] for name in (_MIXUP, _CUTMIX, _DEFAULT)},
    },
    pairs={
        "2 heads against 1 bridge on the other mode, mean over 2": (
            [("mode-0", _MIXUP)],
            [("mode-0", name) for name in _OTHERS],
        ),
        "2 heads against 2 bridges on the other modes": ([("mode-0", _MIXUP)], [("mode-0", *_OTHERS)]),
        "CutMix against mixup: 2 heads, plain blocks": _pair(_CUTMIX, _MIXUP),
        "one wide block against plain ones: 2 heads, CutMix": _pair(_DEFAULT, _CUTMIX),
        "the default against 2 heads, plain blocks, mixup": _pair(_DEFAULT, _MIXUP),
        "the default against DE-1": ([("mode-0", _DEFAULT)], [("mode-0",)]),
        "a head on labels too: one wide block, CutMix": _pair(_WITH_LABELS, _DEFAULT),
        "three times the FLOPs: heads on others and labels": _pair(_WIDER, _WITH_LABELS),
        "labels against the other mode": _pair(_LABELS, _OTHERS[0]),
        "labels against 2 heads, plain blocks, mixup": _pair(_LABELS, _MIXUP),
        "labels against heads on others and labels, CutMix": _pair(_LABELS, _WITH_LABELS),
        "labels against DE-2": ([("mode-0", _LABELS)], [_MODES[:2]]),
        "labels + 2 heads on the other modes against DE-3": ([("mode-0", _MIXUP, _LABELS)], [_MODES]),
        "own mode against DE-1": ([("mode-0", _SELF)], [("mode-0",)]),
        "other mode against own mode": _pair(_OTHERS[0], _SELF),
        "DE-2 + labels against DE-3": ([(*_MODES[:2], _LABELS)], [_MODES]),
    },
)
