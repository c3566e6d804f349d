"""Augmentation of a whole batch at once, on whatever device it is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["crop_and_flip"]


def crop_and_flip(images: Tensor, generator: torch.Generator, *, pad: int, flip: bool) -> Tensor:
    """Zero-pad, crop at random to the old size, and mirror half of the images.

    Args:
        images: (B, C, H, W).
        generator: draws on the CPU, so that the choice does not depend on the device.
        pad: pixels on each side; 0 leaves the position alone.
        flip: whether to mirror left to right.
    """
    count, channels, height, width = images.shape
    down = torch.randint(2 * pad + 1, (count, 1), generator=generator) + torch.arange(height)
    across = torch.randint(2 * pad + 1, (count, 1), generator=generator) + torch.arange(width)
    if flip:
        mirrored = torch.rand((count, 1), generator=generator) < 0.5
        across = torch.where(mirrored, across.flip(1), across)
    padded = F.pad(images, (pad, pad, pad, pad))
    rows = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    planes = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    down, across = down.to(images.device), across.to(images.device)
    return padded[rows, planes, down.view(count, 1, height, 1), across.view(count, 1, 1, width)]
