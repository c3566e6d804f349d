"""Trained networks for prediction only: nothing that is called on them, or around them, changes them."""

from __future__ import annotations

from functools import cached_property
from typing import Self

from torch import nn

from modebridge.errors import ModebridgeError
from modebridge.guards.without_side_effects import tracing

__all__ = ["EvaluationOnly"]


class EvaluationOnly(nn.Module):
    """A module whose submodules stay in evaluation mode, like a frozen backbone.

    `train()` sets only its own flag, so it can be part of a larger module that is trained: batch norm inside keeps its
    running statistics, and dropout stays off. Gradients pass through as usual.

    >>> part = EvaluationOnly()
    >>> part.inner = nn.BatchNorm1d(2)
    >>> whole = nn.Sequential(part, nn.Linear(2, 3)).train()
    >>> part.training, part.inner.training, whole[1].training
    (True, False, True)
    """

    def train(self, mode: bool = True) -> Self:
        """Set the flag `training`; the submodules always go to evaluation mode."""
        super().train(False)
        self.training = mode
        return self

    def check_evaluating(self) -> None:
        """Raise an error if a submodule was put in training mode separately and would change its buffers.

        Layers without buffers may be in training mode: active dropout is a way to sample from a network.
        """
        if tracing():  # the statistics are constants of the graph, or the tracer raises its own error
            return
        for layer in self._with_buffers:
            if layer.training:
                name = next((name for name, module in self.named_modules() if module is layer), type(layer).__name__)
                raise ModebridgeError(
                    f"Expected the networks of {type(self).__name__} to be in evaluation mode, but '{name}' was put in "
                    "training mode and would change its running statistics; call eval() on the whole module."
                )

    @cached_property
    def _with_buffers(self) -> list[nn.Module]:
        """The layers with buffers; found once, since big networks have hundreds of others."""
        return [module for module in self.modules() if module is not self and module._buffers]
