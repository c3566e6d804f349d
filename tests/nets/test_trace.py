"""Which submodules count as the blocks of a network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modebridge.nets import find_taps


class Branches(nn.Module):
    """A block of two branches that are lists themselves, as GoogLeNet's."""

    def __init__(self, width):
        super().__init__()
        self.one, self.two = (nn.Sequential(Layer(width), Layer(width)) for _ in range(2))

    def forward(self, x):
        return self.one(x) + self.two(x)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return self.conv(x).relu()


class Stage(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.blocks = nn.Sequential(*[Layer(width) for _ in range(count)])

    def forward(self, x):
        return self.blocks(x)


class Added(Stage):
    """Looks like a stage, but adds its shortcut in place: it is a block."""

    def forward(self, x):
        y = self.blocks(x)
        y += x
        return y


def with_head(*parts):
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("parts", "blocks"),
    [
        ([Stage(4, 2), Stage(4, 1)], ["0.blocks.0", "0.blocks.1", "1.blocks.0"]),
        ([Added(4, 2), Added(4, 2)], ["0", "1"]),
        ([Branches(4), Branches(4)], ["0", "1"]),
        ([Layer(4)], []),
        ([nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())], ["0", "1"]),
    ],
)
def test_blocks_are_what_is_repeated(parts, blocks):
    seen = find_taps(with_head(*parts), torch.rand(1, 4, 6, 6))
    assert [tap.name for tap in seen.taps if tap.block] == blocks
    assert all(not tap.inner for tap in seen.taps if tap.block)
    inside = [tap for tap in seen.taps if any(tap.name.startswith(f"{block}.") for block in blocks)]
    assert all(tap.inner for tap in inside)
