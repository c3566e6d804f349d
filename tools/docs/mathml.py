r"""Mathematics as MathML, which browsers draw themselves: no script, no font, no network.

A Python-Markdown extension: `$x$` inside a line, `$$x$$` on lines of its own. GitHub understands the same marks.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

__all__ = ["MathExtension", "makeExtension", "mathml"]

INLINE = r"(?<![\\$\w])\$(?=[^\s$])([^$\n]*?[^\s\\$])\$(?![\w$])"
SPACED = {
    "<mi>&#x0007E;</mi>": "<mo>&#x0223C;</mo>",
    "<mi>:</mi>": "<mo>:</mo>",
    "<mi>log</mi>": '<mi>log</mi><mspace width="0.17em" />',
}
"""What latex2mathml writes as letters or without space: "is distributed as", "such that", the logarithm."""
DISPLAY = re.compile(r"^\$\$(.+?)\$\$[ ]*$", re.MULTILINE | re.DOTALL)


def mathml(latex: str, *, display: bool = False) -> str:
    """One formula as MathML."""
    # latex2mathml does not know a large double bar.
    plain = re.sub(r"\\[bB]igg?[lr]?(?=\\\|)", "", " ".join(latex.split()))
    math: str = convert(plain, display="block" if display else "inline")
    for given, better in SPACED.items():
        math = math.replace(given, better)
    if "\\" in re.sub(r"<[^>]*>", "", math):
        raise ValueError(f"latex2mathml does not understand a command in {latex!r}")
    return math


class _Inline(InlineProcessor):
    def handleMatch(self, match: re.Match[str], data: str) -> tuple[str | Element | None, int | None, int | None]:  # noqa: N802
        return self.md.htmlStash.store(mathml(match[1])), match.start(0), match.end(0)


class _Display(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        def stored(match: re.Match[str]) -> str:
            block = f'<div class="formula">{mathml(match[1], display=True)}</div>'
            return f"\n\n{self.md.htmlStash.store(block)}\n\n"

        return DISPLAY.sub(stored, "\n".join(lines)).split("\n")


class MathExtension(Extension):
    """Both kinds of formulas."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register them: behind code, which may hold dollars, and before escapes, which would eat backslashes."""
        md.preprocessors.register(_Display(md), "math-display", 24)
        md.inlinePatterns.register(_Inline(INLINE, md), "math-inline", 185)


def makeExtension(**options: Any) -> MathExtension:  # noqa: N802
    """What Markdown asks for by the module's name."""
    return MathExtension(**options)
