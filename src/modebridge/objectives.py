r"""The four losses: of a mode, a curve, a bridge and a student.

| what | trains | loss on a batch |
|---|---|---|
| mode | a network | cross entropy on labels |
| curve | its pins | cross entropy of the network at :math:`\theta(r)`, one :math:`r \sim U(0,1)` per step |
| bridge | a small body | KL(target || bridge) on mixed images, features and targets from frozen networks |
| student | a network | KL(mean of teachers || student) on mixed images, possibly with labels |

An objective only knows mathematics; how steps are run, compiled and distributed is the training loop's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge import trees
from modebridge.batches import flatten, go_to_epoch, unflatten
from modebridge.bridges import Bridge, Target
from modebridge.bridges.bridge import target_of
from modebridge.curves import Curve, Position
from modebridge.ensembles import Bases, Ensemble, Output, average, features_of, labeled, probabilities_of
from modebridge.matching import DistillationLoss, MatchingObjective, bridge_loss, draw_mixing, mixed, mixed_labels
from modebridge.modes import Mode, has_statistics, refresh_statistics
from modebridge.nets import classes_last, frozen_copy, logits_of, run, run_at, second
from modebridge.trees import wide
from modebridge.types import IGNORED, Batch, Batches, Draw, Inputs, Objective, Params, Prepared, Program, State, States

MODE, CURVE = "mode", "curve"  # the names of the only member of these objectives
Mixing: TypeAlias = tuple[float, float, int]


class ModeObjective(Objective[Mode]):
    """Train one network on labels with the mean cross entropy per batch; parameters not in `trainable` are frozen.

    `mixing` is the alphas of mixup and CutMix (of half of the batches, as its authors do), and the number of classes.
    """

    def __init__(
        self, net: nn.Module, mode: Mode, trainable: Collection[str] | None = None, mixing: Mixing = (0.0, 0.0, 0)
    ) -> None:
        self._train, self._eval = frozen_copy(net, training=True), frozen_copy(net)
        self._mode, self._trainable, self._mixing = mode, trainable, mixing
        # Stored so that copies of this objective (`on`) share one program, which is compiled once.
        self._program: Program = self._loss

    def on(self, mode: Mode, trainable: Collection[str] | None = None) -> Self:
        """The same objective with other initial weights; it shares the compiled program."""
        other = copy.copy(self)
        other._mode, other._trainable = mode, trainable
        return other

    def start(self) -> States:
        learns = self._mode.params if self._trainable is None else self._trainable
        return {MODE: State.split(self._mode.params, self._mode.buffers, learns)}

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        return draw_mixing(size, *self._mixing[:2], generator, half=True)

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        images, labels = batch
        if "share" in draw:
            dtype = torch.promote_types(next(iter(self._mode.params.values())).dtype, torch.float32)
            labels = second(mixed_labels(labels, self._mixing[2], dtype, draw, images))
        return {MODE: {**flatten(mixed(images, draw)), "labels": labels}}

    def program(self, member: str) -> Program:
        return self._program

    def _loss(self, state: State, prepared: Prepared) -> Tensor:
        labels = prepared["labels"]
        loss = F.cross_entropy(second(run(self._train, state.all_params, state.buffers, unflatten(prepared))), labels)
        return loss / labeled(labels.sum(dim=1).flatten()) if labels.is_floating_point() else loss

    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        return {MODE: error_rate(partial(self._answer, states[MODE]), batches)}

    def _answer(self, state: State, images: Inputs) -> Tensor:
        return run(self._eval, state.all_params, state.buffers, images)

    def result(self, states: States) -> Mode:
        return Mode(states[MODE].all_params, states[MODE].buffers, self._mode.extra)


@torch.no_grad()
def error_rate(answer: Callable[[Inputs], Tensor], batches: Batches) -> float:
    """The share of images, or places, whose predicted class is not their label; `answer` returns logits (B, *P, K)."""
    wrong, seen = 0, 0
    for images, labels in batches:
        known = labels != IGNORED
        wrong += int(((answer(images).argmax(-1) != labels) & known).sum())
        seen += int(known.sum())
    return wrong / seen if seen else math.nan


class CurveObjective(Objective[Curve]):
    r"""Minimize :math:`E_{r \sim U(0,1)} L(\theta(r))` over the pins: one r per step, cross entropy on the labels.

    A parameter that is not trained stays at the value that both ends share, as for a layer frozen in both. If the ends
    differ, it stays on the path through the given pins (the straight segment). The curve is validated at `r`; batch
    norm's statistics are re-estimated there on the batches `train`.
    """

    def __init__(
        self, net: nn.Module, curve: Curve, train: Batches, r: float = 0.5, *, trainable: Collection[str] | None = None
    ) -> None:
        self._train, self._eval = frozen_copy(net, training=True), frozen_copy(net)
        self._curve, self._batches, self._r, self._trainable = curve, train, r, trainable
        self._program: Program = self._loss  # shared by the copies from `on`

    def on(self, curve: Curve, train: Batches) -> Self:
        """The same objective for another curve of this kind and its batches; it shares the compiled program."""
        other = copy.copy(self)
        other._curve, other._batches = curve, train
        return other

    def start(self) -> States:
        curve = self._curve
        learns = curve.start.params if self._trainable is None else self._trainable
        # Scratch buffers for the forward pass: statistics during training are not used.
        return {CURVE: State.split(curve.packed(learns), curve.start.buffers, curve.pin_names(learns))}

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        return {"r": torch.rand((), generator=generator, dtype=torch.float64)}

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        return {CURVE: {**flatten(batch[0]), "labels": batch[1], "r": draw["r"]}}

    def program(self, member: str) -> Program:
        return self._program

    def _loss(self, state: State, prepared: Prepared) -> Tensor:
        r = prepared["r"]
        # A Python number where reading it is free; on a GPU it stays a tensor, the input of a CUDA graph.
        point = self._point(state, float(r) if r.device.type == "cpu" else r)
        logits = run(self._train, point, state.buffers, unflatten(prepared))
        return F.cross_entropy(second(logits), prepared["labels"])

    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        state = states[CURVE]
        point, buffers = self._point(state, self._r), state.buffers
        if has_statistics(self._eval):
            buffers = refresh_statistics(self._eval, point, buffers, self._same_batches())
        return {CURVE: error_rate(partial(run, self._eval, point, buffers), batches)}

    def result(self, states: States) -> Curve:
        controls, shared = self._curve.unpacked(states[CURVE].all_params)
        names = self._curve.start.params
        pins = [trees.clone({name: {**pin, **shared}[name] for name in names}) for pin in controls[1:-1]]
        return self._curve.with_pins(pins).with_statistics(self._eval, self._r, self._same_batches())

    def _same_batches(self) -> Batches:
        """The training data at epoch 0: statistics must not depend on the loader's current epoch."""
        go_to_epoch(self._batches, 0)
        return self._batches

    def _point(self, state: State, r: Position) -> Params:
        controls, shared = self._curve.unpacked(state.all_params)
        return {**trees.combine(self._curve.weights(r), controls), **shared}


