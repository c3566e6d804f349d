"""A few shapes as SVG. Text and lines take the color of the page, so that drawings work in the light and dark theme."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence

__all__ = ["AMBER", "BLUE", "GREEN", "GREY", "Drawing"]

BLUE, AMBER, GREEN, GREY = "#3b82c4", "#e07b39", "#3fa56b", "#8a8f98"
"""Readable on white and on black."""

STYLE = "<style>svg{color:#24292f}@media (prefers-color-scheme:dark){svg{color:#d7dbe0}}</style>"
"""For a drawing shown by itself, as on GitHub; the site removes it and the drawing takes the color of the page."""

Point = tuple[float, float]


class Drawing:
    """An SVG under construction.

    Args:
        name: prefix of the ids inside, which must differ between drawings on one page.
        width: in units of about one pixel.
        height: the same.
    """

    def __init__(self, name: str, width: int, height: int) -> None:
        self._name, self._size = name, (width, height)
        self._parts: list[str] = []
        self._arrows: dict[str, str] = {}

    def line(self, points: Sequence[Point], color: str = "currentColor", width: float = 1.5, dash: str = "") -> None:
        """A line through points."""
        path = " ".join(f"{'M' if k == 0 else 'L'}{x:g} {y:g}" for k, (x, y) in enumerate(points))
        self.path(path, color, width, dash)

    def path(self, data: str, color: str = "currentColor", width: float = 1.5, dash: str = "", end: str = "") -> None:
        """A path as SVG writes it."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(f'<path d="{data}" fill="none" stroke="{color}" stroke-width="{width:g}"{dashed}{end}/>')

    def plot(self, function: Callable[[float], float], frame: Sequence[float], color: str, width: float = 2) -> None:
        """A function on [0, 1] with values in [0, 1], in a frame (left, top, width, height)."""
        left, top, wide, high = frame
        steps = [k / 60 for k in range(61)]
        points = [(round(left + wide * s, 1), round(top + high * (1 - function(s)), 1)) for s in steps]
        self.line(points, color, width)

    def arrow(self, points: Sequence[Point], color: str = "currentColor", width: float = 1.5, dash: str = "") -> None:
        """A line through points with a head at its end."""
        key = self._arrows.setdefault(color, f"{self._name}-arrow-{len(self._arrows)}")
        path = " ".join(f"{'M' if k == 0 else 'L'}{x:g} {y:g}" for k, (x, y) in enumerate(points))
        self.path(path, color, width, dash, f' marker-end="url(#{key})"')

    def dot(self, x: float, y: float, color: str = "currentColor", radius: float = 5) -> None:
        """A filled circle."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{color}"/>')

    def ring(
        self, x: float, y: float, rx: float, ry: float, color: str = GREY, turn: float = 0, fill: float = 0
    ) -> None:
        """An ellipse."""
        turned = f' transform="rotate({turn:g} {x:g} {y:g})"' if turn else ""
        self._parts.append(
            f'<ellipse cx="{x:g}" cy="{y:g}" rx="{rx:g}" ry="{ry:g}" fill="{color}" fill-opacity="{fill:g}" '
            f'stroke="{color}" stroke-opacity="0.6"{turned}/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """A filled rectangle."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{color}"/>')

    def box(self, x: float, y: float, width: float, height: float, label: str = "", color: str = GREY) -> None:
        """A rounded box with a label in its middle."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{color}" '
            f'fill-opacity="0.16" stroke="{color}" stroke-width="1.5"/>'
        )
        lines = label.split("\n") if label else []
        for k, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 5 + 17 * (k - (len(lines) - 1) / 2), line, "middle")

    def text(self, x: float, y: float, words: str, anchor: str = "start", color: str = "", size: int = 14) -> None:
        """Words; a letter or word behind an underscore is a subscript."""
        parts = re.split(r"_(\w+)", words)
        inner = html.escape(parts[0])
        for sub, rest in zip(parts[1::2], parts[2::2], strict=True):
            back = html.escape(rest) or "&#8203;"
            inner += f'<tspan dy="4" font-size="{size - 4}">{sub}</tspan><tspan dy="-4">{back}</tspan>'
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{color or "currentColor"}">'
            f"{inner}</text>"
        )

    def svg(self) -> str:
        """The whole drawing."""
        width, height = self._size
        markers = "".join(
            f'<marker id="{key}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{color}"/></marker>'
            for color, key in self._arrows.items()
        )
        defs = f"<defs>{markers}</defs>\n" if markers else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="system-ui, sans-serif">{STYLE}\n{defs}' + "\n".join(self._parts) + "\n</svg>\n"
        )
