"""Docstrings for the reference: formulas and examples in the form that the site's Markdown knows.

A Griffe extension. In the code a formula is written as Sphinx writes it, `:math:` and `.. math::`, and an example as
doctest runs it.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Docstrings", "as_markdown"]

DISPLAY = re.compile(r"^\.\. math::(?P<first>[^\n]*)(?P<more>(?:\n[ ]+\S[^\n]*)*)", re.MULTILINE)
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def as_markdown(text: str) -> str:
    r"""The text of a docstring as Markdown.

    >>> as_markdown("The mean :math:`\\bar p`.\n\n>>> 1 + 1\n2")
    'The mean $\\bar p$.\n\n```pycon\n>>> 1 + 1\n2\n```'
    """
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = DISPLAY.sub(lambda match: f"$$\n{match['first'].strip()}{match['more']}\n$$", text)
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)


class Docstrings(griffe.Extension):
    """Rewrites every docstring as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Called once for every object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
