"""Augmentation of a whole batch at once, on any device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["crop_and_flip"]


def crop_and_flip(images: Tensor, down: Tensor, across: Tensor, mirrored: Tensor, pad: int) -> Tensor:
    """Zero-pad, crop to the original size at given positions, and mirror some of the images.

    Args:
        images: (B, C, H, W).
        down: (B,), number of padded rows above the crop, 0 to 2 * pad.
        across: (B,), the same for columns.
        mirrored: (B,) booleans.
        pad: pixels on each side.
    """
    count, channels, height, width = images.shape
    rows = down.view(-1, 1) + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(count, width)
    columns = across.view(-1, 1) + torch.where(mirrored.view(-1, 1), width - 1 - columns, columns)
    padded = F.pad(images, (pad, pad, pad, pad))
    numbers = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    planes = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return padded[numbers, planes, rows.view(count, 1, height, 1), columns.view(count, 1, 1, width)]
