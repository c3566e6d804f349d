"""The cache folder, for things that can always be recomputed: compiled programs, decoded images."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["VARIABLE", "cache_folder"]

VARIABLE = "MODEBRIDGE_CACHE"
"""Environment variable with the cache folder to use instead of ~/.cache/modebridge; empty turns caching off."""


def cache_folder(*parts: str) -> Path | None:
    """A folder in the cache, created if needed; None if caching is off or it is not writable."""
    given = os.environ.get(VARIABLE)
    if given == "":
        return None
    try:
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "modebridge"
        folder = (Path(given) if given else user).joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # read-only, full, or a user without a home
        return None
    return folder if os.access(folder, os.W_OK) else None
