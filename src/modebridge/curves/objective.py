"""The loss of a curve: the expected loss of the networks along it, with frozen ends."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Literal, Self, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge import trees
from modebridge.batches import flatten, go_to_epoch, unflatten
from modebridge.curves.bezier import BezierCurve
from modebridge.curves.curve import Curve, Position
from modebridge.curves.polychain import Polychain
from modebridge.errors import ModebridgeError
from modebridge.modes import (
    Mode,
    Refresh,
    check_modes,
    check_statistics,
    error_rate,
    fresh_weights,
    has_statistics,
    refresh_statistics,
)
from modebridge.nets import frozen_copy, run
from modebridge.types import Batch, Batches, Draw, Objective, Params, Prepared, Program, State, States

__all__ = ["CurveKind", "CurveObjective", "PinStart", "start_curve"]

CurveKind: TypeAlias = Literal["bezier", "polychain"]
PinStart: TypeAlias = Literal["midpoint", "random"]
C = TypeVar("C", bound=Curve)

MEMBER = "curve"
SHARED = "shared"


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
        net: the network of both modes.
        start: the mode at r = 0.
        end: the mode at r = 1.
        kind: "bezier" or "polychain".
        pins: number of control points to train.
        pin_start: "midpoint" puts the pins on the straight segment; "random" draws new values (`fresh_weights`) for the
            trained parameters (`requires_grad`), as the authors do.
        seed: seed of the new weights.
    """
    check_modes(net, [start, end], 2, "a curve")
    check_statistics(net, start.buffers, end.buffers)
    if start.id == end.id:
        raise ModebridgeError(
            "Expected the two modes of a curve to differ, but got the same weights twice; "
            "use two independently trained networks."
        )
    if pins < 1:
        raise ModebridgeError(f"Expected pins to be at least 1, but got {pins}; 1 gives the paper's quadratic curve.")
    line = BezierCurve.line(start, end, pins)
    if pin_start == "random":
        learns = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
        new_pins = []
        for k, pin in enumerate(line.pins):
            fresh = fresh_weights(net, seed + k)
            new_pins.append({name: fresh[name] if name in learns else tensor for name, tensor in pin.items()})
        line = line.with_pins(new_pins)
    elif pin_start != "midpoint":
        raise ModebridgeError(
            f"Expected pin_start to be 'midpoint' or 'random', but got '{pin_start}'; choose one of the two."
        )
    curves: dict[str, type[BezierCurve] | type[Polychain]] = {"bezier": BezierCurve, "polychain": Polychain}
    if kind not in curves:
        raise ModebridgeError(
            f"Expected the kind of curve to be 'bezier' or 'polychain', but got '{kind}'; choose one of the two."
        )
    return curves[kind](line.start, line.end, line.pins)


