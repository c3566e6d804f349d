"""Modes that were trained elsewhere, for a run that starts from them."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from modebridge.data.weights import load_modes
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.runs.artefact_files import read_artefact
from modebridge.runs.sealed_records import Damage

__all__ = ["find_modes"]


def find_modes(net: nn.Module, place: Path) -> list[Mode]:
    """At least two different modes out of a folder, or out of one file that holds several.

    Args:
        net: the network of the run.
        place: files of weights, the `modes` folder of another run, or a file; see `load_modes`.
    """
    if not place.exists():
        raise ModebridgeError(f"Expected '{place}' to be a folder with the weights of modes, but there is none.")
    for notes in sorted(place.glob("*/meta.json")):
        _check(notes.parent)
    modes = load_modes(net, place)
    if len(modes) < 2:
        raise ModebridgeError(
            f"Expected at least 2 modes in '{place}', but got {len(modes)}; a curve needs two, so add a file."
        )
    if len({mode.id for mode in modes}) < len(modes):
        raise ModebridgeError("Expected the modes to differ, but two files hold the same weights; give each once.")
    return modes


def _check(folder: Path) -> None:
    """Refuse a damaged mode of another run: its weights may well load."""
    try:
        read_artefact(folder)
    except Damage as damage:
        raise ModebridgeError(
            f"Expected '{folder}' to be a mode of a run, but it is damaged ({damage}); make it again by that run, or "
            "copy it again."
        ) from None
