"""Execute the tutorials; what was executed before is taken from a cache.

python tools/docs/execution.py                  # notebooks/*.ipynb again, with their outputs
python tools/docs/execution.py --check FILE     # execute a notebook as it is, and print what it prints
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cells import INK, NOTEBOOKS, ROOT, TUTORIALS, as_notebook, as_page, kept_outputs, parse, to_json

__all__ = ["execute", "executed", "pages"]

CACHE = ROOT / ".work" / "docs" / "executed"
LONGEST = 600
"""Seconds that a cell may take."""

SETUP = f"""
import sys, matplotlib
sys.path.append({str(ROOT / "tests")!r})
import torchvision_on_cpu
torchvision_on_cpu.mend()
del sys.path[-1]
matplotlib.rcParams.update({{
    "svg.fonttype": "none", "svg.hashsalt": "modebridge", "font.size": 9, "axes.grid": True, "grid.alpha": 0.25,
    "axes.spines.top": False, "axes.spines.right": False, "figure.facecolor": "#ffffff", "axes.facecolor": "none",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), {INK!r}),
    "grid.color": "#8a8f98",
    "axes.prop_cycle": matplotlib.cycler(color=["#e07b39", "#3b82c4", "#3fa56b", "#a05bc4"]),
}})
%config InlineBackend.figure_formats = ["svg", "png"]
%config InlineBackend.print_figure_kwargs = {{"bbox_inches": None, "metadata": {{"Date": None, "Creator": None}}}}
"""
"""Run before the first cell and not shown: the looks of figures, and torchvision beside the CPU build of torch."""


def execute(notebook: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Run all cells in an empty folder, and say how many seconds it took; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    node = nbformat.reads(json.dumps(notebook), as_version=4)
    node.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
        client = NotebookClient(
            node,
            timeout=LONGEST,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    del node.cells[0]
    return json.loads(nbformat.writes(node)), time.perf_counter() - start


def executed(name: str) -> tuple[dict[str, Any], float]:
    """A tutorial, executed now or before with the same code and the same library."""
    notebook = as_notebook(name, parse(TUTORIALS[name].read_text()))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    place = CACHE / f"{name}-{_key([cell['source'] for cell in code])}.json"
    if not place.exists():
        print(f"Executing {name} ...", flush=True)
        made, seconds = execute(notebook)
        for old in CACHE.glob(f"{name}-*.json"):
            old.unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps([made, seconds]))
    made, seconds = json.loads(place.read_text())
    ran = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    for cell, done in zip(code, ran, strict=True):
        cell["outputs"], cell["execution_count"] = done["outputs"], done["execution_count"]
    return notebook, seconds


def every(names: Iterable[str]) -> dict[str, tuple[dict[str, Any], float]]:
    """Several tutorials, two at a time."""
    _prepare()
    names = list(names)
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(executed, names), strict=True))


def pages() -> dict[str, str]:
    """The pages of all tutorials, by their path in docs/."""
    made = {}
    done = every(TUTORIALS)
    import torch  # behind `every`, which names the library of this folder

    import modebridge

    for name, (notebook, seconds) in done.items():
        note = (
            f"Executed in {seconds:.0f} s when this site was built, with modebridge {modebridge.__version__} and "
            f"torch {torch.__version__.partition('+')[0]} on a CPU. Also as a [notebook](../../notebooks/{name}.ipynb)."
        )
        made[f"tutorials/{name}.md"] = as_page(name, notebook, note)
    return made


def _prepare() -> None:
    """The environment of the kernels: this Python's programs first, one thread each, the library of this folder."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    sys.path.insert(0, str(ROOT / "src"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["COLUMNS"], os.environ["TERM"], os.environ["NO_COLOR"] = "100", "dumb", "1"
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"


def _key(code: list[str]) -> str:
    """A hash of what the outputs depend on."""
    key = hashlib.sha256(json.dumps([*code, SETUP]).encode())
    for path in sorted((ROOT / "src" / "modebridge").rglob("*.py")):
        key.update(path.read_bytes())
    return key.hexdigest()[:16]


def main() -> None:
    """Write the committed notebooks, or check one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=Path, metavar="FILE", help="execute this notebook and print its text outputs")
    file = parser.parse_args().check
    if file is None:
        for name, (notebook, _) in every(NOTEBOOKS).items():
            NOTEBOOKS[name].parent.mkdir(exist_ok=True)
            NOTEBOOKS[name].write_text(to_json(notebook))
        return
    _prepare()
    notebook, seconds = execute(json.loads(file.read_text()))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            print("".join(output.get("text", "") for output in kept_outputs(cell)), end="")
    print(f"{file.name}: {seconds:.0f} s")


if __name__ == "__main__":
    main()
