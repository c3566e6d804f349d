"""A classifier of sequences (B, C, L), as people write them for sound and time series: convolutions along one axis."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Hybrid", "Sound", "sounds"]


class _Block(nn.Module):
    """Two convolutions and a shortcut, whose sum no module makes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(inputs, outputs, 3, stride, 1)
        self.norm = nn.BatchNorm1d(outputs)
        self.conv2 = nn.Conv1d(outputs, outputs, 3, 1, 1)
        self.down = nn.Conv1d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv2(self.norm(self.conv1(x)).relu()) + self.down(x)).relu()


class Sound(nn.Module):
    """A small residual network; it takes any length."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.stem = nn.Conv1d(1, 4, 5, 2, 2)
            self.layers = nn.Sequential(_Block(4, 6, 2), _Block(6, 6, 1), _Block(6, 6, 1))
            self.act = nn.ReLU()
            self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.layers(self.stem(x))).mean(-1))


class _Turned(nn.Module):
    """(B, C, L) to (B, L, C) and back."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Hybrid(nn.Module):
    """Convolutions, then attention, then a convolution, as speech models have them; here as long as it is wide."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 3, 2, 1)
        self.turn = _Turned()
        self.drop = nn.Dropout(0.1)
        self.mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.back = _Turned()
        self.last = nn.Conv1d(8, 8, 3, 1, 1)
        self.act = nn.SiLU()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(self.drop(self.turn(self.conv(x))))
        return self.head(self.act(self.last(self.back(x))).mean(-1))


def sounds(n: int = 12, length: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Waves of three frequencies."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    time = torch.arange(length) * (labels[:, None] + 1.0) / 3
    return (time.sin() + 0.1 * torch.randn(n, length, generator=generator))[:, None], labels
