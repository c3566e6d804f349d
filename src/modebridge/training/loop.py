"""The one loop: it trains whatever objective it is given and knows nothing of curves or bridges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge import seeds, trees
from modebridge.errors import ModebridgeError
from modebridge.training.config import TrainConfig
from modebridge.types import Batches, Objective, Prepared, State, States

__all__ = ["Report", "train"]

Report: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Called after every epoch with the number of epochs done and the mean training losses by member."""


def train(
    objective: Objective,
    batches: Batches,
    config: TrainConfig,
    *,
    valid: Batches | None = None,
    report: Report | None = None,
) -> States:
    """Minimise the sum of the members' losses by SGD.

    Args:
        objective: what to train.
        batches: the training data, iterated once an epoch; `set_epoch` is called where it exists.
        config: epochs and optimiser.
        valid: held-out data; needed to keep the best epoch of each member, unused otherwise.
        report: told of progress.

    Returns:
        The states to keep: each member's best epoch on `valid`, or the last one.
    """
    if config.keep == "best" and valid is None:
        raise ModebridgeError(
            "Expected validation data to keep the best epoch by, but got none; give valid or set keep='last'."
        )
    states = objective.start()
    leaves = [tensor.requires_grad_() for state in states.values() for tensor in state.params.values()]
    # foreach: one call per operation over all tensors, not one per tensor.
    optimiser = torch.optim.SGD(
        leaves,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.nesterov,
        foreach=True,
    )
    draws = seeds.generator(config.seed, "draws")
    best: dict[str, tuple[float, State]] = {}
    for epoch in range(config.epochs):
        for group in optimiser.param_groups:
            group["lr"] = config.lr * config.factor(epoch)
        losses = _epoch(objective, states, batches, optimiser, draws, epoch)
        if config.keep == "best" and valid is not None:
            for member, score in objective.validate(_detached(states), valid).items():
                if member not in best or score < best[member][0]:
                    best[member] = (score, _copy(states[member]))
        if report is not None:
            report(epoch + 1, losses)
    return {member: best[member][1] if member in best else _copy(state) for member, state in states.items()}


def _epoch(
    objective: Objective,
    states: States,
    batches: Batches,
    optimiser: torch.optim.Optimizer,
    draws: torch.Generator,
    epoch: int,
) -> dict[str, float]:
    set_epoch = getattr(batches, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
    totals: dict[str, Tensor] = {}
    steps = 0
    for prepared in _prepared(objective, batches, draws):
        losses = objective.losses(states, prepared)
        optimiser.zero_grad()
        torch.autograd.backward(torch.stack(list(losses.values())).sum())
        optimiser.step()
        for member, loss in losses.items():
            totals[member] = totals[member] + loss.detach() if member in totals else loss.detach()
        steps += 1
    if steps == 0:
        raise ModebridgeError(
            f"Expected train to yield batches in epoch {epoch + 1}, but got none; "
            "give a list or loader that can be iterated again."
        )
    means = {member: float(total) / steps for member, total in totals.items()}
    for member, mean in means.items():
        if not math.isfinite(mean):
            raise ModebridgeError(
                f"Expected the training loss of '{member}' to be finite, but got {mean} in epoch {epoch + 1}; "
                "lower the learning rate or check the images."
            )
    return means


def _prepared(objective: Objective, batches: Batches, draws: torch.Generator) -> Iterator[Prepared]:
    """The steps of an epoch, where it pays each prepared on another core while the one before is learned from."""
    if not objective.ahead:
        for batch in batches:
            yield objective.prepare(batch, objective.draw(len(batch[0]), draws))
        return
    with ThreadPoolExecutor(1) as other:
        waiting: Future[Prepared] | None = None
        for batch in batches:
            # Drawn here, in order, so that the numbers do not depend on which thread is faster.
            coming = other.submit(objective.prepare, batch, objective.draw(len(batch[0]), draws))
            if waiting is not None:
                yield waiting.result()
            waiting = coming
        if waiting is not None:
            yield waiting.result()


def _copy(state: State) -> State:
    return State(trees.clone(state.params), trees.clone(state.buffers))


def _detached(states: States) -> States:
    return {
        member: State({name: tensor.detach() for name, tensor in state.params.items()}, state.buffers)
        for member, state in states.items()
    }