class BridgeObjective(MatchingObjective[dict[str, Bridge]]):
    """Train many bridges at once; each frozen network runs once per batch, whatever the number of bridges.

    With m modes, all curves between them and any number of bridges, a batch takes m + m(m-1)/2 frozen forward
    passes. Bridges share batches and frozen outputs but no parameters, so each is trained exactly as it would be alone.
    Training starts from the weights of the given bridges, which have their targets.
    """

    def __init__(self, net: nn.Module, bridges: Mapping[str, Bridge], mixup: float = 0.4, cutmix: float = 0.0) -> None:
        self._bridges = dict(bridges)
        self._targets = {name: target_of(name, bridge) for name, bridge in bridges.items()}
        # Only the networks that are needed: modes whose features are read, and targets.
        read = {mode.id: mode for bridge in bridges.values() for mode in bridge.modes}
        needed = read | {mode.id: mode for target in self._targets.values() for mode in target.modes}
        bases = Bases(net, needed, [tap for bridge in bridges.values() for tap in bridge.taps])
        super().__init__(bases, mixup, cutmix)
        for name, bridge in bridges.items():
            make = partial(_bridge_program, bridge.heads)
            self._add(name, bridge.body, Mode.from_module(bridge.body), (len(bridge.places), bridge.heads), make)

    @torch.no_grad()
    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        outputs = self.bases(mixed(batch[0], draw))
        prepared: dict[str, Prepared] = {}
        for name, bridge in self._bridges.items():
            target = self._targets[name]
            parts = [_probabilities(part, outputs, batch, draw) for part in target.parts or (target,)]
            features = features_of(bridge, bridge.reads, outputs)
            prepared[name] = {
                **{f"feature{k}": feature for k, feature in enumerate(features)},
                "target": torch.stack(parts, dim=1) if target.parts else parts[0],
            }
        return prepared

    def result(self, states: States) -> dict[str, Bridge]:
        trained = {}
        for name, bridge in self._bridges.items():
            body = frozen_copy(bridge.body)
            body.load_state_dict({**states[name].all_params, **states[name].buffers})
            for copied, parameter in zip(body.parameters(), bridge.body.parameters(), strict=True):
                copied.requires_grad_(parameter.requires_grad)
            own = bridge.r, bridge.name, bridge.share, bridge.heads
            trained[name] = Bridge(body.cpu(), bridge.modes, bridge.taps, *own, flops=bridge.flops).eval()
        return trained


