"""The variants: the bridges that each adds to mode 0, and how each bridge is planned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frontier.scene import Scene, aim
from modebridge import fit_bridges, plan_bridge, seeds
from modebridge.bridges import ResidualBody
from modebridge.errors import ModebridgeError, near
from modebridge.training import BridgePlan

__all__ = [
    "BASELINE",
    "CANDIDATES",
    "SHIFTED",
    "VARIANTS",
    "Part",
    "Regime",
    "Variant",
    "choose",
    "parts_of",
    "plan_part",
]

BASELINE = "paper small"
"""The variant to compare all others with."""

STEPS = 16
"""Number of steps of the default widths when fitting a body to a budget."""
ENOUGH = 0.8
"""Share of the budget that the body of `budget=` must use; otherwise one is fitted."""


@dataclass(frozen=True)
class Regime:
    """How bridges are trained; all bridges of one regime are trained in one pass.

    Args:
        mixup: alpha of mixup.
        cutmix: alpha of CutMix.
        longer: factor of the recipe's epochs.
        faster: factor of the recipe's learning rate; the losses of heads add up, so their trunk has a higher rate.
        shift: pixels by which images are shifted further than in the recipe, at random in both directions.
    """

    mixup: float = 0.4
    cutmix: float = 0.0
    longer: int = 1
    faster: float = 1.0
    shift: int = 0

    def __str__(self) -> str:
        longer = "" if self.longer == 1 else f", epochs x{self.longer}"
        cutmix = f", cutmix {self.cutmix:g}" if self.cutmix else ""
        faster = "" if self.faster == 1 else f", lr x{self.faster:g}"
        shift = f", shift {self.shift}" if self.shift else ""
        return f"mixup {self.mixup:g}{cutmix}{longer}{faster}{shift}"


USUAL = Regime()
STRONG_MIXUP, CUTMIX, LONG = Regime(mixup=1.0), Regime(mixup=0.0, cutmix=1.0), Regime(longer=2)
STRONGEST = Regime(mixup=1.0, cutmix=1.0, longer=2)


@dataclass(frozen=True)
class Part:
    """One bridge of a variant.

    Args:
        aim: what it learns, see `aim`.
        size: "small" or "medium", as in the recipe.
        place: where it reads: the "paper" tap, "earlier", "later", or "both" of the last two.
        design: design of its blocks: "" for the paper's; "budget" for the plain body that `budget=` builds at the FLOPs
            of the paper's body with as many heads; "default" for what it builds there for modes without a target, and
            for other aims the same kind of body (`design="auto"`); another design or place is as wide as those FLOPs
            allow.
        regime: how it is trained.
    """

    aim: str
    size: str = "small"
    place: str = "paper"
    design: str = ""
    regime: Regime = USUAL

    def __str__(self) -> str:
        return "; ".join(part for part in (self.aim, self.size, self.place, self.design, str(self.regime)) if part)


@dataclass(frozen=True)
class Variant:
    """Bridges added to mode 0.

    Args:
        parts: the bridges.
        weighted: weight members by weights fitted on validation, instead of equally.
    """

    parts: tuple[Part, ...]
    weighted: bool = False

    def on(self, regime: Regime) -> Variant:
        """The same bridges in another regime."""
        return replace(self, parts=tuple(replace(part, regime=regime) for part in self.parts))


def _one(aim: str, **choices: Any) -> Variant:
    return Variant((Part(aim, **choices),))


BY_TARGET = {
    BASELINE: _one("midpoint 1"),
    "paper medium": _one("midpoint 1", size="medium"),
    "3 paper bridges": Variant(tuple(Part(f"midpoint {j}") for j in (1, 2, 3))),
    "3 small bridges on the others": Variant(tuple(Part(f"mode {j}") for j in (1, 2, 3))),
    "1 head: other mode": _one("mode 1"),
    "3 heads: midpoints": _one("midpoints"),
    "3 heads: others": _one("others"),
    "4 heads: midpoints + labels": _one("midpoints + labels"),
    "4 heads: others + labels": _one("others + labels"),
    "6 heads: midpoints + others": _one("midpoints + others"),
    "1 head: mean of DE-4": _one("mean of DE-4"),
    "complement of DE-4 (1 head)": _one("complement 1"),
    "complement of DE-4 (3 heads)": _one("complement 3"),
    "midpoint + 25 % labels": _one("midpoint + 25 % labels"),
    "midpoint + 50 % labels": _one("midpoint + 50 % labels"),
    "3 heads: others + 25 % labels each": _one("others + 25 % labels"),
    "3 heads: others + 50 % labels each": _one("others + 50 % labels"),
    "3 heads: others (medium)": _one("others", size="medium"),
    "4 heads: others + labels (medium)": _one("others + labels", size="medium"),
    "control: labels": _one("labels"),
    "control: 3 heads on labels": _one("labels x3"),
    "control: self": _one("self"),
    "control: 3 heads on one midpoint": _one("midpoint x3"),
}
TAPS = {"earlier tap": "earlier", "later tap": "later", "both taps": "both"}
BY_PLACE = {f"3 heads: others ({title})": _one("others", place=place) for title, place in TAPS.items()}
DESIGNS = ("budget", "bottleneck", "depthwise", "low-rank", "shallow")
BY_DESIGN = {f"3 heads: others ({design})": _one("others", design=design) for design in DESIGNS}
BUDGET, SHALLOW = "3 heads: others (budget)", "3 heads: others (shallow)"
WEIGHTED = {
    f"{name} (fitted weights)": replace(BY_TARGET[name], weighted=True)
    for name in (BASELINE, "3 heads: others", "4 heads: others + labels")
}
FAST, SLOW = Regime(faster=3.0), Regime(faster=1 / 3)
REGIMES = {"mixup 1": STRONG_MIXUP, "cutmix 1": CUTMIX, "epochs x2": LONG, "mixup 1 + cutmix 1 + epochs x2": STRONGEST}
BY_REGIME = {
    f"{name} ({title})": BY_TARGET[name].on(regime)
    for title, regime in REGIMES.items()
    for name in (BASELINE, "3 heads: midpoints", "3 heads: others", "4 heads: others + labels")
}
BY_RATE = {
    f"{name} (lr x3)": BY_TARGET[name].on(FAST)
    for name in (BASELINE, "3 paper bridges", "1 head: other mode", "3 heads: others", "4 heads: others + labels")
}
BY_RATE |= {f"{name} (lr / 3)": BY_TARGET[name].on(SLOW) for name in ("3 heads: midpoints", "3 heads: others")}
DEFAULT = {"the default": _one("others", design="default", regime=CUTMIX)}
"""What `fit_bridge(net, modes, budget=)` does on networks that fit their training data."""
DEFAULT |= {"the default (epochs x2)": DEFAULT["the default"].on(replace(CUTMIX, longer=2))}
SHIFTS = {
    f"{name} (shift {shift})": variant.on(replace(variant.parts[0].regime, shift=shift))
    for name, variant in (("the default", DEFAULT["the default"]), (BASELINE, BY_TARGET[BASELINE]))
    for shift in (1, 2)
}
TOGETHER = {f"{name[:-1]} + cutmix 1)": BY_DESIGN[name].on(CUTMIX) for name in (BUDGET, SHALLOW)}
VARIANTS: dict[str, Variant] = {
    **BY_TARGET,
    **BY_PLACE,
    **BY_DESIGN,
    **WEIGHTED,
    **BY_REGIME,
    **BY_RATE,
    **TOGETHER,
    **DEFAULT,
    **SHIFTS,
}
CANDIDATES = (
    *(BASELINE, f"{BASELINE} (cutmix 1)", "3 paper bridges", "control: labels", "3 heads: others"),
    *(SHALLOW, BUDGET, "3 heads: others (cutmix 1)", *TOGETHER, "4 heads: others + labels (cutmix 1)"),
)
"""The candidates for a default and what they are compared with: written down before seeds 40 to 47 were trained, which
none of the choices above has seen."""
SHIFTED = (BASELINE, "the default", *SHIFTS)
"""Images shifted further: written down before seeds 80 to 87 were trained."""


def choose(names: Sequence[str], scene: Scene) -> dict[str, Variant]:
    """The named variants (all if no names are given) that are possible with the scene and the library."""
    for name in names:
        if name not in VARIANTS:
            raise ModebridgeError(f"Expected the name of a variant, but got '{name}'; {near(name, VARIANTS)}")
    return {
        name: variant
        for name, variant in VARIANTS.items()
        if (not names or name in names) and all(_possible(part, scene) for part in variant.parts)
    }


def _possible(part: Part, scene: Scene) -> bool:
    needed = {"cutmix": fit_bridges} if part.regime.cutmix else {}
    needed |= {"design": plan_bridge} if part.design not in ("", "budget", "default") else {}
    known = all(option in inspect.signature(function).parameters for option, function in needed.items())
    return known and (bool(scene.curves) or "midpoint" not in part.aim)


def parts_of(variants: Mapping[str, Variant]) -> dict[Regime, list[Part]]:
    """The distinct bridges of some variants, by regime."""
    unique = dict.fromkeys(part for variant in variants.values() for part in variant.parts)
    return {regime: [p for p in unique if p.regime == regime] for regime in dict.fromkeys(p.regime for p in unique)}


def plan_part(part: Part, scene: Scene) -> BridgePlan:
    """The untrained bridge; its initial weights depend on the seed and the part, not on the regime."""
    target = aim(part.aim, scene)
    what = replace(part, regime=USUAL)
    seed = seeds.seed_for(scene.seed, "frontier", str(what))

    def planned(**choices: Any) -> BridgePlan:
        return plan_bridge(scene.net, scene.modes[0], scene.images, target=target, name=str(part), seed=seed, **choices)

    paper = planned(slim=scene.slims[part.size])
    if part.place == "paper" and not part.design:
        return paper
    allowed = paper.bridge.share or 0.0
    if part.design == "default" and part.aim != "others":
        return planned(budget=allowed, design="auto")
    if part.design == "default":
        return plan_bridge(scene.net, scene.modes, scene.images, budget=allowed, name=str(part), seed=seed)
    where: dict[str, Any] = {} if part.place == "paper" else {"tap": list(scene.taps()[part.place])}
    if part.design in ("", "budget"):
        plan = planned(budget=allowed, **where)
        # Its sizes come in coarse steps: on small networks it may use little of its budget, or have no convolution.
        convolves = any(isinstance(module, ResidualBody) for module in plan.bridge.modules())
        if part.design or (convolves and (plan.bridge.share or 0.0) > ENOUGH * allowed):
            return plan
    design = {"design": part.design} if part.design else {}
    return _widest(lambda slim: planned(slim=slim, **where, **design), allowed)


def _widest(planned: Callable[[float], BridgePlan], allowed: float) -> BridgePlan:
    """The widest body within the allowed FLOPs, in sixteenths of the default widths, by bisection."""
    best: BridgePlan | None = None
    fits, fails = 0, 4 * STEPS
    while fails - fits > 1:
        middle = (fits + fails) // 2
        try:
            plan = planned(STEPS / middle)
        except ModebridgeError:  # not even one channel
            fits = middle
            continue
        if (plan.bridge.share or 0.0) <= allowed:
            fits, best = middle, plan
        else:
            fails = middle
    if best is None:
        raise ModebridgeError(
            f"Expected a body within {allowed:.3g} of the base's FLOPs, but there is none; raise the budget."
        )
    return best
