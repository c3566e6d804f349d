"""What a loop must remember to go on as if it had never stopped, in and out of a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modebridge import trees
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.config import TrainConfig
from modebridge.training.step import Step
from modebridge.types import State

__all__ = ["Position", "Saver", "fingerprint"]

Best = dict[str, tuple[float, State]]


@dataclass(frozen=True)
class Position:
    """A place in a run, between two steps.

    Args:
        epoch: which one, counted from 0; -1 for nowhere.
        draws: the generators' states at its beginning, one a task.
        totals: sums of losses and numbers of batches of the tasks that have finished the epoch.
        count: batches that the task at work has done.
        running: the sum of its losses so far.
    """

    epoch: int = -1
    draws: tuple[Tensor, ...] = ()
    totals: tuple[tuple[Tensor, int], ...] = ()
    count: int = 0
    running: Tensor = field(default_factory=lambda: torch.zeros(0))


def fingerprint(config: TrainConfig, steps: Sequence[Mapping[str, Step]], tasks: Sequence[object], how: str) -> str:
    """A hash of all that makes a run what it is: settings, names, the numbers it starts from, seeds, and how it runs.

    How: the precision, and whether tasks go step by step together or one after another, which a position depends on.
    """
    digest = hashlib.sha256(f"{config} {how} {[getattr(task, 'seed', 0) for task in tasks]}".encode())
    for members in steps:
        for member, step in members.items():
            start = trees.fingerprint({"flat": step.flat.detach()}, step.buffers, step.frozen)
            digest.update(f"{member} {step.layout.key} {start}".encode())
    return digest.hexdigest()


class Saver:
    """Saves steps, positions and best states to checkpoints, and puts them back.

    Args:
        checkpoints: the files.
        identity: of the run, from `fingerprint`.
        steps: by task and member; restored in place.
        draws: the generators, one a task; restored in place.
        best: the best states so far, by task; restored in place.
        writes: whether this process is the one that saves; all of them read.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        identity: str,
        steps: Sequence[Mapping[str, Step]],
        draws: Sequence[torch.Generator],
        best: Sequence[Best],
        *,
        writes: bool = True,
    ) -> None:
        self._checkpoints = checkpoints
        self._identity = identity
        self._steps = steps
        self._draws = draws
        self._best = best
        self._writes = writes

    def save_if_due(self, position: Position) -> None:
        """Save when the time has come."""
        if not self._writes or not self._checkpoints.due():
            return
        tensors: dict[str, Tensor] = {"running": position.running}
        scores: dict[str, float] = {}
        for k, members in enumerate(self._steps):
            tensors[f"draws/{k}"] = position.draws[k]
            for member, step in members.items():
                tensors |= {f"step/{k}/{member}/{name}": tensor for name, tensor in step.tensors().items()}
            for member, (score, state) in self._best[k].items():
                scores[f"{k}/{member}"] = score
                tensors |= {f"best/{k}/{member}/params/{name}": tensor for name, tensor in state.params.items()}
                tensors |= {f"best/{k}/{member}/buffers/{name}": tensor for name, tensor in state.buffers.items()}
        for k, (total, _) in enumerate(position.totals):
            tensors[f"total/{k}"] = total
        notes: dict[str, Any] = {
            "identity": self._identity,
            "epoch": position.epoch,
            "count": position.count,
            "counts": [count for _, count in position.totals],
            "scores": scores,
        }
        self._checkpoints.save(tensors, notes)

    def load(self) -> Position | None:
        """Put everything back as it was saved; None where nothing was."""
        found = self._checkpoints.load(self._identity)
        if found is None:
            return None
        tensors, notes = found
        for k, members in enumerate(self._steps):
            self._draws[k].set_state(tensors[f"draws/{k}"])
            for member, step in members.items():
                step.restore(_below(tensors, f"step/{k}/{member}/"))
                key = f"{k}/{member}"
                if key in notes["scores"]:
                    device = step.flat.device
                    params, buffers = (
                        trees.to(_below(tensors, f"best/{key}/{part}/"), device) for part in ("params", "buffers")
                    )
                    self._best[k][member] = (notes["scores"][key], State(params, buffers, step.frozen))
        totals = tuple((tensors[f"total/{k}"], count) for k, count in enumerate(notes["counts"]))
        draws = tuple(tensors[f"draws/{k}"] for k in range(len(self._steps)))
        return Position(notes["epoch"], draws, totals, notes["count"], tensors["running"])


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
