"""Trained networks that are only asked: nothing that is called on them, or around them, changes them."""

from __future__ import annotations

from typing import Self

from torch import nn

from modebridge.errors import ModebridgeError
from modebridge.guards.untouched import tracing

__all__ = ["Predictor"]


class Predictor(nn.Module):
    """A module whose parts stay in evaluation mode, as those of a frozen backbone do.

    `train()` sets its own flag alone, so it may be part of a larger module that is trained: batch norm inside keeps its
    running statistics, and dropout stays off. Gradients pass through as ever.

    >>> part = Predictor()
    >>> part.inner = nn.BatchNorm1d(2)
    >>> whole = nn.Sequential(part, nn.Linear(2, 3)).train()
    >>> part.training, part.inner.training, whole[1].training
    (True, False, True)
    """

    def train(self, mode: bool = True) -> Self:
        """Set the flag `training`; the parts go to evaluation mode whatever it is."""
        super().train(False)
        self.training = mode
        return self

    def check_evaluating(self) -> None:
        """Refuse a part that was put in training mode by itself and would change its buffers when it runs.

        Layers without buffers may be in it: dropout that stays on is a way to draw from a network.
        """
        if tracing():  # the statistics are constants of the graph, or there is an error of the tracer's own
            return
        for part in self._keepers:
            if part.training:
                name = next((name for name, module in self.named_modules() if module is part), type(part).__name__)
                raise ModebridgeError(
                    f"Expected the networks of {type(self).__name__} to be in evaluation mode, but '{name}' was put in "
                    "training mode and would change its running statistics; call eval() on the whole."
                )

    @property
    def _keepers(self) -> list[nn.Module]:
        """The layers with buffers; looked for once, since big networks have hundreds of others."""
        keepers: list[nn.Module] | None = self.__dict__.get("_kept")
        if keepers is None:
            keepers = [module for module in self.modules() if module is not self and module._buffers]
            self.__dict__["_kept"] = keepers
        return keepers