class CurveObjective(Objective[C]):
    r"""Minimise :math:`E_{r \sim U(0,1)} L(\theta(r))` over the pins: one r per step, cross entropy on the labels.

    A parameter that is not trained stays at the value that both ends share, as for a layer frozen in both. If the ends
    differ, it stays on the path through the given pins (the straight segment).

    Args:
        net: the network of the modes.
        curve: the initial curve; its ends are frozen.
        train: batches to re-estimate batch norm's statistics on, for networks that have any.
        r: position used for validation, and for the statistics of the result.
        trainable: names of the parameters whose pins are trained; None trains all.
        synced: converts batch norm to use the batches of all processes.
        refresh: function that re-estimates the statistics; distributed training passes its own.
    """

    def __init__(
        self,
        net: nn.Module,
        curve: C,
        train: Batches,
        r: float = 0.5,
        *,
        trainable: Collection[str] | None = None,
        synced: Callable[[nn.Module], nn.Module] = lambda module: module,
        refresh: Refresh = refresh_statistics,
    ) -> None:
        self._net = net
        self._train_net = synced(frozen_copy(net, training=True))
        self._eval_net = frozen_copy(net)
        self._curve = curve
        self._train = train
        self._r = r
        self._trainable = trainable
        self._refresh = refresh
        # Stored so that copies of this objective (`on`) share one program, which is compiled once.
        self._program: Program = self._loss

    def on(self, curve: C, train: Batches) -> Self:
        """The same objective for another curve of this kind and its batches; it shares the compiled program."""
        other = copy.copy(self)
        other._curve, other._train = curve, train
        return other

    def start(self) -> States:
        """The pins, named by number; the ends and all untrained parameters are frozen."""
        controls = self._curve.controls
        learns = self._curve.start.params if self._trainable is None else self._trainable
        pairs = zip(self._keys, controls, strict=True)
        every = {f"{key}:{name}": tensor for key, tree in pairs for name, tensor in tree.items()}
        for name, tensor in trees.common(controls).items():
            if name not in learns:
                # Stored once and never averaged: rounding would make it depend on r.
                for key in self._keys:
                    del every[f"{key}:{name}"]
                every[f"{SHARED}:{name}"] = tensor
        pins = {f"{key}:{name}" for key in self._keys[1:-1] for name in learns}
        # Scratch buffers for the forward pass: statistics during training are not used.
        return {MEMBER: State.split(every, self._curve.start.buffers, pins)}

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        """One r for the whole batch."""
        return {"r": torch.rand((), generator=generator, dtype=torch.float64)}

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """The batch and its r."""
        return {MEMBER: {**flatten(batch[0]), "labels": batch[1], "r": draw["r"]}}

    def program(self, member: str) -> Program:
        """Cross entropy of the network at r."""
        return self._program

    def _loss(self, state: State, prepared: Prepared) -> Tensor:
        return F.cross_entropy(self.logits(state, prepared), prepared["labels"])

    def logits(self, state: State, prepared: Prepared) -> Tensor:
        """The logits of the network at the prepared r, in training mode."""
        r = prepared["r"]
        # A Python number where reading it is free; on a GPU it stays a tensor, the input of a CUDA graph.
        point = self._point(state, float(r) if r.device.type == "cpu" else r)
        return run(self._train_net, point, state.buffers, unflatten(prepared))

    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """The error rate at r (0.5 by default), with statistics of that point."""
        state = states[MEMBER]
        point, buffers = self._point(state, self._r), state.buffers
        if has_statistics(self._net):
            buffers = self._refresh(self._net, point, buffers, self._same_batches())
        return {MEMBER: error_rate(self._eval_net, State(point, buffers), batches)}

    def result(self, states: States) -> C:
        """The curve with the trained pins, and statistics at r if the network needs them."""
        controls, shared = self._controls(states[MEMBER])
        pins = [{**tree, **shared} for tree in controls[1:-1]]
        names = self._curve.start.params
        trained = self._curve.with_pins([trees.clone({name: pin[name] for name in names}) for pin in pins])
        return trained.with_statistics(self._net, self._r, self._same_batches(), refresh=self._refresh)

    def _same_batches(self) -> Batches:
        """The training data at epoch 0: statistics must not depend on the loader's current epoch."""
        go_to_epoch(self._train, 0)
        return self._train

    def _point(self, state: State, r: Position) -> Params:
        controls, shared = self._controls(state)
        return {**trees.combine(self._curve.weights(r), controls), **shared}

    @property
    def _keys(self) -> list[str]:
        """Prefixes of the names in a state: "start", the numbers of the pins, "end"."""
        return ["start", *(str(k) for k in range(len(self._curve.pins))), "end"]

    def _controls(self, state: State) -> tuple[list[Params], Params]:
        """Start, pins and end from a state, by the prefix of the names, and the tensors that all of them share."""
        parts: dict[str, dict[str, Tensor]] = {key: {} for key in (*self._keys, SHARED)}
        for full_name, tensor in state.all_params.items():
            key, name = full_name.split(":", 1)
            parts[key][name] = tensor
        return [parts[key] for key in self._keys], parts[SHARED]
