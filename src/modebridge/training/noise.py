"""Random numbers that networks draw during training (dropout, stochastic depth), from seeds of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from modebridge import seeds

__all__ = ["Noise"]


class Noise:
    """Sets torch's global generators to a seed during a step, and restores them afterwards.

    The seed depends on names and on the position of the step in the run. So a step draws the same numbers whatever is
    trained next to it, whatever the caller drew before, and after resuming from a checkpoint. A captured CUDA graph
    draws from its own generator (`state`), which is set to the step's seed before each replay.

    The generators are global: threads whose networks draw take turns. Whether a network draws is checked in its first
    step of every epoch; one that does not never waits.

    Args:
        device: the device of the network.
        seed: the seed of the task.
        names: the names that identify this noise.
    """

    def __init__(self, device: torch.device, seed: int, *names: str | int) -> None:
        self._device = device
        self._seed = seed
        self._names = names
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
