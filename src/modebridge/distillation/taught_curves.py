"""The objective of taught curves: the networks along them match the teachers' mean prediction, as students do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from modebridge.batches import flatten
from modebridge.bridges import Compile, FanOut, MatchingObjective, in_turn
from modebridge.curves import Curve, CurveObjective
from modebridge.distillation.loss import DistillationLoss
from modebridge.distillation.objective import MixedBatches, loss_program
from modebridge.distillation.teachers import Teacher, Teachers
from modebridge.modes import Refresh, refresh_statistics
from modebridge.nets import frozen_copy
from modebridge.types import Batch, Batches, Draw, Prepared, State, States

__all__ = ["TaughtCurves"]

C = TypeVar("C", bound=Curve)


class TaughtCurves(MatchingObjective[dict[str, C]]):
    r"""Train the pins of several curves with the loss of students; every teacher runs once per batch.

    .. math:: E_{r \sim U(0,1)} D_\mathrm{KL}\big(\bar p(x) \,\|\, q_{\theta(r)}(x)\big)

    on mixed images x. All curves share the images and r of each step, so each is trained exactly as it would be alone.
    Batch norm's statistics are estimated on mixed images too, as those of the ends were in training: on digits,
    statistics of unmixed images cost a midpoint .06 of NLL.

    Args:
        net: the network of the curves' ends and of the teachers that are modes, on the device.
        curves: the initial curves by name, all of one kind; their ends are frozen.
        teachers: the networks along the curves are trained on their mean probability.
        train: batches to re-estimate batch norm's statistics on, for networks that have any.
        r: position used for validation, and for the statistics of the result.
        mixup: alpha of the Beta distribution of the shares; 0 turns mixup off.
        seed: seed of the mixing for the statistics.
        trainable: names of the parameters whose pins are trained; None trains all.
        compiled: compiles the teachers' forward pass, if the engine supports it.
        fan_out: runs the teachers in parallel, if the engine supports it.
        synced: converts batch norm to use the batches of all processes.
        refresh: function that re-estimates the statistics; distributed training passes its own.
    """

    def __init__(
        self,
        net: nn.Module,
        curves: Mapping[str, C],
        teachers: Sequence[Teacher],
        train: Batches,
        r: float = 0.5,
        mixup: float = 1.0,
        *,
        seed: int = 0,
        trainable: Collection[str] | None = None,
        compiled: Compile = lambda function: function,
        fan_out: FanOut = in_turn,
        synced: Callable[[nn.Module], nn.Module] = lambda module: module,
        refresh: Refresh = refresh_statistics,
    ) -> None:
        super().__init__(mixup)
        self._teachers = tuple(teachers)
        self._frozen = Teachers(net, self._teachers, compiled=compiled, fan_out=fan_out)
        self._r, self._loss = r, DistillationLoss()
        mixed = MixedBatches(self, train, seed)
        first = CurveObjective(
            net, next(iter(curves.values())), mixed, r, trainable=trainable, synced=synced, refresh=refresh
        )
        self._parts = {name: first.on(curve, mixed) for name, curve in curves.items()}

        def program(state: State, prepared: Prepared) -> Tensor:
            return self._loss(prepared["target"], None, first.logits(state, prepared))

        self._programs = dict.fromkeys(curves, program)  # shared by all curves, so that it is compiled once
        self._measures = dict.fromkeys(curves, loss_program(frozen_copy(net), self._loss))

    def start(self) -> States:
        """The pins of each curve, as for curves trained on labels."""
        return {name: next(iter(part.start().values())) for name, part in self._parts.items()}

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        """The draw of mixup, and one r for the whole batch."""
        return {**super().draw(size, generator), "r": torch.rand((), generator=generator, dtype=torch.float64)}

    @torch.no_grad()
    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """Mix the images, run every teacher once on them, and give every curve images, target and r."""
        mixed = self.mixed(batch[0], draw)
        target = self._loss.target(Teachers.of(self._frozen.ask(mixed), self._teachers))
        prepared = {**flatten(mixed), "target": target}
        if "r" in draw:
            prepared["r"] = draw["r"]
        return dict.fromkeys(self._parts, prepared)

    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """The loss of the network at r (0.5 by default) on unmixed images, with statistics of that point."""
        points = {name: curve.at(self._r) for name, curve in self.result(states).items()}
        return super().validate({name: State(point.params, point.buffers) for name, point in points.items()}, batches)

    def result(self, states: States) -> dict[str, C]:
        """The curves with the trained pins by name, and statistics at r if the network needs them."""
        return {name: part.result(dict.fromkeys(part.start(), states[name])) for name, part in self._parts.items()}
