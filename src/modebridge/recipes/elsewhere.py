"""Modes that were trained elsewhere: state dicts in files, never unpickled beyond plain tensors."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from modebridge.errors import ModebridgeError

__all__ = ["find_modes"]

_ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def find_modes(folder: Path) -> list[dict[str, Tensor]]:
    """The state dicts in a folder, in the order of their names (2 before 10).

    Args:
        folder: files of weights, or the `modes` folder of another run.
    """
    if not folder.is_dir():
        raise ModebridgeError(f"Expected '{folder}' to be a folder with the weights of modes, but there is none.")
    files = [file for file in folder.iterdir() if file.suffix in _ENDINGS]
    files += [place / "weights.safetensors" for place in folder.iterdir() if (place / "weights.safetensors").is_file()]
    files.sort(key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(file))])
    if len(files) < 2:
        raise ModebridgeError(
            f"Expected at least 2 files of weights ({', '.join(_ENDINGS)}) in '{folder}', but got {len(files)}; "
            "a curve needs two modes."
        )
    return [_read(file) for file in files]


def _read(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError, safetensors.SafetensorError) as error:
        raise ModebridgeError(
            f"Expected '{file}' to hold a state dict of plain tensors, but got "
            f"'{(str(error).splitlines() or [type(error).__name__])[0]}'; save it with safetensors, or as "
            "torch.save(net.state_dict(), file)."
        ) from error
    # Training frameworks put the weights one level down.
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ModebridgeError(f"Expected '{file}' to hold a state dict, but got {type(found).__name__}; save that.")
    return {str(name).removeprefix("module."): tensor for name, tensor in found.items()}
