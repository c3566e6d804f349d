"""Tutorials as cells: from the Python files in docs/tutorials to notebooks, and from executed notebooks to pages.

The files are in the percent format that Jupytext and editors know: `# %%` starts a cell of code, `# %% [markdown]` one
of text, and `# %% alt="..."` describes the picture that a cell draws.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["NOTEBOOKS", "TUTORIALS", "Cell", "as_notebook", "as_page", "kept_outputs", "parse", "to_json"]

ROOT = Path(__file__).parents[2]
TUTORIALS = {path.stem: path for path in sorted((ROOT / "docs" / "tutorials").glob("*.py"))}
NOTEBOOKS = {name: ROOT / "notebooks" / f"{name}.ipynb" for name in TUTORIALS}

INK = "#010203"
"""The color of text and axes in figures; on the site it becomes the color of the page."""

HEAD = re.compile(r'^# %%(?: \[(?P<kind>markdown)\])?(?: alt="(?P<alt>[^"]+)")?\s*$')
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Cell:
    """One cell.

    Args:
        kind: text or code.
        source: without comment marks.
        alt: what its picture shows, in words.
    """

    kind: Literal["markdown", "python"]
    source: str
    alt: str = ""


def parse(text: str) -> list[Cell]:
    r"""The cells of a tutorial.

    >>> parse('# %% [markdown]\n# Words\n\n# %%\nx = 1\n')
    [Cell(kind='markdown', source='Words', alt=''), Cell(kind='python', source='x = 1', alt='')]
    """
    cells: list[Cell] = []
    for part in re.split(r"^(?=# %%)", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        match = HEAD.match(head)
        if match is None:
            raise ValueError(f"Expected the head of a cell, but got {head!r}.")
        if match["kind"]:
            body = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.rstrip().split("\n"))
        cells.append(Cell("markdown" if match["kind"] else "python", body.strip("\n"), match["alt"] or ""))
    return cells


def as_notebook(name: str, cells: list[Cell]) -> dict[str, Any]:
    """A notebook (format 4.5) without outputs."""
    made = []
    for k, cell in enumerate(cells):
        shared = {"id": f"{name}-{k}", "metadata": {"alt": cell.alt} if cell.alt else {}, "source": cell.source}
        if cell.kind == "markdown":
            made.append({"cell_type": "markdown", **shared})
        else:
            made.append({"cell_type": "code", **shared, "execution_count": None, "outputs": []})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def kept_outputs(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """What readers see of a cell's outputs: results, printed text and pictures, not progress bars."""
    kept: list[dict[str, Any]] = []
    for output in cell["outputs"]:
        kind = output["output_type"]
        if kind == "stream" and output["name"] == "stdout":
            # An escape may be cut in two where one piece ends and the next begins.
            before = kept.pop()["text"] if kept and kept[-1]["output_type"] == "stream" else ""
            kept.append({**output, "text": ESCAPES.sub("", before + "".join(output["text"]))})
        elif kind == "execute_result" or (kind == "display_data" and "image/png" in output["data"]):
            kept.append(output)
    return kept


def to_json(notebook: dict[str, Any]) -> str:
    """A notebook as it is committed: pictures as PNG with their alternative text, links that hold on GitHub."""
    cells = []
    for cell in notebook["cells"]:
        cell = dict(cell)
        if cell["cell_type"] == "markdown":
            cell["source"] = re.sub(r"\]\(\.\./(?!\.)", "](../docs/", cell["source"])
            cell["source"] = re.sub(r"\]\((\w+)\.md\)", r"](\1.ipynb)", cell["source"])
        else:
            cell["metadata"] = {name: value for name, value in cell["metadata"].items() if name == "alt"}
            cell["outputs"] = [_portable(output, cell["metadata"]) for output in kept_outputs(cell)]
        cell["source"] = cell["source"].splitlines(keepends=True)
        cells.append(cell)
    return json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False) + "\n"


def _portable(output: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    if output["output_type"] == "stream":
        return {**output, "text": output["text"].splitlines(keepends=True)}
    output = {**output, "metadata": {}}
    data = output["data"]
    if "image/png" in data:
        output["data"] = {"image/png": data["image/png"].strip(), "text/plain": [metadata["alt"]]}
        output["metadata"] = {"image/png": {"alt": metadata["alt"]}}
    else:
        output["data"] = {"text/plain": "".join(data["text/plain"]).splitlines(keepends=True)}
    return output


def as_page(name: str, notebook: dict[str, Any], note: str) -> str:
    """An executed notebook as Markdown; `note` stands below its title."""
    parts: list[str] = []
    for k, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            if k == 0:
                title, _, rest = source.partition("\n")
                source = f"{title}\n\n*{note}*\n{rest}"
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for number, output in enumerate(kept_outputs(cell)):
            data = output.get("data", {})
            if "image/svg+xml" in data:
                drawing = _themed("".join(data["image/svg+xml"]), f"{name}-{k}-{number}", cell["metadata"]["alt"])
                parts.append(f'<div class="drawing computed">{drawing}</div>')
            elif "image/png" in data:
                raise ValueError(f"Expected figures of {name} as SVG, but got PNG alone.")
            else:
                text = output["text"] if "text" in output else "".join(data["text/plain"])
                parts.append(f"```{{ .text .output }}\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _themed(svg: str, name: str, alt: str) -> str:
    """A figure of matplotlib in the colors of the page, its inner names different from those of others."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor").replace("fill: #ffffff", "fill: none")
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'(id="|href="#|url\(#)([^")]+)', rf"\g<1>{name}-\2", svg)
    svg = re.sub(r"font: ([\d.]+)px '[^']*'(, [^;\"]*)?", r"font: \1px system-ui, sans-serif", svg)
    described = alt.replace('"', "&quot;")
    return " ".join(svg.replace("<svg ", f'<svg role="img" aria-label="{described}" ', 1).split("\n")).strip()
