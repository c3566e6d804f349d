"""A random renumbering of a network's units."""

from __future__ import annotations

import torch

from modebridge.alignment import Groups
from modebridge.modes import Mode


def renumbered(mode: Mode, groups: Groups, seed: int = 3) -> Mode:
    """The same function, every group of units in a random order."""
    generator = torch.Generator().manual_seed(seed)
    permutations = {}
    for number, group in groups.groups.items():
        count = 1 if group.outer is None else groups.groups[group.outer].size
        rows = torch.stack([torch.randperm(group.size, generator=generator) for _ in range(count)])
        permutations[number] = rows[0] if group.outer is None else rows
    return Mode(groups.permute(mode.params, permutations), groups.permute(mode.buffers, permutations))
