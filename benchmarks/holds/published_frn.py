"""What results/cifar10-frn publishes; see published.py."""

from __future__ import annotations

from cifar10_bridges import OTHERS, combinations
from heads_frn import HEADS
from published import Published, Row, Rows

from members import kept_name

__all__ = ["FRN", "LEFT_OUT"]

LEFT_OUT = ("mean-4-medium", "II-labels-small")
"""Members whose logits are left out since the heads were added, to limit the size of the folder."""

_MODES = tuple(f"mode-{k}" for k in range(4))
_CURVE, _OTHER = ([("mode-0", f"{kind}-0-{j}-small") for j in OTHERS] for kind in ("I", "other"))
_THREE_CURVES, _THREE_OTHERS = (("mode-0", *(f"{kind}-0-{j}-small" for j in OTHERS)) for kind in ("I", "other"))

PAIRS: dict[str, tuple[Rows, Rows]] = {
    "1 type I bridge against DE-1": (_CURVE[:1], [("mode-0",)]),
    "1 type I bridge against the midpoint itself": (_CURVE[:1], [("mode-0", "curve-0-1")]),
    "curve against other mode, mean over 3": (_CURVE, _OTHER),
    "curve against other mode, 3 bridges": ([_THREE_CURVES], [_THREE_OTHERS]),
    "curve against other mode, medium": ([("mode-0", "I-0-1-medium")], [("mode-0", "other-0-1-medium")]),
    "curve against mean of both modes": (_CURVE[:1], [("mode-0", "mean-0-1-small")]),
    "curve against mean of all 4 modes": (_CURVE[:1], [("mode-0", "mean-4-small")]),
    "curve against own mode": (_CURVE[:1], [("mode-0", "self-0-small")]),
    "own mode against DE-1": ([("mode-0", "self-0-small")], [("mode-0",)]),
    "curve against labels": (_CURVE[:1], [("mode-0", "labels-0-1-small")]),
    "labels against DE-1, mean over 2": (
        [("mode-0", "labels-0-1-small"), ("mode-0", "labels-0-1-small-b")],
        [("mode-0",)],
    ),
    "medium against small, curve": ([("mode-0", "I-0-1-medium")], _CURVE[:1]),
    "medium against small, other mode": ([("mode-0", "other-0-1-medium")], _OTHER[:1]),
    "2 type I bridges against 1": ([_THREE_CURVES[:3]], _CURVE[:1]),
    "3 type I bridges against 2": ([_THREE_CURVES], [_THREE_CURVES[:3]]),
    "3 type I bridges against DE-2": ([_THREE_CURVES], [_MODES[:2]]),
    "DE-2 + type II against DE-2": ([(*_MODES[:2], "II-0-1-small")], [_MODES[:2]]),
    "DE-2 + type II: curve against labels": ([(*_MODES[:2], "II-0-1-small")], [(*_MODES[:2], "II-labels-small")]),
    "type I on mode 1 against mode 1": ([("mode-1", "I-1-0-small")], [("mode-1",)]),
    "student of DE-4 against DE-1": ([("distilled-0",)], [("mode-0",)]),
    "student of DE-4 against DE-1, mean over 4 modes": ([("distilled-0",)], [(mode,) for mode in _MODES]),
    "student of DE-4 against 1 type I bridge": ([("distilled-0",)], _CURVE[:1]),
    "student of DE-4 against labels with its mixup": ([("distilled-0",)], [("student-labels",)]),
    "labels with mixup against DE-1, mean over 4 modes": ([("student-labels",)], [(mode,) for mode in _MODES]),
    "student of DE-4: mixup 1.0 against 0.4 (162 epochs)": ([("distilled-0",)], [("student-4-mixup-0.4",)]),
    "mode 0 + student of DE-4 against DE-2": ([("mode-0", "distilled-0")], [_MODES[:2]]),
}


_DESIGNS = dict(zip(("shallow", "budget"), HEADS, strict=True))


AGAINST: dict[str, Rows] = {
    "DE-1": [("mode-0",)],
    "1 type I bridge": _CURVE[:1],
    "1 type I bridge, mean over 3": _CURVE,
    "1 bridge on the other mode, mean over 3": _OTHER,
    "3 type I bridges": [_THREE_CURVES],
    "3 bridges on other modes": [_THREE_OTHERS],
    "student of DE-4": [("distilled-0",)],
    "DE-2": [_MODES[:2]],
    "DE-3": [_MODES[:3]],
}
"""What heads are compared with."""

for _design, _name in _DESIGNS.items():
    PAIRS |= {f"3 heads, {_design}, against {title}": ([("mode-0", _name)], rows) for title, rows in AGAINST.items()}
    PAIRS |= {
        f"mode 0 + student + 3 heads, {_design}, against {title}": ([("mode-0", "distilled-0", _name)], [row])
        for title, row in {"mode 0 + student": ("mode-0", "distilled-0"), "DE-3": _MODES[:3]}.items()
    }
PAIRS["3 heads: shallow against budget"] = [("mode-0", _DESIGNS["shallow"])], [("mode-0", _DESIGNS["budget"])]

TARGETS: dict[str, tuple[str, ...]] = {
    **{f"I-0-{j}-small": (f"curve-0-{j}",) for j in OTHERS},
    "I-1-0-small": ("curve-0-1",),
    "I-0-1-medium": ("curve-0-1",),
    "II-0-1-small": ("curve-0-1",),
    **{f"other-0-{j}-small": (f"mode-{j}",) for j in OTHERS},
    "other-0-1-medium": ("mode-1",),
    "mean-0-1-small": _MODES[:2],
    "mean-4-small": _MODES,
    "mean-4-medium": _MODES,
    "self-0-small": ("mode-0",),
}


def _rows() -> list[Row]:
    """The rows in the log of the hold, except small networks alone whose logits are not kept, and the heads."""
    bridges = ["labels-0-small", "labels-0-small-b", "labels-0-medium", "II-labels-small", *TARGETS]
    rows = [tuple(kept_name(name) for name in row) for row in combinations(bridges)]
    students = ("distilled-0", "student-4-mixup-0.4", "student-labels")
    rows += [(name,) for name in students] + [("mode-0", name) for name in students]
    # The two best small bridges on validation images, before there were heads.
    rows += [("mode-0", "other-0-1-small", "I-0-3-small")]
    rows += [(name,) for name in HEADS] + [("mode-0", name) for name in HEADS]
    rows += [("mode-0", "distilled-0", name) for name in HEADS]
    return [row for row in rows if row not in [(name,) for name in LEFT_OUT]]


FRN = Published(
    modes=4,
    rows=_rows(),
    targets={
        **{(name,): [target] for name, target in TARGETS.items()},
        **{(name,): [(mode,) for mode in _MODES[1:]] for name in HEADS},
    },
    pairs=PAIRS,
    recorded=[("mode-0", "mean-4-medium"), ("mode-0", "mode-1", "II-labels-small")],
)
