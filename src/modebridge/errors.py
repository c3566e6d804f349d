"""The one exception that a user's mistake raises, and the sentences that recur.

Every message has the same shape: what was expected of which thing, what was got, the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["ModebridgeError", "near"]


class ModebridgeError(ValueError):
    """Something a caller can mend: the message names the thing, the rule and the way out."""


def near(name: str, known: Iterable[str], most: int = 5) -> str:
    """The known names closest to `name`, as a phrase for the end of an error.

    >>> near("layers.21", ["layers.1", "layers.2", "head"])
    'near ones: layers.2, layers.1'
    >>> near("zzz", [])
    'there are none'
    """
    names = list(known)
    if not names:
        return "there are none"
    found = difflib.get_close_matches(name, names, n=most, cutoff=0.4) or names[:most]
    return "near ones: " + ", ".join(found)
