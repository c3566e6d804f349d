"""What results/cifar10-bn publishes; see published.py."""

from __future__ import annotations

from cifar10_bn_plans import OTHERS
from published import Published, Row, Rows

__all__ = ["BN", "LEFT_OUT"]

_MODES = tuple(f"mode-{k}" for k in range(3))
_MIDPOINTS = tuple(f"curve-0-{j}" for j in OTHERS)
_STUDENTS = ("distilled-0", "student-labels")

LEFT_OUT = (
    "I-0-1-medium",
    "II-labels-small",
    "labels-0-1-medium",
    "heads-0-midpoints+labels-small",
    "heads-0-others+labels-small",
    "heads-complement-2",
    "heads-others-built",
    "heads-others-early",
)
"""Members whose logits are left out, to limit the size of the folder."""

CASCADES: dict[str, tuple[Row, float]] = {
    "DE-2 cascade x1.06": (_MODES[:2], 1.0629),
    "DE-2 cascade x1.15": (_MODES[:2], 1.15),
    "DE-2 cascade x1.2": (_MODES[:2], 1.2),
    "DE-3 cascade x1.5": (_MODES, 1.5),
    "student, then DE-2, cascade x1.2": (("distilled-0", *_MODES[:2]), 1.2),
}
"""The cascades of the report, one at the cost of a small bridge, and one at the cost of the one with the student."""

_BRIDGES = (
    *(f"I-0-{j}-small" for j in OTHERS),
    *(f"other-0-{j}-small" for j in OTHERS),
    "I-0-1-medium",
    "I-1-0-small",
    "II-0-1-small",
    "II-labels-small",
    "labels-0-1-small",
    "labels-0-1-medium",
    "mean-3-small",
    "self-0-small",
    "heads-0-midpoints-small",
    "heads-0-others-small",
    "heads-0-midpoints+others-small",
    "heads-0-midpoints+labels-small",
    "heads-0-others+labels-small",
    "heads-0-others-medium",
    "heads-complement-1",
    "heads-complement-2",
    "heads-share-1",
    "heads-others-built",
    "heads-others-early",
    "heads-others-taps",
)


def _beside(name: str) -> Row:
    """A small network with the modes that it reads: one for type I, two for type II."""
    return (*(_MODES[:2] if name.startswith("II") else _MODES[1:2] if name.startswith("I-1") else _MODES[:1]), name)


def _rows() -> list[Row]:
    """The rows in the log of the hold, except small networks alone whose logits are not kept."""
    rows: list[Row] = [_MODES[:count] for count in (1, 2, 3)] + [(name,) for name in _MODES[1:]]
    rows += [(name,) for name in _MIDPOINTS] + [("mode-0", name) for name in _MIDPOINTS] + [("mode-0", *_MIDPOINTS)]
    rows += [(name,) for name in _BRIDGES if name not in LEFT_OUT] + [_beside(name) for name in _BRIDGES]
    rows += [_two("I"), _two("other"), ("mode-0", "I-0-1-small", "other-0-2-small")]
    rows += [("mode-0", "I-0-1-small", "labels-0-1-small"), ("mode-0", "mode-1", "I-0-2-small")]
    for count in (0, 1, 2, 3):
        rows += [(*_MODES[:count], name) for name in _STUDENTS]
    return [*rows, *((title,) for title in CASCADES)]


def _two(kind: str) -> Row:
    return ("mode-0", *(f"{kind}-0-{j}-small" for j in OTHERS))


_ONE, _TWO = [_MODES[:1]], [_MODES[:2]]
_CURVE, _OTHER = ([_beside(f"{kind}-0-{j}-small") for j in OTHERS] for kind in ("I", "other"))


def _pair(ours: str, theirs: str) -> tuple[Rows, Rows]:
    return [_beside(ours)], [_beside(theirs)]


