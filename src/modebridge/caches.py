"""Where things are kept between runs that can always be made again: compiled programs, decoded images."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["VARIABLE", "cache_folder"]

VARIABLE = "MODEBRIDGE_CACHE"
"""Names another folder than the user's cache directory; empty turns caching off."""


def cache_folder(*parts: str) -> Path | None:
    """A folder below the user's cache directory, made if need be; None where nothing can or shall be written.

    Args:
        parts: the folder's name, and those of the folders that it is in.
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
