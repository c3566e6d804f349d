"""Networks from a seed, and a random renumbering of their units."""

from __future__ import annotations

import torch
from torch import nn

from modebridge.alignment import Groups
from modebridge.modes import Mode

METHODS = ("activations", "weights")


def renumbered(mode: Mode, groups: Groups, seed: int = 3) -> Mode:
    """The same function, every group of units in a random order."""
    generator = torch.Generator().manual_seed(seed)
    permutations = {number: torch.randperm(g.size, generator=generator) for number, g in enumerate(groups.groups)}
    return Mode(groups.permute(mode.params, permutations), groups.permute(mode.buffers, permutations))


def seeded(kind, seed: int = 0, **options) -> nn.Module:
    torch.manual_seed(seed)
    return kind(**options).eval()


def pair(kind) -> tuple[nn.Module, Mode, Mode]:
    """A network, and two modes of it."""
    nets = [seeded(kind, seed) for seed in (0, 1)]
    return nets[0], Mode.from_module(nets[0]), Mode.from_module(nets[1])


class Odd(nn.Module):
    """A perceptron with any operation on its hidden units."""

    def __init__(self, operation=torch.relu) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.operation = operation

    def forward(self, x):
        return self.last(self.operation(self.first(x)))