def _probabilities(target: Target, outputs: Mapping[str, Output], batch: Batch, draw: Draw) -> Tensor:
    """The probabilities (B, *P, K) of a target on a batch."""
    if target.modes:
        return average([probabilities_of(outputs[mode.id][0]) for mode in target.modes])
    logits = wide(next(iter(outputs.values()))[0])
    return mixed_labels(batch[1], logits.shape[-1], logits.dtype, draw, batch[0])


def _bridge_program(heads: int, body: nn.Module) -> Program:
    def loss(state: State, prepared: Prepared) -> Tensor:
        features = [tensor for name, tensor in prepared.items() if name.startswith("feature")]
        target, logits = prepared["target"], logits_of(run_at(body, state.all_params, state.buffers, *features))
        axis = min(heads, 2)
        return bridge_loss(target, classes_last(logits, axis, target.shape[axis:-1]), heads)

    return loss


Teacher: TypeAlias = Mode | Ensemble
"""A network, or an ensemble, each of whose members counts as one teacher."""


@dataclass(frozen=True)
class StudentPlan:
    """One student to train: its network, of which parameters with `requires_grad` learn, and its initial weights.

    The mean probability of the teachers is the target; without any it is trained on labels, mixed like images.
    """

    net: nn.Module
    start: Mode
    teachers: tuple[Teacher, ...]
    loss: DistillationLoss = DistillationLoss()  # noqa: RUF009 - frozen


class StudentObjective(MatchingObjective[dict[str, Mode]]):
    """Train students, all on the same mixed batches; every teacher runs once per batch.

    `net` is the architecture of the teachers that are modes, on the device.
    """

    def __init__(
        self, net: nn.Module, plans: Mapping[str, StudentPlan], classes: int, mixup: float = 1.0, cutmix: float = 0.0
    ) -> None:
        teachers = [teacher for plan in plans.values() for teacher in plan.teachers]
        super().__init__(Bases(net, {mode.id: mode for mode in teachers if isinstance(mode, Mode)}), mixup, cutmix)
        # Copies, so that the caller's ensemble stays on its device.
        ensembles = {id(teacher): teacher for teacher in teachers if isinstance(teacher, Ensemble)}
        self._ensembles = {key: copy.deepcopy(one).to(self.bases.device) for key, one in ensembles.items()}
        self._plans, self._classes = dict(plans), classes
        for name, plan in plans.items():
            make = partial(_student_program, plan.loss, self.bases.device)
            self._add(name, plan.net, plan.start, (plan.loss, bool(plan.teachers)), make)

    @torch.no_grad()
    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        shown = mixed(batch[0], draw)
        # The probabilities (M, B, *P, K) of every teacher: M is 1 for a mode, the number of members for an ensemble.
        answers: dict[str | int, Tensor] = {key: one.table(shown) for key, one in self._ensembles.items()}
        answers |= {key: probabilities_of(logits)[None] for key, (logits, _) in self.bases(shown).items()}
        prepared: dict[str, Prepared] = {}
        for name, plan in self._plans.items():
            inputs = flatten(shown)
            if plan.teachers and plan.loss.soft:
                keys = [teacher.id if isinstance(teacher, Mode) else id(teacher) for teacher in plan.teachers]
                inputs["target"] = plan.loss.target(torch.cat([answers[key] for key in keys]))
            if plan.loss.hard or not plan.teachers:
                dtype = torch.promote_types(next(iter(plan.start.params.values())).dtype, torch.float32)
                inputs["labels"] = mixed_labels(batch[1], self._classes, dtype, draw, batch[0])
            prepared[name] = inputs
        return prepared

    def result(self, states: States) -> dict[str, Mode]:
        return {name: Mode(s.all_params, s.buffers, self._plans[name].start.extra) for name, s in states.items()}


def _student_program(loss: DistillationLoss, device: torch.device, net: nn.Module) -> Program:
    net.to(device)

    def program(state: State, prepared: Prepared) -> Tensor:
        logits = run(net, state.all_params, state.buffers, unflatten(prepared))
        return loss(prepared.get("target"), prepared.get("labels"), logits)

    return program
