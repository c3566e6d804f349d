"""One SGD step of a task: loss, gradient, update. The same code runs on CPUs, compiled, and inside a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge import seeds, trees
from modebridge.training.config import Engine, TrainConfig
from modebridge.training.optimizers import TorchOptimizer
from modebridge.types import Params, Prepared, Program, State

ALIGN = 64
"""Every parameter starts at a multiple of this many elements, so that vector loads stay aligned."""

Forward: TypeAlias = Callable[[Tensor, Params, Params, Prepared], Tensor]
"""From the parameter vector, buffers, frozen tensors and prepared inputs to the loss."""


class Step:
    """The training state of one member, and the step that updates it.

    The initial state is copied, and all processes take that of the first. `forward` is from `make_forward`, compiled or
    not.
    """

    def __init__(
        self,
        start: State,
        layout: FlatLayout,
        forward: Forward,
        config: TrainConfig,
        engine: Engine,
        noise: Noise | None = None,
    ) -> None:
        device = engine.device
        self.layout = layout
        self._shares = _shares(layout, start, device) if start.pace else None
        self.flat = layout.pack(start.params).to(device).requires_grad_()
        self.momentum = torch.zeros_like(self.flat, requires_grad=False)
        self._optimizer = None
        if config.optimizer != "sgd":
            self._optimizer = TorchOptimizer(layout.views(self.flat.detach()), config, start.pace)
        self.built = self._optimizer.built if self._optimizer else ""
        # The running mean of stochastic weight averaging, if enabled.
        self.mean = torch.zeros_like(self.momentum) if config.average_from else None
        self.buffers = trees.to(trees.clone(start.buffers), device)
        self.frozen = trees.to(start.frozen, device)
        self._forward, self._config = forward, config
        self._engine, self._processes = engine, engine.processes
        self.noise = noise or Noise(device, config.seed)
        if self._processes.size > 1:
            for tensor in (self.flat.detach(), *self.buffers.values()):
                self._processes.from_first(tensor)

    def __call__(self, prepared: Prepared, lr: Tensor | float) -> Tensor:
        """Learn from one prepared batch; returns the loss, detached."""
        # The gradient too: a network that recomputes parts of its forward pass must draw the same numbers.
        with self.noise():
            with self._engine.precision():
                loss = self._forward(self.flat, self.buffers, self.frozen, prepared)
            (gradient,) = torch.autograd.grad(loss, self.flat)
        loss = loss.detach()
        if self._processes.size > 1:
            # In one message.
            mean = self._processes.mean(torch.cat([gradient, loss.view(1)]))
            gradient, loss = mean[:-1], mean[-1]
        if self._config.clip:
            gradient = gradient * (self._config.clip / gradient.norm().clamp_min(self._config.clip))
        with torch.no_grad():
            if self._optimizer is None:
                sgd_(self.flat, self.momentum, gradient, lr, self._config, self._shares)
            else:
                self._optimizer(self.layout.views(gradient), lr)
        return loss

    def settle(self) -> None:
        """Average the running statistics over processes, since each one collected them on its own images."""
        if self._processes.size > 1:
            for tensor in self.buffers.values():
                if tensor.is_floating_point():
                    tensor.copy_(self._processes.mean(tensor))

    def average(self, count: int) -> None:
        """Add the current weights to the running mean, as the `count`-th."""
        assert self.mean is not None
        with torch.no_grad():
            self.mean.add_((self.flat - self.mean) / count)

    def state(self, *, averaged: bool = False) -> State:
        """The current state, or that of the running mean; parameters are views of the vector."""
        flat = self.mean if averaged and self.mean is not None else self.flat.detach()
        return State(self.layout.views(flat), self.buffers, self.frozen)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name: what a checkpoint saves and a warm-up restores."""
        named = {f"buffers/{name}": tensor for name, tensor in self.buffers.items()}
        mean = {} if self.mean is None else {"mean": self.mean}
        own = {"momentum": self.momentum} if self._optimizer is None else self._optimizer.tensors()
        return {"flat": self.flat.detach(), **own, **mean, **named}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Restore saved tensors in place, so that graphs and views stay valid."""
        if self._optimizer is not None:
            self._optimizer.restore(saved)
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(saved[name])


def make_forward(program: Program, layout: FlatLayout) -> Forward:
    """The loss as a function of plain tensors, so that one compilation serves every member of an architecture."""

    def forward(flat: Tensor, buffers: Params, frozen: Params, prepared: Prepared) -> Tensor:
        return program(State(layout.views(flat), buffers, frozen), prepared)

    return forward


def sgd_(
    flat: Tensor,
    momentum: Tensor,
    gradient: Tensor,
    lr: Tensor | float,
    config: TrainConfig,
    shares: tuple[Tensor, Tensor] | None = None,
) -> None:
    """SGD in place, like torch's: weight decay is added to the gradient; buffer = momentum * buffer + gradient.

    Uses operations that round once each, so the result for an element does not depend on its place in the vector.
    `shares` are factors for the learning rate and the weight decay, per element; None for the full values.
    """
    if config.weight_decay:
        decay = flat * config.weight_decay
        gradient = gradient + (decay if shares is None else decay * shares[1])
    momentum.mul_(config.momentum).add_(gradient)
    if config.nesterov == "standard":
        gradient = gradient + momentum * config.momentum
    elif config.nesterov == "authors":
        gradient = gradient + momentum
    else:
        gradient = momentum
    flat.sub_(gradient * lr if shares is None else gradient * (shares[0] * lr))


def _shares(layout: FlatLayout, start: State, device: torch.device) -> tuple[Tensor, Tensor]:
    """Factors for the learning rate and weight decay of every element of the vector."""
    rates, decays = (
        layout.pack({name: torch.full_like(p, start.pace.get(name, (1.0, 1.0))[k]) for name, p in start.params.items()})
        for k in (0, 1)
    )
    return rates.to(device), decays.to(device)


class FlatLayout:
    """The place of each parameter of a member in one vector, by name: one kernel updates it, one tensor saves it.

    A tensor keeps its memory order (channels last stays channels last). Other parameters with the same names, shapes
    and memory orders fit too.
    """

    def __init__(self, params: Params) -> None:
        self._places: list[tuple[str, list[int], list[int], list[int]]] = []
        self._sizes: list[int] = []
        for name, tensor in params.items():
            strides = tensor.stride()
            order = sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], axis))
            inverse = [order.index(axis) for axis in range(tensor.dim())]
            self._places.append((name, order, inverse, [tensor.shape[axis] for axis in order]))
            self._sizes += [tensor.numel(), -tensor.numel() % ALIGN]

    @property
    def key(self) -> str:
        """Equal for identical layouts, which can share a compiled function."""
        return repr(self._places)

    def pack(self, params: Params) -> Tensor:
        """The vector of the parameters, as a copy."""
        pieces: list[Tensor] = []
        for k, (name, order, _, _) in enumerate(self._places):
            tensor = params[name].detach()
            pieces += [tensor.permute(order).reshape(-1), tensor.new_zeros(self._sizes[2 * k + 1])]
        return torch.cat(pieces) if pieces else torch.zeros(0)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views: gradients flow through them to the vector."""
        pieces = torch.split(flat, self._sizes)
        return {
            name: pieces[2 * k].view(shape).permute(inverse) for k, (name, _, inverse, shape) in enumerate(self._places)
        }


