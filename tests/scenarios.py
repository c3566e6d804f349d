"""Small problems shared by the tests: a toy network, toy data, a few modes; short ways to train them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.bridges import Bridge
from modebridge.data import ImageSet, Loader
from modebridge.modes import Mode
from modebridge.nets import ResNet, ResNetSpec
from modebridge.objectives import StudentPlan
from modebridge.training import TrainConfig, fit_many, fit_modes, fresh_mode
from modebridge.training.config import DEFAULT

TINY = ResNetSpec(
    image=(1, 8, 8),
    classes=3,
    stages=(1, 3),
    widths=(8, 16),
    stem=(8, 3, 1),  # at least 8: fewer corrupt memory on maps of 8 x 8 too, see modebridge.nets.quirks
    pool=False,
    block="basic",
    bias=True,
    padding="same",
    mean=(0.3,),
    std=(0.4,),
)


EXACT = torch.float64
"""Where two ways to one number are compared: float32 rounds differently on other CPUs, and training makes it grow."""


def tiny_net(seed: int = 0, norm: str = "frn", dtype: torch.dtype = torch.float32) -> ResNet:
    return ResNet(replace(TINY, norm=norm), torch.Generator().manual_seed(seed)).to(dtype)


def blobs(n: int = 24, seed: int = 0, dtype: torch.dtype = torch.float32) -> ImageSet:
    """Three classes of noisy stripes that a small network learns in a few steps."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    images = 0.3 * torch.rand(n, 1, 8, 8, generator=generator)
    for k in range(3):
        images[labels == k, :, 2 * k : 2 * k + 2] += 0.6
    return ImageSet(images.to(dtype), labels, 3)


def loader(n: int = 24, batch_size: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32) -> Loader:
    return Loader(blobs(n, seed, dtype), batch_size, shuffle=True, seed=seed)


def modes(count: int, norm: str = "frn", dtype: torch.dtype = torch.float32) -> list[Mode]:
    return [Mode.from_module(tiny_net(seed, norm, dtype)) for seed in range(count)]


def quick(epochs: int = 2, **kwargs: object) -> TrainConfig:
    return TrainConfig(epochs=epochs, lr=0.05, warmup=1, keep="last", **kwargs)  # type: ignore[arg-type]


class Vectors(nn.Module):
    """A classifier on vectors with a tied pair of weights, to stand for any module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def fit_mode(net, train, config=DEFAULT, **options: Any) -> Mode:
    return fit_modes([net], [train], config, **options)[0]


def fit_bridges(
    net, bridges: Mapping[str, Bridge], train, config=DEFAULT, *, mixup=None, cutmix=None, valid=None
) -> dict[str, Bridge]:
    return fit_many(net, bridges, train, replace(config, mixup=mixup, cutmix=cutmix), valid=valid)


def plan_student(net, teachers, *, start=None, seed=0, **options: Any) -> StudentPlan:
    return StudentPlan(net, start or fresh_mode(net, seed), tuple(teachers), **options)


def on_threads(job, count) -> list[Any]:
    """The results of a job on several threads at once."""
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(job) for _ in range(count)]]
