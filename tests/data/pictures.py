"""Small image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, size: tuple[int, int], seed: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def folder_of_classes(root: Path, classes: int = 3, each: int = 4, ending: str = "png") -> Path:
    for k in range(classes):
        for n in range(each):
            picture(root / f"n{k}" / f"{n}.{ending}", (40 + 8 * k, 36 + 4 * n), seed=10 * k + n)
    return root
