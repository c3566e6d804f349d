"""Gather the sources of the site in one folder: docs/, and what its pages link to in the rest of the repository.

Pages are plain Markdown that can be read on GitHub. Three things are filled in here, so that they cannot drift:

    ![words](figures/x.svg)                    the drawing itself, which then takes the colors of the theme, and
                                               x-narrow.svg for phones, if there is one
    <!-- readme: What you get -->              that section of README.md, without its heading
    <!-- source: modebridge.curves:name -->    the code of a function or method, without its docstring
"""

from __future__ import annotations

import ast
import html
import os
import re
import shutil
from pathlib import Path

__all__ = ["ROOT", "stage"]

ROOT = Path(__file__).parents[2]
ELSEWHERE = Path("repository")
"""Where files of the repository outside docs/ are put."""
TEXT = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json", ".txt": ""}
LARGEST = 200_000
"""Bytes of a file that is shown as a page."""

CODE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[ ]*$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)((?:\s+\"[^\"]*\")?\))")
DRAWINGS = re.compile(r"^(?:!\[[^\]]*\]\([^)\s]+\.svg\)\n)+", re.MULTILINE)
"""One or several, on lines of their own."""
DRAWING = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.svg)\)")


def stage(target: Path, pages: dict[str, str]) -> None:
    """Fill an empty folder.

    Args:
        target: the folder; what is in it is removed.
        pages: the text of further pages by their path in docs/: the tutorials, executed.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    _Stage(target, pages).run()


class _Stage:
    def __init__(self, target: Path, pages: dict[str, str]) -> None:
        self._target = target
        self._given = {ROOT / "docs" / name: text for name, text in pages.items()}
        self._todo = [*sorted((ROOT / "docs").rglob("*.md")), *self._given]
        self._todo += [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
        self._seen = set(self._todo)

    def run(self) -> None:
        for extra in ("extra.css", "favicon.svg"):
            shutil.copy(Path(__file__).parent / extra, self._target / extra)
        while self._todo:
            source = self._todo.pop()
            place = self._target / _place(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                place.write_text(self._linked(_listing(source), source, place))
            elif source.suffix == ".md":
                text = self._given[source] if source in self._given else source.read_text()
                place.write_text(self._linked(self._filled(text, source), source.parent, place))
            elif source.suffix in TEXT and source.stat().st_size <= LARGEST:
                code = source.read_text()
                place.write_text(f"# {source.relative_to(ROOT)}\n\n````{TEXT[source.suffix]}\n{code}````\n")
            else:
                shutil.copy(source, place)

    def _filled(self, text: str, source: Path) -> str:
        def drawings(match: re.Match[str]) -> str:
            inner = "".join(_inlined(source.parent / name, words) for words, name in DRAWING.findall(match[0]))
            kind = "drawing plot" if "(plots/" in match[0] or "/plots/" in match[0] else "drawing"
            return f'<div class="{kind}">{inner}</div>\n'

        text = re.sub(r"<!-- readme: (.+?) -->", lambda match: _readme_section(match[1]), text)
        text = DRAWINGS.sub(drawings, text)
        return re.sub(r"<!-- source: ([\w.]+):([\w.]+) -->", lambda m: _source(m[1], m[2]), text)

    def _linked(self, text: str, folder: Path, page: Path) -> str:
        """The text with links, relative to a folder, that hold where the page is put; what they lead to comes along."""

        def moved(match: re.Match[str]) -> str:
            address, mark, anchor = match[2].partition("#")
            if not address or re.match(r"[a-z]+:", address):
                return match[0]
            path = Path(os.path.normpath(folder / address))
            if path not in self._given and not path.exists():
                return match[0]  # the build reports it
            if path == ROOT / "README.md":
                path = ROOT / "docs" / "index.md"
            if path.with_suffix(".md") in self._given:  # a tutorial, which on GitHub is its script
                path = path.with_suffix(".md")
            if path not in self._seen:
                self._seen.add(path)
                self._todo.append(path)
            address = os.path.relpath(self._target / _place(path), page.parent)
            # Only pages have anchors; those of GitHub in other files are lines.
            return f"{match[1]}{address}{mark + anchor if path.suffix == '.md' else ''}{match[3]}"

        parts = CODE.split(text)
        parts[::2] = [LINK.sub(moved, part) for part in parts[::2]]
        return "".join(parts)


def _place(source: Path) -> Path:
    """Where a file of the repository is in the folder."""
    docs = ROOT / "docs"
    if source.is_relative_to(docs):
        return source.relative_to(docs)
    place = ELSEWHERE / source.relative_to(ROOT)
    if source.is_dir():
        return place / "index.md"
    shown = source.suffix in TEXT and source.stat().st_size <= LARGEST
    return place.with_name(place.name + ".md") if shown else place


def _listing(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    lines = [f"- [{path.name}]({path.name})" for path in files]
    return "\n".join([f"# {folder.relative_to(ROOT)}/", "", *lines, ""])


def _inlined(path: Path, words: str) -> str:
    """The drawing, and the one for phones if there is one; extra.css shows one of them."""
    narrow = path.with_name(f"{path.stem}-narrow.svg")
    drawings = {"wide": path.read_text(), "narrow": narrow.read_text()} if narrow.exists() else {"": path.read_text()}
    parts = []
    for kind, drawing in drawings.items():
        described = f'role="img" aria-label="{html.escape(words)}"' + (f' class="{kind}"' if kind else "")
        drawing = re.sub(r"<style>.*?</style>", "", drawing).replace("<svg ", f"<svg {described} ", 1)
        if kind == "narrow":  # both are on one page, so their ids must differ
            drawing = re.sub(r'(\bid="|href="#|url\(#)', r"\1narrow-", drawing)
        parts.append(" ".join(drawing.split("\n")).strip())
    return "".join(parts)


def _readme_section(heading: str) -> str:
    """A section of README.md with its links as a page of docs/ has them."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", (ROOT / "README.md").read_text(), re.M | re.S)
    if section is None:
        raise ValueError(f"Expected README.md to have the section '{heading}', but it does not.")
    return section[1].strip().replace("](docs/", "](")


def _source(module: str, name: str) -> str:
    """The code of a function, class or method with a link to its entry in the reference."""
    path = ROOT / "src" / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    node: ast.AST = ast.parse(path.read_text())
    for part in name.split("."):
        found = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == part
        ]
        if not found:
            raise ValueError(f"Expected {module} to define {name}, but it does not.")
        node = found[-1]
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    if ast.get_docstring(node) is not None:
        node.body = node.body[1:]
    first = node.body[0].lineno if node.body else node.lineno
    lines = path.read_text().splitlines()
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    head_end = _end_of_head(node, lines)
    before = [line for line in lines[head_end : first - 1] if line.strip().startswith("#") and '"""' not in line]
    code = [*lines[start:head_end], *before, *lines[first - 1 : node.end_lineno]]
    indent = len(code[0]) - len(code[0].lstrip())
    body = "\n".join(line[indent:] for line in code)
    return f'```python title="{path.relative_to(ROOT)}"\n{body}\n```'


def _end_of_head(node: ast.FunctionDef | ast.ClassDef, lines: list[str]) -> int:
    """The line behind the signature."""
    row = node.lineno - 1
    while not lines[row].split("#")[0].rstrip().endswith(":"):
        row += 1
    return row + 1
