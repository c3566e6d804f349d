"""One object of each kind that can be stored, small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import modebridge as mb
from modebridge.bridges import Bridge, Heads, ResidualBody, TokenBody, VectorBody, body_for, body_like
from tests.scenarios import TINY, modes, tiny_net


class Own(nn.Module):
    """A body of a user's own, with a tied pair of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16, bias=False)
        self.second = nn.Linear(16, 16, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(16, 3)

    def forward(self, feature: Tensor) -> Tensor:
        return self.head(self.second(self.first(feature.mean((2, 3)))))


def batch(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(5)).to(dtype)


def bridge(norm: str = "frn", kind: str = "I", **options: Any) -> Bridge:
    """On the tap before the last three blocks, where the feature is (8, 8, 8)."""
    body = body_like(tiny_net(norm=norm).spec, kind, 2, seed=3, **options)
    return Bridge(body, modes(1 if kind == "I" else 2, norm), "layers.1", 0.25, "small", 0.1)


BODIES: dict[str, Callable[[], nn.Module]] = {
    "residual": lambda: body_like(TINY, "I", seed=0),
    "bottleneck": lambda: body_for((512, 8, 8), 3, "I", seed=0),
    "sequence": lambda: body_for((8, 64), 3, "I", layout="sequence", seed=0),
    "channels last": lambda: body_for((8, 8, 8), 3, "I", layout="map, channels last", norm="frn", seed=0),
    "tokens": lambda: TokenBody(8, 4, 3, blocks=1, generator=torch.Generator().manual_seed(0)),
    "vector": lambda: VectorBody(8, 1, 3, torch.Generator().manual_seed(0), layout="map"),
    "heads": lambda: Heads(ResidualBody(8, [(4, 2), (4, 1)], 6, norm="frn"), 2),
}

FEATURES = {"bottleneck": (2, 512, 8, 8), "sequence": (2, 8, 64), "channels last": (2, 8, 8, 8), "tokens": (2, 5, 8)}


def ensemble(norm: str = "frn", mean: str = "probability") -> mb.Ensemble:
    """Two modes, a type I bridge with two heads on two taps, and a type II bridge; calibrated."""
    net, ends = tiny_net(norm=norm), modes(2, norm)
    body = Heads(ResidualBody(16, [(4, 1)], 6, norm="bn", generator=torch.Generator().manual_seed(1)), 2)
    two_taps = Bridge(body, ends[1:], ["layers.0", "layers.1"], None, "two", heads=2)
    whole = mb.Ensemble(net, ends, [two_taps, bridge(norm, "II")], mean=mean)
    whole.temperature.fill_(1.37)
    whole._fitted.fill_(True)
    return whole
