"""The exception for user errors, and helpers for its messages.

Every message has the same form: what was expected of which thing, what was given, how to fix it.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path

ANSI = re.compile(r"\x1b\[[0-9;]*m")


SHOWN = 12
"""Names that an error lists all."""


class ModebridgeError(ValueError):
    """An error that the caller can fix; the message names the thing, the rule and the fix."""


def near(name: str, known: Iterable[str], most: int = 5) -> str:
    """The known names closest to `name`, as the end of an error message, with its full stop or question mark.

    >>> near("layers.21", ["layers.1", "layers.2", "head"])
    'did you mean layers.1 or layers.2?'
    >>> near("mode0", ["mode-0", "mode-1"])
    'did you mean mode-0?'
    >>> near("xyz", ["one", "two"]), near("xyz", [])
    ('choose one of one, two.', 'there are none.')
    """
    names = list(known)
    if not names:
        return "there are none."
    ratios = {one: difflib.SequenceMatcher(None, name, one).ratio() for one in names}
    least = max(0.4, max(ratios.values()) - 0.15)
    close = sorted((one for one in names if ratios[one] >= least), key=lambda one: -ratios[one])[:most]
    if not close and len(names) == 1:
        return f"use {names[0]}."
    if not close:
        shown = names if len(names) <= SHOWN else names[:most]
        more = f" and {len(names) - most} more" if len(shown) < len(names) else ""
        return f"choose one of {', '.join(shown)}{more}."
    return f"did you mean {' or '.join(filter(None, (', '.join(close[:-1]), close[-1])))}?"


def some(names: Sequence[str]) -> str:
    """Three names in quotes, and how many more there are; an empty name is the top of a checkpoint.

    >>> some(["a", "b", "c", "d"])
    "'a', 'b', 'c' and 1 more"
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" if name else "the top" for name in names[:3]) + more


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Rows of texts as lines with aligned columns, of which the first ones start at the left.

    >>> aligned([["", "cost"], ["one", "1"]])
    ['     cost', 'one     1']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = "<" * left + ">" * (len(widths) - left)
    return ["  ".join(map("{:{}{}}".format, row, sides, widths)).rstrip() for row in rows]


def plural(count: float, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "core"), plural(2, "core")
    ('1 core', '2 cores')
    """
    number = f"{count:g}" if isinstance(count, float) else str(count)
    return f"{number} {noun}" if count == 1 else f"{number} {noun}s"


def install(extra: str) -> str:
    """The command that installs an extra beside this program: from its clone, or else the packages themselves."""
    own = Path(sys.executable)
    activated = shutil.which("pip") == str(own.with_name("pip"))
    pip = "pip" if activated else f"{os.path.relpath(own) if own.is_relative_to(Path.cwd()) else own} -m pip"
    if (clone := Path(__file__).parents[2] / "pyproject.toml").is_file():
        return f"{pip} install -e '{os.path.relpath(clone.parent)}[{extra}]'"
    wanted = [one.partition(";")[0] for one in requires("modebridge") or () if re.search(rf"extra == .{extra}\b", one)]
    return " ".join([pip, "install", *(f"'{one.strip()}'" for one in wanted)])


def advice_for(error: Exception, usual: str) -> str:
    """What to do about inputs that a network does not take."""
    named = "name the tensors of a dict as the arguments of the network, or yield pairs (images, labels)"
    return named if "unexpected keyword argument" in str(error) else usual


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Turn the failed import of an optional package into a sentence that says how to install it.

    >>> with needed("Pillow to read image files", "images"):
    ...     from PIL import Image
    """
    try:
        yield
    except ImportError as error:
        raise ModebridgeError(
            f"Expected {what}, but {error.name or 'it'} is not installed; {install(extra)}."
        ) from error


def first_line(error: BaseException, most: int = 200) -> str:
    r"""The first line of another library's exception, shortened; its type if the message is empty.

    >>> first_line(RuntimeError("\n  shapes differ\nat line 3")), first_line(AssertionError())
    ('shapes differ', 'AssertionError')
    """
    lines = (line.strip() for line in ANSI.sub("", str(error)).splitlines())
    text = next((line for line in lines if line), type(error).__name__)
    return text if len(text) <= most else f"{text[:most]}..."


@contextmanager
def quoting(
    expected: str, fix: str, kinds: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Iterator[None]:
    """Turn errors of other code into one of ours that quotes their first line.

    >>> with quoting("the share to be a number", "use another one"):
    ...     1 / 0
    Traceback (most recent call last):
    modebridge.errors.ModebridgeError: Expected the share to be a number, but got 'division by zero'; use another one.
    """
    try:
        yield
    except ModebridgeError:
        raise
    except kinds as error:
        raise ModebridgeError(f"Expected {expected}, but got '{first_line(error)}'; {fix}.") from error
