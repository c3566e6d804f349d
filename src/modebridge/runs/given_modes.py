"""Modes that were trained elsewhere, for a run that starts from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from modebridge.data.weights import load_modes
from modebridge.errors import ModebridgeError
from modebridge.members import ModeWeights
from modebridge.modes import Mode
from modebridge.runs.artefact_files import read_artefact
from modebridge.runs.folder import RunFolder
from modebridge.runs.sealed_records import Damage

__all__ = ["find_modes", "keys_of_given"]


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


def keys_of_given(
    folder: RunFolder, numbers: Iterable[int], meta: Callable[[str], Mapping[str, Any]]
) -> dict[str, str]:
    """The keys of modes that an earlier run in a folder was given; one that is lost cannot be made again.

    Args:
        folder: of the run.
        numbers: of the modes to look at.
        meta: how to look: `folder.meta` verifies weights, `folder.peek` does not.
    """
    keys: dict[str, str] = {}
    for mode in (ModeWeights(k) for k in numbers):
        metadata = meta(mode.place)
        if metadata.get("from") == "elsewhere":
            keys[mode.place] = metadata["key"]
        elif folder.files.was_given(mode.name):
            reason = "another is in its place" if metadata else folder.damage.get(mode.place, "it is missing")
            raise ModebridgeError(
                f"Expected '{folder.path / mode.place}' to be the mode that the run was given, but {reason}; it was "
                "not trained here and cannot be made again, so give it again with --modes."
            )
    return keys


def _check(folder: Path) -> None:
    """Refuse a damaged mode of another run: its weights may well load."""
    try:
        read_artefact(folder)
    except Damage as damage:
        raise ModebridgeError(
            f"Expected '{folder}' to be a mode of a run, but it is damaged ({damage}); make it again by that run, or "
            "copy it again."
        ) from None
