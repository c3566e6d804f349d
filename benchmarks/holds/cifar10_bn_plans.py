"""The bridges and controls of hold 4, and the rows of its table; cifar10_bn.py trains them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common import bridges_in
from torch import Tensor

from modebridge import Mode, plan_bridge
from modebridge.bridges import complement_target, curve_target, ensemble_target, label_target, mode_target, with_labels
from modebridge.curves import BezierCurve
from modebridge.nets import ResNet
from modebridge.scoring import LogitTable
from modebridge.training import BridgePlan

__all__ = ["IN_RECIPES", "OTHERS", "combinations", "plans_of"]

OTHERS = (1, 2)
"""The ends of the curves that start at mode 0."""

IN_RECIPES = {
    "heads-midpoints": "heads-0-midpoints-small",
    "heads-others": "heads-0-others-small",
    "heads-both": "heads-0-midpoints+others-small",
    "heads-midpoints-labels": "heads-0-midpoints+labels-small",
    "heads-others-labels": "heads-0-others+labels-small",
    "heads-others-medium": "heads-0-others-medium",
}
"""Heads that a recipe can have too, with heads_design=plain, heads_mixup=0.4, heads_cutmix=0, and their names there."""


def plans_of(net: ResNet, curves: Mapping[int, BezierCurve], images: Tensor) -> dict[str, BridgePlan]:
    """Every bridge and control, by name; `wanted` has its curve, and how it differs from a small type I bridge."""
    first = curves[1]
    modes = [first.start, *(curves[j].end for j in OTHERS)]
    wanted: dict[str, tuple[int, dict[str, object]]] = {
        **{f"I-0-{j}-small": (j, {}) for j in OTHERS},
        **{f"other-0-{j}-small": (j, {"target": mode_target(curves[j].end)}) for j in OTHERS},
        "I-0-1-medium": (1, {"slim": 1}),
        "I-1-0-small": (1, {"source": "end"}),
        "II-0-1-small": (1, {"kind": "II"}),
        "II-labels-small": (1, {"kind": "II", "target": "labels"}),
        "labels-0-small": (1, {"target": "labels"}),
        "labels-0-medium": (1, {"target": "labels", "slim": 1}),
        "mean-3-small": (1, {"target": ensemble_target(modes)}),
        "self-0-small": (1, {"target": mode_target(first.start)}),
    }
    wanted |= {name: (1, choice) for name, choice in _beyond(net, curves, modes, images).items()}
    return {
        name: plan_bridge(net, curves[j], images, name=name, seed=100 + k, **choice)  # type: ignore[arg-type]
        for k, (name, (j, choice)) in enumerate(wanted.items())
    }


def _beyond(
    net: ResNet, curves: Mapping[int, BezierCurve], modes: Sequence[Mode], images: Tensor
) -> dict[str, dict[str, object]]:
    """Variants that the paper does not have: several heads per trunk, other taps, other targets; all on mode 0."""
    midpoints, others = [curve_target(curves[j]) for j in OTHERS], [mode_target(curves[j].end) for j in OTHERS]
    small = plan_bridge(net, curves[1], images).bridge
    # The second to last block of the second stage: layers.0 is the stem.
    early = [f"layers.{sum(net.spec.stages[:2]) - 1}"]
    same = {"target": others, "budget": 1.02 * (small.share or 0)}  # includes the last layers of the heads
    return {
        "heads-midpoints": {"target": midpoints},
        "heads-others": {"target": others},
        "heads-both": {"target": [*midpoints, *others]},
        "heads-midpoints-labels": {"target": [*midpoints, label_target()]},
        "heads-others-labels": {"target": [*others, label_target()]},
        "heads-others-medium": {"target": others, "slim": 1},
        "heads-complement-1": {"target": complement_target(ensemble_target(modes))},
        "heads-complement-2": {"target": complement_target(ensemble_target(modes), heads=2)},
        "heads-share-1": {"target": with_labels(midpoints[0], 0.25)},
        "heads-others-built": same,
        "heads-others-early": {**same, "tap": early},
        "heads-others-taps": {**same, "tap": [*early, *small.taps]},
    }


def combinations(answers: LogitTable) -> list[tuple[str, ...]]:
    """The rows of the table whose members exist."""
    modes, reads = tuple(f"mode-{k}" for k in range(3)), {name: cost.reads for name, cost in answers.costs.items()}
    midpoints = tuple(f"curve-0-{j}" for j in OTHERS)
    students = [name for name in reads if name.startswith("student")]
    bridges = bridges_in(answers)
    rows: list[tuple[str, ...]] = [modes[:count] for count in (1, 2, 3)] + [(name,) for name in modes[1:]]
    rows += [(name,) for name in midpoints] + [("mode-0", name) for name in midpoints] + [("mode-0", *midpoints)]
    rows += [(name,) for name in bridges]
    # A bridge is combined with the networks that it reads: type I with one, type II with two.
    rows += [(*reads[name], name) for name in bridges]
    for rest in (
        *[tuple(f"{kind}-0-{j}-small" for j in OTHERS) for kind in ("I", "other")],
        ("I-0-1-small", "other-0-2-small"),
        ("I-0-1-small", "labels-0-small"),
        ("mode-1", "labels-0-medium"),
        ("mode-1", "I-0-2-small"),
    ):
        rows.append(("mode-0", *rest))
    rows += [(name,) for name in students] + [("mode-0", name) for name in students]
    rows += [(*modes[:2], name) for name in students] + [(*modes, name) for name in students]
    return [row for row in rows if all(name in answers.test for name in row)]
