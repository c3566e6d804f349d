"""The paper's residual networks: one class, one spec per data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError, near
from modebridge.nets.blocks import BasicBlock, Block, BottleneckBlock, Norm, Padding, conv, initialise, make_norm

LAST_BLOCKS = 3
"""Number of blocks after the tap of the paper's bridges."""


@dataclass(frozen=True)
class ResNetSpec:
    """The configuration of a residual network.

    Args:
        image: (C, H, W) of the input, floats in [0, 1].
        classes: number of classes K.
        stages: blocks per stage; the first stage has stride 1, every later one starts with stride 2.
        widths: planes per stage.
        stem: channels, kernel and stride of the first convolution.
        pool: whether a 3x3 max-pool of stride 2 follows the stem.
        block: "basic" or "bottleneck".
        bias: whether convolutions have a bias.
        padding: "same" or "half", see `blocks.conv`.
        mean: mean per channel, subtracted inside the network, so that mixup acts on pixels.
        std: standard deviation per channel, divided by inside the network.
        norm: "frn" or "bn".
    """

    image: tuple[int, int, int]
    classes: int
    stages: tuple[int, ...]
    widths: tuple[int, ...]
    stem: tuple[int, int, int]
    pool: bool
    block: Literal["basic", "bottleneck"]
    bias: bool
    padding: Padding
    mean: tuple[float, ...]
    std: tuple[float, ...]
    norm: Norm = "frn"

    def __post_init__(self) -> None:
        if len(self.stages) != len(self.widths) or not self.stages:
            raise ModebridgeError(
                f"Expected one width per stage, but got {len(self.stages)} stages and "
                f"{len(self.widths)} widths; give both the same length."
            )
        if not len(self.mean) == len(self.std) == self.image[0]:
            raise ModebridgeError(
                f"Expected one mean and std per channel of {self.image[0]}, but got {len(self.mean)} and "
                f"{len(self.std)}; give one number per channel."
            )

    @property
    def depth(self) -> int:
        """Number of blocks; `layers.{depth}` is the last one."""
        return sum(self.stages)

    def block_type(self) -> type[Block]:
        return BottleneckBlock if self.block == "bottleneck" else BasicBlock

    def blocks(self) -> Iterator[tuple[int, int]]:
        """(planes, stride) of every block, first to last; one by one, since a hostile file may ask for millions."""
        return (
            (width, 2 if stage > 0 and k == 0 else 1)
            for stage, (count, width) in enumerate(zip(self.stages, self.widths, strict=True))
            for k in range(count)
        )


class ResNet(nn.Module):
    """A post-activation residual network with SiLU.

    `layers[0]` is the stem (with its pool) and `layers[k]` is block k, so the paper's "layer 12" is the tap
    "layers.12".

    >>> net = resnet("digits", seed=0)
    >>> net(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: ResNetSpec, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.spec = spec
        # Not persistent: constants of the data set, not trained values of a checkpoint.
        self.register_buffer("mean", torch.tensor(spec.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(-1, 1, 1), persistent=False)
        channels, kernel, stride = spec.stem
        stem: list[nn.Module] = [
            conv(spec.image[0], channels, kernel, stride, bias=spec.bias, padding=spec.padding),
            make_norm(spec.norm, channels),
            nn.SiLU(),
        ]
        if spec.pool:
            stem.append(nn.MaxPool2d(3, 2, 1))
        layers: list[nn.Module] = [nn.Sequential(*stem)]
        block = spec.block_type()
        for planes, block_stride in spec.blocks():
            layers.append(block(channels, planes, block_stride, spec.norm, bias=spec.bias, padding=spec.padding))
            channels = planes * block.expansion
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, spec.classes)
        initialise(self, generator)
        # Channels last is the faster memory format for convolutions, on CPUs and GPUs.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def paper_tap(self) -> str | None:
        """The tap of the paper's bridges; None if there are fewer than the three blocks that follow it."""
        return last_blocks_tap(self.spec) if self.spec.depth >= LAST_BLOCKS else None

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W) in [0, 1]."""
        x = (images - self.mean) / self.std
        x = self.pool(self.layers(x)).flatten(1)
        return self.head(x)  # type: ignore[no-any-return]


_CIFAR = ResNetSpec(
    image=(3, 32, 32),
    classes=10,
    stages=(5, 5, 5),
    widths=(32, 64, 128),
    stem=(16, 3, 1),
    pool=False,
    block="basic",
    bias=True,
    padding="same",
    mean=(0.49, 0.48, 0.44),
    std=(0.2, 0.2, 0.2),
)

_TINY = ResNetSpec(
    image=(3, 64, 64),
    classes=200,
    stages=(3, 4, 6, 3),
    widths=(64, 128, 256, 512),
    stem=(64, 3, 1),
    pool=False,
    block="basic",
    bias=False,
    padding="half",
    mean=(0.4802, 0.4481, 0.3976),
    std=(0.2770, 0.2691, 0.2822),
)

SPECS: dict[str, ResNetSpec] = {
    "cifar10": _CIFAR,
    "cifar100": replace(
        _CIFAR,
        classes=100,
        widths=(64, 128, 256),
        mean=(0.5072, 0.4866, 0.4410),
        std=(0.2673, 0.2564, 0.2760),
    ),
    "tin200": _TINY,
    "in1k": replace(
        _TINY,
        image=(3, 224, 224),
        classes=1000,
        stem=(64, 7, 2),
        pool=True,
        block="bottleneck",
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    ),
    # Ours, for the demo: wide enough for low-loss curves, small enough for two CPU cores.
    "digits": replace(_CIFAR, image=(1, 8, 8), stages=(1, 1, 3), widths=(16, 32, 64), mean=(0.3,), std=(0.4,)),
}
"""Network spec per data set: the paper's four, and a small one for 8x8 digits."""


def last_blocks_tap(spec: ResNetSpec) -> str:
    """The tap for a bridge built like the last three blocks: the output of the block before them.

    >>> last_blocks_tap(SPECS["cifar10"]), last_blocks_tap(SPECS["in1k"])
    ('layers.12', 'layers.13')
    """
    if spec.depth < LAST_BLOCKS:
        raise ModebridgeError(
            f"Expected a network of the {LAST_BLOCKS} blocks that bridges copy, but got {spec.depth}; use a deeper one."
        )
    return f"layers.{spec.depth - LAST_BLOCKS}"


def spec_of(name: str, norm: Norm = "frn", classes: int | None = None) -> ResNetSpec:
    """The spec called `name`, optionally with another norm or number of classes."""
    if name not in SPECS:
        raise ModebridgeError(f"Expected the network to be a known name, but got '{name}'; {near(name, SPECS)}")
    spec = SPECS[name]
    return replace(spec, norm=norm, classes=spec.classes if classes is None else classes)


def resnet(name: str, norm: Norm = "frn", classes: int | None = None, seed: int | None = None) -> ResNet:
    """A newly initialized network of the paper (or "digits").

    Args:
        name: "cifar10" (ResNet-32x2), "cifar100" (32x4), "tin200" (34), "in1k" (50) or "digits".
        norm: "frn" or "bn".
        classes: number of classes; None for the data set's.
        seed: seed of the weights; None draws from torch's global generator.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return ResNet(spec_of(name, norm, classes), generator)
