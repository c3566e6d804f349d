"""Designs of small networks beside a frozen one: where they read, what they are made of, what they may cost.

`benchmarks/one_network.py` trains them by name. "default" is the library's, one wide block on the paper's tap; "early"
ones are ten inverted residuals (MobileNetV2) on the first stage, as in diffusion bridge networks (Kim et al., 2024)
without the diffusion; "stem" reads the first convolution alone; "logits" ones correct the base's logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from modebridge.bridges import Bridge, Target
from modebridge.bridges.bodies import Heads
from modebridge.bridges.budget import body_within, counted_body
from modebridge.bridges.build import build_bridge
from modebridge.members import Setting
from modebridge.modes import Mode
from modebridge.nets import Norm, ResNet, initialise
from modebridge.nets.blocks import make_norm
from modebridge.nets.flops import feature_shapes

EXPANSION = 4
STAGES = ((1, 3), (2, 4), (4, 3))
"""Width, relative to the first, and number of blocks at each size."""


class InvertedResidual(nn.Module):
    """A wide depthwise convolution between two 1x1 convolutions, with a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        wide = EXPANSION * inputs
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, wide, 1, bias=False), make_norm(norm, wide), nn.SiLU()),
            *(depthwise, make_norm(norm, wide), nn.SiLU()),
            *(nn.Conv2d(wide, outputs, 1, bias=False), make_norm(norm, outputs)),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class EarlyBody(nn.Module):
    """Ten inverted residuals on an early map, halved three times; a `late` map of a quarter of its size joins them."""

    def __init__(
        self,
        width: int,
        inputs: int,
        classes: int,
        norm: Norm,
        late: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        channels = inputs
        for stage, (factor, count) in enumerate(STAGES):
            channels += late if stage == len(STAGES) - 1 else 0
            blocks = []
            for k in range(count):
                blocks.append(InvertedResidual(channels, factor * width, 1 if k else 2, norm))
                channels = factor * width
            self.stages.append(nn.Sequential(*blocks))
        self.head = nn.Linear(channels, classes)
        initialise(self, generator)

    def forward(self, x: Tensor, *late: Tensor) -> Tensor:
        for stage in self.stages[:-1]:
            x = stage(x)
        x = self.stages[-1](torch.cat([x, *late], dim=1))
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class Correction(nn.Module):
    """A body that adds to the base's log probabilities, its last feature, instead of starting over."""

    def __init__(self, body: nn.Module, classes: int) -> None:
        super().__init__()
        self.body, self.scale = body, nn.Parameter(torch.ones(classes))

    def forward(self, *features: Tensor) -> Tensor:
        *read, logits = features
        return self.body(*read) + self.scale * logits.float().log_softmax(dim=-1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Design:
    """One network: its FLOPs relative to the paper's small bridge, where it reads, and its norm.

    The places are the first convolution ("stem"), the first stage ("early") and the paper's tap ("late"); no norm is
    that of the base.
    """

    size: float = 1.0
    reads: tuple[str, ...] = ("late",)
    norm: Norm | None = None
    logits: bool = False


LARGE = 2.75
"""x1.17 on CIFAR-10, as diffusion bridge networks."""
DESIGNS = {
    "default": Design(),
    "2x": Design(2),
    "large": Design(LARGE),
    "bn": Design(norm="bn"),
    "large-bn": Design(LARGE, norm="bn"),
    "logits": Design(logits=True),
    "early-small": Design(1, ("early",), "bn"),
    "early": Design(LARGE, ("early",), "bn"),
    "early-frn": Design(LARGE, ("early",), "frn"),
    "early-logits": Design(LARGE, ("early",), "bn", logits=True),
    "early-late": Design(LARGE, ("early", "late"), "bn"),
    "stem": Design(LARGE, ("stem",), "bn"),
}


def plan(setting: Setting, base: Mode, target: Target, design: Design, name: str, seed: int) -> Bridge:
    """An untrained bridge of a design on a mode."""
    net, outputs = setting.net, setting.facts.classes * target.heads
    assert isinstance(net, ResNet)
    places = {"stem": "layers.0", "early": f"layers.{net.spec.stages[0]}", "late": str(net.paper_tap)}
    small = build_bridge(net, setting.example, [base])
    flops = 1.0001 * design.size * small.flops
    norm, taps = design.norm or net.spec.norm, [places[name] for name in design.reads]
    shapes = list(feature_shapes(net, setting.example, taps).values())
    if design.reads == ("late",):
        body, _ = body_within(shapes[0], "map", outputs, "I", flops, norm=norm, wide=True, seed=seed)
    else:
        late = shapes[1][0] if len(shapes) > 1 else 0
        make = partial(EarlyBody, inputs=shapes[0][0], classes=outputs, norm=norm, late=late)
        width = max(w for w in range(8, 128, 4) if counted_body(partial(make, w), shapes)[1] <= flops)
        body = make(width, generator=torch.Generator().manual_seed(seed))
    body = body if target.heads == 1 else Heads(body, target.heads)
    if design.logits:
        taps, body = [*taps, "head"], Correction(body, setting.facts.classes)
    return build_bridge(net, setting.example, [base], target, tap=taps, body=body, name=name)
