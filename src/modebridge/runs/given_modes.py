"""Modes trained elsewhere, for a run that starts from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from modebridge.errors import ModebridgeError
from modebridge.files import load_checkpoints
from modebridge.members import ModeWeights, key_of
from modebridge.modes import Mode
from modebridge.runs.folder import RunFolder
from modebridge.runs.plan import Store
from modebridge.runs.sealed_records import Damage, read_artefact

__all__ = ["find_modes", "given_modes_of", "keys_of_given"]


def find_modes(net: nn.Module, place: Path) -> list[Mode]:
    """At least two different modes from a folder, or from one file that holds several.

    Args:
        net: the network of the run.
        place: weight files, the `modes` folder of another run, or a file; see `load_checkpoints`.
    """
    if not place.exists():
        raise ModebridgeError(f"Expected '{place}' to be a folder with the weights of modes, but it does not exist.")
    for metadata_file in sorted(place.glob("*/meta.json")):
        try:
            read_artefact(metadata_file.parent)
        except Damage as damage:  # its weights might still load
            raise ModebridgeError(
                f"Expected '{metadata_file.parent}' to be a mode of a run, but it is damaged ({damage}); recreate it "
                "with that run, or copy it again."
            ) from None
    modes = load_checkpoints(net, place)
    if len(modes) < 2:
        raise ModebridgeError(
            f"Expected at least 2 modes in '{place}', but got {len(modes)}; a curve needs two, so add a file."
        )
    if len({mode.id for mode in modes}) < len(modes):
        raise ModebridgeError("Expected the modes to differ, but two files hold the same weights; use each only once.")
    return modes


def keys_of_given(folder: RunFolder | None, store: Store, modes: int, given: Mapping[int, str]) -> dict[str, str]:
    """The keys of modes that were trained elsewhere: those passed now, and those passed to an earlier run.

    Args:
        folder: the folder of the run, if it has one; a mode that was lost in it cannot be recreated.
        store: what exists in it, with or without verified weights.
        modes: number of modes.
        given: ids of the modes passed now, by number.
    """
    keys = {ModeWeights(k).place: key_of("given", id) for k, id in given.items()}
    for mode in (ModeWeights(k) for k in range(modes) if k not in given):
        metadata = store.meta(mode.place)
        if metadata.get("from") == "elsewhere":
            keys[mode.place] = metadata["key"]
        elif folder is not None and folder.files.was_given(mode.name):
            reason = "it was replaced by another" if metadata else folder.damage.get(mode.place, "it is missing")
            raise ModebridgeError(
                f"Expected '{folder.path / mode.place}' to be the mode that was passed to the run, but {reason}; it "
                "was not trained here and cannot be recreated, so pass it again with --modes."
            )
    return keys


def given_modes_of(folder: RunFolder, modes: int) -> int:
    """The number of first modes that were passed to the run, and need no training."""
    given = [folder.peek(ModeWeights(k).place).get("from") == "elsewhere" for k in range(modes)]
    return given.index(False) if False in given else modes