PAIRS: dict[str, tuple[Rows, Rows]] = {
    "1 type I bridge against DE-1, mean over 2": (_CURVE, _ONE),
    "1 bridge on the other mode against DE-1, mean over 2": (_OTHER, _ONE),
    "1 type I bridge against the midpoint itself, mean over 2": (_CURVE, [("mode-0", name) for name in _MIDPOINTS]),
    "curve against other mode, mean over 2": (_CURVE, _OTHER),
    "curve against other mode, 2 bridges": ([_two("I")], [_two("other")]),
    "curve against other mode, 2 heads": _pair("heads-0-midpoints-small", "heads-0-others-small"),
    "curve against mean of all 3 modes, mean over 2": (_CURVE, [_beside("mean-3-small")]),
    "curve against own mode, mean over 2": (_CURVE, [_beside("self-0-small")]),
    "curve against labels, mean over 2": (_CURVE, [_beside("labels-0-1-small")]),
    "other mode against mean of all 3 modes, mean over 2": (_OTHER, [_beside("mean-3-small")]),
    "other mode against own mode, mean over 2": (_OTHER, [_beside("self-0-small")]),
    "own mode against DE-1": ([_beside("self-0-small")], _ONE),
    "labels against DE-1": ([_beside("labels-0-1-small")], _ONE),
    "share .25 of labels against curve alone": _pair("heads-share-1", "I-0-1-small"),
    "medium against small, curve": _pair("I-0-1-medium", "I-0-1-small"),
    "medium against small, labels": _pair("labels-0-1-medium", "labels-0-1-small"),
    "medium against small, 2 heads on other modes": _pair("heads-0-others-medium", "heads-0-others-small"),
    "2 type I bridges against 1, mean over 2": ([_two("I")], _CURVE),
    "2 bridges on other modes against 1, mean over 2": ([_two("other")], _OTHER),
    "2 heads on midpoints against 1 type I bridge, mean over 2": ([_beside("heads-0-midpoints-small")], _CURVE),
    "2 heads on midpoints against 2 type I bridges": ([_beside("heads-0-midpoints-small")], [_two("I")]),
    "2 heads on other modes against 1 bridge on one, mean over 2": ([_beside("heads-0-others-small")], _OTHER),
    "2 heads on other modes against 2 bridges on them": ([_beside("heads-0-others-small")], [_two("other")]),
    "2 heads on other modes against 1 type I bridge, mean over 2": ([_beside("heads-0-others-small")], _CURVE),
    "4 heads on both against 1 type I bridge, mean over 2": ([_beside("heads-0-midpoints+others-small")], _CURVE),
    "4 heads on both against 2 on other modes": _pair("heads-0-midpoints+others-small", "heads-0-others-small"),
    "a head on labels more: midpoints": _pair("heads-0-midpoints+labels-small", "heads-0-midpoints-small"),
    "a head on labels more: other modes": _pair("heads-0-others+labels-small", "heads-0-others-small"),
    "complement against mean of all 3 modes": _pair("heads-complement-1", "mean-3-small"),
    "complement against other mode, mean over 2": ([_beside("heads-complement-1")], _OTHER),
    "complement, 2 heads against 1": _pair("heads-complement-2", "heads-complement-1"),
    "trunk built to a budget against slimmed blocks": _pair("heads-others-built", "heads-0-others-small"),
    "early tap against late tap": _pair("heads-others-early", "heads-others-built"),
    "both taps against late tap": _pair("heads-others-taps", "heads-others-built"),
    "early tap against 1 type I bridge, mean over 2": ([_beside("heads-others-early")], _CURVE),
    "2 medium heads on other modes against DE-2": ([_beside("heads-0-others-medium")], _TWO),
    "DE-2 + type II against DE-2": ([_beside("II-0-1-small")], _TWO),
    "DE-2 + type II: curve against labels": _pair("II-0-1-small", "II-labels-small"),
    "DE-2 + type II on labels against DE-2": ([_beside("II-labels-small")], _TWO),
    "DE-2 + type I of the third mode against DE-2": ([("mode-0", "mode-1", "I-0-2-small")], _TWO),
    "type I on mode 1 against mode 1": ([_beside("I-1-0-small")], [("mode-1",)]),
    "student of DE-3 against DE-1": ([("distilled-0",)], _ONE),
    "student of DE-3 against DE-1, mean over 3 modes": ([("distilled-0",)], [(mode,) for mode in _MODES]),
    "student of DE-3 against 1 bridge on the other mode, mean over 2": ([("distilled-0",)], _OTHER),
    "student of DE-3 against 2 heads on other modes": ([("distilled-0",)], [_beside("heads-0-others-small")]),
    "student of DE-3 against labels with its mixup": ([("distilled-0",)], [("student-labels",)]),
    "labels with mixup against DE-1, mean over 3 modes": ([("student-labels",)], [(mode,) for mode in _MODES]),
    "mode 0 + student of DE-3 against DE-2": ([("mode-0", "distilled-0")], _TWO),
    "mode 0 + labels with mixup against DE-2": ([("mode-0", "student-labels")], _TWO),
    "DE-2 + labels with mixup against DE-3": ([(*_MODES[:2], "student-labels")], [_MODES]),
    "DE-2 cascade x1.06 against 1 bridge on the other mode, mean over 2": ([("DE-2 cascade x1.06",)], _OTHER),
    "DE-2 cascade x1.06 against 4 heads on both": (
        [("DE-2 cascade x1.06",)],
        [_beside("heads-0-midpoints+others-small")],
    ),
    "DE-2 cascade x1.15 against 2 bridges on other modes": ([("DE-2 cascade x1.15",)], [_two("other")]),
    "DE-2 cascade x1.2 against 2 medium heads on other modes": (
        [("DE-2 cascade x1.2",)],
        [_beside("heads-0-others-medium")],
    ),
    "DE-2 cascade x1.15 against DE-2": ([("DE-2 cascade x1.15",)], _TWO),
    "DE-3 cascade x1.5 against DE-2": ([("DE-3 cascade x1.5",)], _TWO),
    "cascade x1.2: student first against mode 0 first": (
        [("student, then DE-2, cascade x1.2",)],
        [("DE-2 cascade x1.2",)],
    ),
}

TARGETS: dict[Row, Rows] = {
    **{(f"I-0-{j}-small",): [(f"curve-0-{j}",)] for j in OTHERS},
    ("I-0-1-medium",): [("curve-0-1",)],
    ("I-1-0-small",): [("curve-0-1",)],
    ("II-0-1-small",): [("curve-0-1",)],
    ("heads-share-1",): [("curve-0-1",)],
    ("heads-0-midpoints-small",): [(name,) for name in _MIDPOINTS],
    **{(f"other-0-{j}-small",): [(f"mode-{j}",)] for j in OTHERS},
    ("heads-0-others-small",): [(name,) for name in _MODES[1:]],
    ("heads-0-others-medium",): [(name,) for name in _MODES[1:]],
    ("heads-others-taps",): [(name,) for name in _MODES[1:]],
    ("heads-0-midpoints+others-small",): [(name,) for name in (*_MIDPOINTS, *_MODES[1:])],
    ("mean-3-small",): [_MODES],
    ("mode-0", "heads-complement-1"): [_MODES],
    ("self-0-small",): [("mode-0",)],
}
"""A complement, averaged with mode 0, should predict the mean of all three modes."""

BN = Published(
    modes=3,
    rows=_rows(),
    targets=TARGETS,
    pairs=PAIRS,
    cascades=CASCADES,
    recorded=[_beside(name) for name in LEFT_OUT],
)
