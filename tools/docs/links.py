"""Check a built site: every link, anchor and picture is there, and no page loads anything over the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["problems"]

LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}
"""Tags that fetch what they name as soon as a page is opened."""
QUIET_LINKS = {"canonical", "prev", "next", "alternate", "edit"}
"""Links in the head that are only named, not fetched."""
UNREAD = re.compile(r"<p>[^<]*\n((?:[-*] |\|).*)")
"""A line of a paragraph that was meant to begin a list or a table."""


class _Page(HTMLParser):
    """The anchors of a page and what it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.unnamed: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        named = tag == "link" and set(values.get("rel", "").split()) & QUIET_LINKS
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif LOADED.get(tag) in values and not named:
            self.loads.append(values[LOADED[tag]])
        if (tag == "img" and not values.get("alt")) or (
            tag == "svg" and values.get("role") == "img" and not values.get("aria-label")
        ):
            self.unnamed.append(values.get("src", "a drawing"))


def problems(site: Path) -> Iterator[str]:
    """One sentence per dead link, picture without words, list taken for text, and thing fetched from elsewhere."""
    site = site.resolve()
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for words in UNREAD.findall(path.read_text()):
            yield f"{name}: Markdown took a list or table for text: '{words[:60].strip()}'; put an empty line before it"
        for picture in page.unnamed:
            yield f"{name}: '{picture[:60]}' has no alternative text"
        for address in page.loads:
            if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
                yield f"{name}: loads {address} over the network"
        for address in (*page.links, *page.loads):
            why = _wrong(address, path, pages, site)
            if why and path.name != "404.html":
                yield f"{name}: {address} {why}"
    for style in site.rglob("*.css"):
        for address in re.findall(r"url\(([^)]*)\)", style.read_text()):
            if address.strip("\"'").startswith(("http", "//")):
                yield f"{style.relative_to(site)}: loads {address} over the network"


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def _wrong(address: str, source: Path, pages: dict[Path, _Page], site: Path) -> str:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc or not address:
        return ""
    target = source if not parts.path else (source.parent / unquote(parts.path)).resolve()
    if parts.path.startswith("/"):
        target = site / unquote(parts.path).lstrip("/")
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "leads nowhere"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
        return "names an anchor that is not on the page"
    return ""
