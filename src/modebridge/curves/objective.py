"""The loss of a curve: the expected loss of the networks along it, the ends frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Generic, Literal, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge import trees
from modebridge.curves.bezier import BezierCurve
from modebridge.curves.curve import Curve
from modebridge.curves.polychain import Polychain
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes, error_rate, has_statistics, refresh_statistics
from modebridge.nets import initialise, run, skeleton
from modebridge.types import Batch, Batches, Draw, Prepared, State, States

__all__ = ["CurveKind", "CurveObjective", "PinStart", "start_curve"]

CurveKind: TypeAlias = Literal["bezier", "polychain"]
PinStart: TypeAlias = Literal["midpoint", "random"]
C = TypeVar("C", bound=Curve)

MEMBER = "curve"


def start_curve(
    net: nn.Module,
    start: Mode,
    end: Mode,
    *,
    kind: CurveKind = "bezier",
    pins: int = 1,
    pin_start: PinStart = "midpoint",
    seed: int = 0,
) -> BezierCurve | Polychain:
    """A curve before training.

    Args:
        net: the network that both modes fit.
        start: the mode at r = 0.
        end: the mode at r = 1.
        kind: "bezier" or "polychain".
        pins: how many control points there are to learn.
        pin_start: "midpoint" puts the pins on the straight segment; "random" draws fresh weights, as the authors do.
        seed: of the fresh weights.
    """
    check_modes(net, [start, end], 2, "a curve")
    if start.id == end.id:
        raise ModebridgeError(
            "Expected the two modes of a curve to differ, but got the same weights twice; "
            "give two independently trained networks."
        )
    if pins < 1:
        raise ModebridgeError(f"Expected pins to be at least 1, but got {pins}; 1 gives the paper's quadratic curve.")
    line = BezierCurve.line(start, end, pins)
    if pin_start == "random":
        line = line.with_pins([_fresh(net, seed + k) for k in range(pins)])
    elif pin_start != "midpoint":
        raise ModebridgeError(
            f"Expected pin_start to be 'midpoint' or 'random', but got '{pin_start}'; choose one of the two."
        )
    if kind == "bezier":
        return line
    if kind == "polychain":
        return Polychain(line.start, line.end, line.pins)
    raise ModebridgeError(
        f"Expected the kind of curve to be 'bezier' or 'polychain', but got '{kind}'; choose one of the two."
    )


def _fresh(net: nn.Module, seed: int) -> dict[str, Tensor]:
    """Newly drawn weights: every module's own reset, then the paper's initialisation of what it covers."""
    copy = skeleton(net)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for module in copy.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        initialise(copy)
    return trees.clone(dict(copy.named_parameters()))


class CurveObjective(Generic[C]):
    r"""Minimise :math:`E_{r \sim U(0,1)} L(\theta(r))` over the pins: one r a step, cross entropy on the labels.

    Args:
        net: the network that the modes fit.
        curve: gives the kind of curve, its frozen ends and the pins to start from.
        train: batches to re-estimate batch norm's statistics on; needed by networks that have any.
        r: where validation looks, and where statistics are kept in the end.
    """

    def __init__(self, net: nn.Module, curve: C, train: Batches, r: float = 0.5) -> None:
        self._net = net
        self._train_net = skeleton(net, training=True)
        self._eval_net = skeleton(net)
        self._curve = curve
        self._train = train
        self._r = r
        self._statistics = has_statistics(net)

    def start(self) -> States:
        """The curve's own pins, named by their number; buffers that the forward pass may scribble on."""
        pins = {f"{k}:{name}": t for k, pin in enumerate(self._curve.pins) for name, t in pin.items()}
        return {MEMBER: State(trees.clone(pins), trees.clone(self._curve.start.buffers))}

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        """One r for the whole batch."""
        return {"r": torch.rand((), generator=generator, dtype=torch.float64)}

    ahead = False

    def prepare(self, batch: Batch, draw: Draw) -> Prepared:
        """The batch and its r."""
        return {"images": batch[0], "labels": batch[1], "r": draw["r"]}

    def losses(self, states: States, prepared: Prepared) -> Mapping[str, Tensor]:
        """Cross entropy of the network at r."""
        state = states[MEMBER]
        point = self._through(state).point(float(prepared["r"]))
        logits = run(self._train_net, point, state.buffers, prepared["images"])
        return {MEMBER: F.cross_entropy(logits, prepared["labels"])}

    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """The share of wrong answers at r (0.5 unless told otherwise), with statistics of that point."""
        mode = self.result(states).at(self._r)
        return {MEMBER: error_rate(self._eval_net, State(mode.params, mode.buffers), batches)}

    def result(self, states: States) -> C:
        """The trained curve, with statistics at r where the network needs them."""
        curve = self._through(states[MEMBER])
        curve = curve.with_pins([trees.clone(pin) for pin in curve.pins])
        if not self._statistics:
            return curve
        fresh = refresh_statistics(self._net, curve.point(self._r), curve.start.buffers, self._train)
        return replace(curve, statistics={self._r: fresh})

    def _through(self, state: State) -> C:
        pins: list[dict[str, Tensor]] = [{} for _ in self._curve.pins]
        for key, tensor in state.params.items():
            number, name = key.split(":", 1)
            pins[int(number)][name] = tensor
        return self._curve.with_pins(pins)
