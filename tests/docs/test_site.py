"""The site and the notebooks: what can be checked without building them (`make docs` builds, strictly)."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import modebridge

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools" / "docs"
NOTEBOOKS = ("adapters", "checkpoints", "digits", "finetunes", "segmentation", "serve")


@pytest.fixture
def tool(monkeypatch):
    """Import a module of tools/docs."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return import_module


def read(name):
    return json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """The sources of the site, with tutorials that were not executed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        cells, staging, commands = (import_module(name) for name in ("cells", "staging", "commands"))
    pages = {
        f"tutorials/{name}.md": cells.as_page(name, cells.as_notebook(name, cells.parse(path.read_text())), "note")
        for name, path in cells.TUTORIALS.items()
    }
    pages["reference/cli.md"] = commands.command_page()
    folder = tmp_path_factory.mktemp("site") / "source"
    staging.stage(folder, pages)
    return folder


def test_drawings_are_those_of_their_code(tool):
    figures = tool("figures")
    assert {path.stem for path in figures.FOLDER.glob("*.svg")} == figures.FIGURES.keys()
    for name, draw in figures.FIGURES.items():
        assert (figures.FOLDER / f"{name}.svg").read_text() == draw().svg(), "python tools/docs/figures.py"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_have_the_code_of_the_tutorials(tool, name):
    cells = tool("cells")
    assert tuple(cells.NOTEBOOKS) == NOTEBOOKS
    tutorial = json.loads(cells.to_json(cells.as_notebook(name, cells.parse(cells.TUTORIALS[name].read_text()))))
    committed = read(name)
    for cell in committed["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    assert committed == tutorial, "make notebooks"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_were_executed_and_their_pictures_have_words(name):
    cells = read(name)["cells"]
    words = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    for address in re.findall(r"\]\(([^)#:]+)[^):]*\)", words):
        assert (ROOT / "notebooks" / address).exists()
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(2, len(code) + 2))  # the first was the hidden one
    pictures = 0
    for output in (output for cell in code for output in cell["outputs"]):
        assert output["output_type"] != "error"
        if "image/png" in output.get("data", {}):
            pictures += 1
            assert len(output["metadata"]["image/png"]["alt"]) > 20
        assert not re.search(r"/(home|root|tmp|work|usr)/", json.dumps(output.get("text", output.get("data", {}))))
    assert pictures == sum("alt" in cell["metadata"] for cell in code)


def test_pages_are_filled_in(staged):
    """What is taken from the code and from README.md is there; a name that is gone fails in `stage`."""
    for page in staged.rglob("*.md"):
        assert not re.search(r"<!-- (source|readme)", page.read_text()), page
    assert "def bernstein(" in (staged / "concepts" / "curve.md").read_text()
    assert "| two networks | x2.00 |" in (staged / "index.md").read_text()
    reference = "".join(page.read_text() for page in (staged / "reference").glob("*.md"))
    assert "| `--set` KEY=VALUE |" in reference
    assert "](tutorials/digits.md)" in (staged / "index.md").read_text(), "a tutorial's script is its page on the site"
    for name in modebridge.__all__:
        assert name.startswith("_") or re.search(rf"heading: mb\.{name}\n", reference), name


def test_every_concept_has_an_equation_a_figure_and_code():
    for page in (ROOT / "docs" / "concepts").glob("*.md"):
        text = page.read_text()
        if page.name != "index.md":
            assert re.search(r"^\$\$.+\$\$$", text, re.MULTILINE), page
            assert re.search(r"!\[[^\]]{20,}\]\(\.\./figures/[\w-]+\.svg\)", text), page
            assert "<!-- source: modebridge." in text, page
            assert "](../reference/" in text, page


def test_a_site_with_mistakes_is_refused(tool, tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#no">b</a><a href="c.html">c</a><a href="#top">fine</a>'
        '<a href="https://example.org">fine</a><img src="x.png"><script src="https://example.org/x.js"></script>'
        "<p>Words:\n- one</p>"
    )
    (tmp_path / "b.html").write_text('<a href="a.html#top">fine</a>')
    (tmp_path / "x.png").touch()
    assert list(tool("links").problems(tmp_path)) == [
        "a.html: Markdown took a list or table for text: '- one</p>'; put an empty line before it",
        "a.html: 'x.png' has no alternative text",
        "a.html: loads https://example.org/x.js over the network",
        "a.html: b.html#no names an anchor that is not on the page",
        "a.html: c.html leads nowhere",
    ]


def test_docstrings_become_markdown(tool):
    pytest.importorskip("griffe", reason="needs the extra docs")
    as_markdown = tool("docstrings").as_markdown
    assert as_markdown("Of :math:`r`:\n\n.. math:: a = b,\n    c\n\nEnd.") == "Of $r$:\n\n$$\na = b,\n    c\n$$\n\nEnd."
    assert as_markdown("Words.\n\n>>> f(\n... 1)\n2\n\nMore.") == "Words.\n\n```pycon\n>>> f(\n... 1)\n2\n```\n\nMore."


def test_formulas_become_mathml(tool):
    pytest.importorskip("latex2mathml", reason="needs the extra docs")
    markdown = pytest.importorskip("markdown", reason="needs the extra docs")
    html = markdown.markdown(
        "At $r^2$, not `$x$` or 5 $ and 6 $.\n\n$$\\frac{1}{2}$$", extensions=[tool("mathml").MathExtension()]
    )
    assert html.count("<math") == 2
    assert "<code>$x$</code>" in html
    assert "5 $ and 6 $" in html
    with pytest.raises(ValueError, match="does not understand"):
        tool("mathml").mathml(r"\nosuchcommand{x}")


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name):
    pytest.importorskip("nbclient", reason="needs the extra docs")
    file = ROOT / "notebooks" / f"{name}.ipynb"
    done = subprocess.run(
        [sys.executable, str(TOOLS / "execution.py"), "--check", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "one network" in done.stdout or "one adapter" in done.stdout
