"""The exception for user errors, and helpers for its messages.

Every message has the same form: what was expected of which thing, what was given, how to fix it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["ModebridgeError", "first_line", "near"]

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class ModebridgeError(ValueError):
    """An error that the caller can fix; the message names the thing, the rule and the fix."""


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
    close = difflib.get_close_matches(name, names, n=most, cutoff=0.4) or names[:most]
    return "near ones: " + ", ".join(close)


def first_line(error: BaseException, most: int = 200) -> str:
    r"""The first line of another library's exception, shortened; its type if the message is empty.

    >>> first_line(RuntimeError("\n  shapes differ\nat line 3")), first_line(AssertionError())
    ('shapes differ', 'AssertionError')
    """
    lines = (line.strip() for line in ANSI.sub("", str(error)).splitlines())
    text = next((line for line in lines if line), type(error).__name__)
    return text if len(text) <= most else f"{text[:most]}..."
