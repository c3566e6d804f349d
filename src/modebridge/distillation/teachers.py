"""Teachers: frozen networks and ensembles, each run once per batch however many students use it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from modebridge.bridges import Compile, FanOut, FrozenNetworks, in_turn
from modebridge.ensembles import Ensemble
from modebridge.modes import Mode
from modebridge.nets import probabilities_of
from modebridge.types import Inputs

__all__ = ["Teacher", "Teachers"]

Teacher: TypeAlias = Mode | Ensemble
"""A network, or an ensemble, each of whose members counts as one teacher."""


class Teachers:
    """Several teachers on one device.

    Args:
        net: the architecture of the teachers that are modes, on the device.
        teachers: all teachers; duplicates run once.
        compiled: compiles their forward pass, if the engine supports it.
        fan_out: runs them in parallel, if the engine supports it.
    """

    def __init__(
        self,
        net: nn.Module,
        teachers: Sequence[Teacher],
        *,
        compiled: Compile = lambda function: function,
        fan_out: FanOut = in_turn,
    ) -> None:
        device = next((tensor.device for tensor in net.state_dict().values()), torch.device("cpu"))
        modes = {mode.id: mode for mode in teachers if isinstance(mode, Mode)}
        self._modes = FrozenNetworks(net, list(modes.values()), compiled=compiled, fan_out=fan_out)
        # Copies, so that the caller's ensemble stays on its device.
        self._ensembles = {
            id(teacher): compiled(copy.deepcopy(teacher).to(device).members)
            for teacher in teachers
            if isinstance(teacher, Ensemble)
        }

    def ask(self, images: Inputs) -> Mapping[str | int, Tensor]:
        """The probabilities (M, B, K) of every teacher: M is 1 for a mode, the number of members for an ensemble."""
        of_modes: dict[str | int, Tensor] = {
            key: probabilities_of(logits)[None] for key, (logits, _) in self._modes(images).items()
        }
        return of_modes | {key: members(images) for key, members in self._ensembles.items()}

    @staticmethod
    def of(answers: Mapping[str | int, Tensor], teachers: Sequence[Teacher]) -> Tensor:
        """The concatenated probabilities (M, B, K) of some teachers, from the result of `ask`."""
        keys = [teacher.id if isinstance(teacher, Mode) else id(teacher) for teacher in teachers]
        return torch.cat([answers[key] for key in keys])
