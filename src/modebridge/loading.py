"""`modebridge.load`: load a saved object from a folder or the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from modebridge.bridges import Bridge
from modebridge.curves import BezierCurve, Polychain
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.files import Given, Storable, find_folder, read_folder
from modebridge.files.stored_folder import Place
from modebridge.modes import Mode

__all__ = ["KINDS", "load"]

KINDS: dict[str, type[Storable]] = {cls.stored_as: cls for cls in (Mode, BezierCurve, Polychain, Bridge, Ensemble)}
"""Classes that files may name."""


def load(
    place: Place, *, revision: str | None = None, net: nn.Module | None = None, bodies: Sequence[nn.Module] = ()
) -> Any:
    """Load what `save`, `save_pretrained` or `push_to_hub` wrote: a mode, curve, bridge or ensemble, on the CPU.

    Only data is read: no pickle, and no code from a file is run. A damaged or modified folder is refused.

    Args:
        place: a folder, or "OWNER/NAME" on the Hugging Face Hub (extra `hub`); a path that exists takes precedence.
        revision: a branch, tag or commit on the hub.
        net: network of an ensemble whose architecture is a custom module, of which only the weights are stored.
        bodies: custom bodies of bridges, one per such bridge.

    >>> import tempfile
    >>> mode = Mode.from_module(nn.Linear(2, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mode.save(f"{folder}/mode")
    ...     again = load(f"{folder}/mode")
    >>> again.id == mode.id
    True
    """
    given = Given.checked(net, bodies)
    folder = find_folder(place, revision)
    parts = read_folder(folder)
    if parts.kind not in KINDS:
        raise ModebridgeError(
            f"Expected '{place}' to hold one of {', '.join(KINDS)}, but got '{parts.kind[:80]}'; install a newer "
            "modebridge."
        )
    return KINDS[parts.kind].restored(parts, given, folder)
