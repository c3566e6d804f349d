"""The objective of students: several networks at once, with teachers that run once per batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modebridge import seeds
from modebridge.batches import flatten, go_to_epoch, unflatten
from modebridge.bridges import Compile, FanOut, MatchingObjective, in_turn
from modebridge.distillation.loss import DistillationLoss
from modebridge.distillation.teachers import Teacher, Teachers
from modebridge.modes import Mode
from modebridge.nets import frozen_copy, run
from modebridge.types import Batch, Batches, Draw, Prepared, Program, State, States

__all__ = ["MixedBatches", "StudentObjective", "StudentPlan", "loss_program"]


@dataclass(frozen=True)
class StudentPlan:
    """One student to train.

    Args:
        net: its architecture; parameters with `requires_grad` are trained.
        start: the initial weights.
        teachers: networks whose mean probability is the target; without any it is trained on labels, mixed like images.
        loss: the loss.
    """

    net: nn.Module
    start: Mode
    teachers: tuple[Teacher, ...]
    loss: DistillationLoss


class StudentObjective(MatchingObjective[dict[str, Mode]]):
    """Train students, all on the same mixed batches; every teacher runs once per batch.

    Args:
        net: the architecture of the teachers that are modes, on the device.
        plans: the students by name.
        classes: number of classes K.
        mixup: alpha of the Beta distribution of the shares; 0 turns mixup off.
        cutmix: alpha of the Beta distribution of the box areas; 0 turns CutMix off.
        compiled: compiles the teachers' forward pass, if the engine supports it.
        fan_out: runs the teachers in parallel, if the engine supports it.
        synced: converts batch norm to use the batches of all processes.
        shares: whether two networks may share one program, so that it is compiled once; by default never.
    """

    def __init__(
        self,
        net: nn.Module,
        plans: Mapping[str, StudentPlan],
        classes: int,
        mixup: float = 1.0,
        *,
        cutmix: float = 0.0,
        compiled: Compile = lambda function: function,
        fan_out: FanOut = in_turn,
        synced: Callable[[nn.Module], nn.Module] = lambda module: module,
        shares: Callable[[nn.Module, nn.Module], bool] = lambda a, b: False,
    ) -> None:
        super().__init__(mixup, cutmix)
        self._plans = dict(plans)
        device = next((tensor.device for tensor in net.state_dict().values()), torch.device("cpu"))
        teachers = [teacher for plan in plans.values() for teacher in plan.teachers]
        self._teachers = Teachers(net, teachers, compiled=compiled, fan_out=fan_out)
        self._classes = classes
        for name, plan in plans.items():
            twin = next((key for key in self._programs if _serves(plans[key], plan, shares)), None)
            if twin is not None:
                self._programs[name], self._measures[name] = self._programs[twin], self._measures[twin]
                continue
            trained = synced(frozen_copy(plan.net, training=True).to(device))
            self._programs[name] = loss_program(trained, plan.loss)
            self._measures[name] = loss_program(frozen_copy(plan.net).to(device), plan.loss)

    def start(self) -> States:
        """The students' initial weights; those with `requires_grad=False` are frozen."""
        states: dict[str, State] = {}
        for name, plan in self._plans.items():
            learns = {key for key, parameter in plan.net.named_parameters() if parameter.requires_grad}
            states[name] = State.split(plan.start.params, plan.start.buffers, learns)
        return states

    @torch.no_grad()
    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """Mix the images, run every teacher once on them, and give each student images and target."""
        images, labels = batch
        mixed = self.mixed(images, draw)
        probabilities = self._teachers.ask(mixed)
        prepared: dict[str, Prepared] = {}
        for name, plan in self._plans.items():
            inputs = flatten(mixed)
            if plan.teachers and plan.loss.soft:
                inputs["target"] = plan.loss.target(Teachers.of(probabilities, plan.teachers))
            if plan.loss.hard or not plan.teachers:
                # In the precision of the student's loss.
                dtype = torch.promote_types(next(iter(plan.start.params.values())).dtype, torch.float32)
                inputs["labels"] = self.mixed_labels(labels, self._classes, dtype, draw, images)
            prepared[name] = inputs
        return prepared

    def result(self, states: States) -> dict[str, Mode]:
        """The trained students by name."""
        return {name: Mode(state.all_params, state.buffers) for name, state in states.items()}


class MixedBatches:
    """Batches mixed as in the training of students, with their own draws.

    Args:
        objective: defines how to mix.
        batches: the unmixed batches.
        seed: seed of the draws.
    """

    def __init__(self, objective: MatchingObjective[Any], batches: Batches, seed: int) -> None:
        self._objective, self._batches, self._seed = objective, batches, seed

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, if the batches have epochs."""
        go_to_epoch(self._batches, epoch)

    def __iter__(self) -> Iterator[Batch]:
        generator = seeds.generator(self._seed, "mixed batches")
        for images, labels in self._batches:
            yield self._objective.mixed(images, self._objective.draw(len(labels), generator)), labels


def _serves(a: StudentPlan, b: StudentPlan, shares: Callable[[nn.Module, nn.Module], bool]) -> bool:
    """Whether the program of one student works for another: only weights and targets differ."""
    return a.loss == b.loss and bool(a.teachers) == bool(b.teachers) and shares(a.net, b.net)


def loss_program(net: nn.Module, loss: DistillationLoss) -> Program:
    """The loss of a network on prepared inputs."""

    def program(state: State, prepared: Prepared) -> Tensor:
        logits = run(net, state.all_params, state.buffers, unflatten(prepared))
        return loss(prepared.get("target"), prepared.get("labels"), logits)

    return program
