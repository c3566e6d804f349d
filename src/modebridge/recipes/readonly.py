"""A run folder that may be read and not written: a finished one on a shared or archived disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from modebridge.errors import ModebridgeError
from modebridge.recipes.folder import RunFolder

__all__ = ["ReadOnlyFolder"]


class ReadOnlyFolder(RunFolder):
    """Gives what is there; what is missing is refused before it is trained, since it could not be kept.

    Args:
        path: the folder, which exists.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, writes=False)

    def checkpoints(self, kind: str, name: str, key: str) -> NoReturn:
        """Called before anything is trained."""
        self._refuse(kind, name)

    def keep(self, kind: str, name: str, *_: Any, **__: Any) -> NoReturn:
        """Called where something is made without training."""
        self._refuse(kind, name)

    def _refuse(self, kind: str, name: str) -> NoReturn:
        raise ModebridgeError(
            f"Expected to write to '{self.path}', which lacks {kind} {name}, but the folder is read-only; copy it, or "
            "choose another with --out."
        )
