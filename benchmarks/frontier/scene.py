"""The networks that variants share, and the targets that bridges can have there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from modebridge import Mode
from modebridge.bridges import (
    Target,
    complement_target,
    curve_target,
    ensemble_target,
    heads_target,
    label_target,
    mode_target,
    with_labels,
)
from modebridge.curves import Curve
from modebridge.nets import ResNet

__all__ = ["Scene", "aim"]


@dataclass(frozen=True)
class Scene:
    """The networks that all variants share.

    Args:
        net: the architecture.
        modes: four modes; bridges read the first.
        curves: curves from mode 0 to mode j, by j; without them, variants that need one are skipped.
        images: two images, to infer shapes.
        slims: divisors of the widths for "small" and "medium".
        seed: seed of the weights of bridges.
    """

    net: ResNet
    modes: Sequence[Mode]
    curves: Mapping[int, Curve]
    images: torch.Tensor
    slims: Mapping[str, float] = field(default_factory=lambda: {"small": 2.0, "medium": 1.0})
    seed: int = 0

    def taps(self) -> dict[str, tuple[str, ...]]:
        """The taps by place: "earlier" is the end of the stage before the paper's tap, "later" two blocks after it."""
        paper = int(str(self.net.paper_tap).removeprefix("layers."))
        ends = [sum(self.net.spec.stages[: k + 1]) for k in range(len(self.net.spec.stages))]
        earlier, later = f"layers.{max([end for end in ends if end < paper], default=0)}", f"layers.{paper + 2}"
        return {"paper": (f"layers.{paper}",), "earlier": (earlier,), "later": (later,), "both": (earlier, later)}


def aim(name: str, scene: Scene) -> Target:
    """A target by name; targets of several heads have one part per head."""
    first, others, curves = scene.modes[0], [mode_target(mode) for mode in scene.modes[1:]], scene.curves
    kind, _, number = name.rpartition(" ")
    if kind == "midpoint" and number in ("1", "2", "3"):
        return curve_target(curves[int(number)])
    if kind == "mode":
        return others[int(number) - 1]
    if kind == "complement":
        return complement_target(ensemble_target(scene.modes), heads=int(number))
    if name.endswith("% labels"):
        what, share = name.removesuffix(" % labels").split(" + ")
        if what == "midpoint":
            return with_labels(curve_target(curves[1]), int(share) / 100)
        return heads_target([with_labels(target, int(share) / 100) for target in others])
    midpoints = [curve_target(curve) for curve in curves.values()]
    lists = {"midpoints": midpoints, "others": others, "labels": [label_target()]}
    lists |= {"labels x3": [label_target()] * 3, "midpoint x3": midpoints[:1] * 3, "self": [mode_target(first)]}
    lists |= {"mean of DE-4": [ensemble_target(scene.modes)]}
    heads = lists[name] if name in lists else [target for half in name.split(" + ") for target in lists[half]]
    return heads_target(heads)
