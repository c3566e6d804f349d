"""What networks draw by themselves while they learn (dropout, stochastic depth), from seeds of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from modebridge import seeds

__all__ = ["Noise"]


class Noise:
    """Puts torch's own generators at a seed for the length of a step, and back where they were.

    The seed is made of names and of the step's place in the run. So a step draws the same whatever is trained beside
    it, whatever the caller has drawn before, and also where a run goes on from a checkpoint. What is captured in a
    CUDA graph draws from a state of its own (`state`), which is put to the step's seed before each replay.

    The generators are everybody's: threads whose networks draw take turns. Whether a network draws is looked at in its
    first step of every epoch; one that does not waits for nobody.

    Args:
        device: where the network learns.
        seed: of the task.
        names: what this is the noise of.
    """

    def __init__(self, device: torch.device, seed: int, *names: str | int) -> None:
        self._device = device
        self._seed = seed
        self._names = names
        self._place = (0, 0)
        self._looked: int | None = None
        self.draws = False
        self.state = torch.Generator(device) if device.type == "cuda" else None

    def at(self, epoch: int, number: int) -> None:
        """Go to a step, by its epoch and its number there."""
        self._place = (epoch, number)

    def reset(self) -> None:
        """Put the state that a captured graph draws from to the seed of the present step."""
        if self.state is not None and self.draws:
            self.state.manual_seed(self._now)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """For the length of this all that draws, draws from the seed of the present step."""
        if self.state is not None and torch.cuda.is_current_stream_capturing():
            # Nothing may be read or seeded now; the rehearsal has seen whether it draws.
            with self._lent():
                yield
            return
        look = self._looked != self._place[0]
        if not (look or self.draws):
            yield
            return
        with seeds.borrowed(self._now, self._device) as drawn:
            yield
            if look:
                self._looked = self._place[0]
                self.draws = self.draws or drawn()

    @property
    def _now(self) -> int:
        return seeds.seed_for(self._seed, "noise", *self._names, *self._place)

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """The GPU's default generator at our state while a graph is captured, if anything will be drawn."""
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
