"""Figures from files: ours come through as they are, nothing else does."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from modebridge.report import lines_figure
from modebridge.report.clean_svg import clean_svg

KEPT = sorted((Path(__file__).parents[2] / "results").rglob("figure.svg"))
HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


def tree(text):
    """The figure with its style attributes spaced alike."""

    def spaced(found):
        return f'style="{"; ".join(re.split(r"; *", found[1].strip("; ")))}"'

    return ET.canonicalize(re.sub(r'style="([^"]*)"', spaced, text))


def test_our_own_figures_are_unchanged():
    drawn = lines_figure("x", "what it shows", "r", [("NLL", {"a": ([0.0, 1.0], [2.0, 3.0])})])
    texts = [drawn, *(file.read_text(encoding="utf-8") for file in KEPT)]
    assert len(texts) > 1
    for text in texts:
        assert tree(clean_svg(text)) == tree(text)


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        '<g onclick="alert(1)"/>',
        "<foreignObject><body xmlns='http://www.w3.org/1999/xhtml'><script>alert(1)</script></body></foreignObject>",
        '<a xlink:href="javascript:alert(1)"><text>x</text></a>',
        '<use xlink:href="javascript:alert(1)"/>',
        '<use xlink:href="https://example.org/x.svg#a"/>',
        '<use href="data:image/svg+xml,alert"/>',
        '<image xlink:href="data:image/svg+xml;base64,alert"/>',
        '<image xlink:href="https://example.org/alert.png"/>',
        "<style>* {background: url(https://example.org/alert)}</style>",
        '<g style="fill: url(https://example.org/alert)"/>',
        '<g style="fill: URL(//example.org/alert)"/>',
        '<g style="background: alert"/>',
        '<set attributeName="href" to="javascript:alert(1)"/>',
        '<animate attributeName="href" values="javascript:alert(1)"/>',
        "<script xmlns='http://www.w3.org/1999/xhtml'>alert(1)</script>",
        '<g id="results">alert</g>',
        '<title><a xlink:href="javascript:alert(1)">x</a></title>',
        "<title><style>* {background: url(https://example.org/alert)}</style></title>",
    ],
)
def test_nothing_but_a_picture_comes_through(inside):
    clean = clean_svg(f'{HEAD} onload="alert(1)">{inside}<path d="M 0 0"/></svg>')
    assert '<path d="M 0 0" />' in clean
    for word in ("javascript", "script", "example", "onload", "onclick", "url", "URL", "svg+xml", "results"):
        assert word not in clean
    # Text stays text.
    for element in ("text", "title"):
        assert "<script" not in clean_svg(f"{HEAD}><{element}>&lt;script&gt;</{element}></svg>")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no figure",
        "<svg>",
        "<svg/>",
        "<html><script>alert(1)</script></html>",
        '<!DOCTYPE svg [<!ENTITY a "aaaa">]>' + HEAD + "><text>&a;</text></svg>",
        f"{HEAD}><![CDATA[<script>alert(1)</script>]]></svg>",
        f"{HEAD}>" + "<g>" * 20_000 + "</g>" * 20_000 + "</svg>",
        "\x00",
        "\ufffd\x1b",
    ],
)
def test_what_is_no_figure_is_left_out(text):
    assert clean_svg(text) == ""
