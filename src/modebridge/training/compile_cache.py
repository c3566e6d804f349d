"""Compiled programs kept between processes: the second run with the same shapes starts in seconds."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import torch

from modebridge.caches import cache_folder

__all__ = ["keep_compiled"]

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch.compile keeps kernels and graphs; by default a temporary folder that is lost on reboot."""


def keep_compiled(device: torch.device) -> str | None:
    """Make torch.compile keep its results in the user's cache directory, one folder per torch version and card.

    Returns the folder, or None if torch's default is used. A folder chosen by the user is kept.
    """
    chosen = os.environ.get(VARIABLE)
    # Torch writes its own default into the variable on first use; that is not the user's choice.
    if chosen and not Path(chosen).name.startswith("torchinductor_"):
        return chosen
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    folder = cache_folder("compiled", re.sub(r"[^\w.+-]+", "-", f"torch-{torch.__version__} {card}"))
    if folder is None:
        return None
    os.environ[VARIABLE] = str(folder)
    return str(folder)
