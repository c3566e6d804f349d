"""The cache folder, for things that can always be recomputed: compiled programs, decoded images."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["VARIABLE", "cache_folder"]

VARIABLE = "MODEBRIDGE_CACHE"
"""Environment variable with the cache folder to use instead of the user's; empty turns caching off."""


def cache_folder(*parts: str) -> Path | None:
    """A folder in the user's cache directory, created if needed; None if caching is off or it is not writable.

    Args:
        parts: path components of the folder.
    """
    given = os.environ.get(VARIABLE)
    if given == "":
        return None
    try:
        folder = (Path(given) if given else _user_cache() / "modebridge").joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # read-only, full, or a user without a home
        return None
    return folder if os.access(folder, os.W_OK) else None


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