class Noise:
    """Sets torch's global generators to a seed during a step, and restores them afterwards.

    The seed depends on the task's seed, on names, and on the position of the step in the run. So a step draws the same
    numbers whatever is trained next to it, whatever the caller drew before, and after resuming from a checkpoint. A
    captured CUDA graph draws from its own generator (`state`), which is set to the step's seed before each replay.

    The generators are global: threads whose networks draw take turns. Whether a network draws is checked in its first
    step of every epoch; one that does not never waits.
    """

    def __init__(self, device: torch.device, seed: int, *names: str | int) -> None:
        self._device, self._seed, self._names = device, seed, names
        self._place = (0, 0)
        self._checked_epoch: int | None = None
        self.draws = False
        self.state = torch.Generator(device) if device.type == "cuda" else None

    def at(self, epoch: int, number: int) -> None:
        """Move to a step, given by its epoch and its number within the epoch."""
        self._place = (epoch, number)

    def reset(self) -> None:
        """Set the generator of a captured graph to the seed of the current step."""
        if self.state is not None and self.draws:
            self.state.manual_seed(self._now)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Within this context all random numbers come from the seed of the current step."""
        if self.state is not None and torch.cuda.is_current_stream_capturing():
            # Nothing may be read or seeded now; the warm-up has recorded whether the network draws.
            with self._lent():
                yield
            return
        first_step = self._checked_epoch != self._place[0]
        if not (first_step or self.draws):
            yield
            return
        with seeds.borrowed(self._now, self._device) as drawn:
            yield
            if first_step:
                self._checked_epoch = self._place[0]
                self.draws = self.draws or drawn()

    @property
    def _now(self) -> int:
        return seeds.seed_for(self._seed, "noise", *self._names, *self._place)

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """Let the GPU's default generator use our state during capture, if anything will be drawn."""
        if self.state is None or not self.draws:
            yield
            return
        default = seeds.cuda_generator(self._device)
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.state)
        try:
            yield
        finally:
            default.graphsafe_set_state(before)
