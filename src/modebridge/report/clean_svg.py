"""Removes everything but shapes, text and pixels from figures that come from files.

A run folder may come from anyone, and the page inlines its figures to give them the colors of the page, so a script in
a figure would be a script of the page. Only the elements and attributes that our own figures use are kept.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

__all__ = ["clean_svg"]

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ELEMENTS = frozenset(
    {"svg", "g", "defs", "clipPath", "path", "rect", "use", "text", "tspan", "image", "style", "title"}
)
STYLES = frozenset({"*{stroke-linejoin: round; stroke-linecap: butt}"})
"""The one that matplotlib writes; a style sheet inside a figure would apply to the whole page."""
PROPERTIES = frozenset(
    {
        *("fill", "fill-opacity", "fill-rule", "opacity", "clip-path", "paint-order"),
        *("font", "font-size", "font-family", "font-style", "font-weight", "text-anchor"),
        *("stroke", "stroke-width", "stroke-opacity", "stroke-linecap", "stroke-linejoin"),
        *("stroke-dasharray", "stroke-dashoffset", "stroke-miterlimit"),
    }
)
_NUMBERS = re.compile(r"[\w\s.,()+%-]*")
_WORDS = re.compile(r"[\w\s#.,%+'()-]*")
_ATTRIBUTES = {
    **dict.fromkeys(("d", "x", "y", "width", "height", "viewBox", "version", "transform"), _NUMBERS),
    "id": re.compile(r"[\w-]+-\d+"),
    "clip-path": re.compile(r"url\(#[\w-]+\)"),
    "type": re.compile("text/css"),
    "role": re.compile("img"),
    "aria-label": re.compile(r"[^<>]*"),
    f"{{{XLINK}}}href": re.compile(r"#[\w-]+|data:image/png;base64,[\w\s+/=]*"),
}


def clean_svg(text: str) -> str:
    """The figure with only its shapes, text and pixels; empty if the text is not a figure.

    >>> clean_svg('<svg xmlns="http://www.w3.org/2000/svg" onload="f()"><script>f()</script><g id="a-1"/></svg>')
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"><g id="a-1" /></svg>'
    """
    if "<!" in text:  # entities, which can grow without limit; comments, which our figures do not have
        return ""
    try:
        root = ET.fromstring(text)
        if root.tag != f"{{{SVG}}}svg":
            return ""
        clean = _clean(root)
        clean.attrib = {"xmlns": SVG, "xmlns:xlink": XLINK, **clean.attrib}
        return ET.tostring(clean, encoding="unicode")
    except (ET.ParseError, ValueError, RecursionError):
        return ""


def _clean(element: ET.Element) -> ET.Element:
    clean = ET.Element(element.tag.removeprefix(f"{{{SVG}}}"))
    clean.text, clean.tail = element.text, element.tail
    for name, value in element.attrib.items():
        if name == "style":
            clean.set(name, _declarations(value))
        elif name in _ATTRIBUTES and _ATTRIBUTES[name].fullmatch(value):
            clean.set(name.replace(f"{{{XLINK}}}", "xlink:"), value)
    if clean.tag == "title":  # HTML to the parser of the page: plain text only
        return clean
    for child in element:
        known = child.tag.startswith(f"{{{SVG}}}") and child.tag.removeprefix(f"{{{SVG}}}") in ELEMENTS
        if known and (not child.tag.endswith("}style") or child.text in STYLES):
            clean.append(_clean(child))
    return clean


def _declarations(style: str) -> str:
    kept = []
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name in PROPERTIES and _WORDS.fullmatch(value) and "url" not in value.lower().replace("url(#", ""):
            kept.append(f"{name}: {value}")
    return "; ".join(kept)
