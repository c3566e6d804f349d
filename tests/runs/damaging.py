"""A run folder with every kind of file, and what the program says and shows when one of them is damaged."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from modebridge.cli import run as run_module, show, terminal
from modebridge.errors import ModebridgeError
from modebridge.report import Cell, Column, PageData, StudyPart, StudyTable
from modebridge.runs import RunFolder, results as results_module
from modebridge.scoring import LogitTable, logit_table, resampled_means, table
from modebridge.studies import write_study
from modebridge.training import Epoch
from tests.runs.small import tiny


@dataclass
class Heard:
    """What a verb said on standard error or as its refusal, and its tables as plain data; None where it refused."""

    said: str
    shown: Any

    def names(self, place: str) -> bool:
        """Whether a file is named, by itself or by the artefact that it belongs to."""
        said = "\n".join(line for line in self.said.splitlines() if not line.startswith("Using settings from"))
        # A recipe that is gone is another recipe, whose settings are named.
        changed = place == "recipe.toml" and "Changed since the last run" in said
        return changed or place in said or (place.count("/") == 2 and place.rpartition("/")[0] in said)


def hear(verb: str, path: Path) -> Heard:
    """Run a verb of the command line, all of it but the drawing of the page."""
    pages: list[PageData] = []
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setenv("COLUMNS", "1000")
        patch.setattr(terminal.OPTIONS, "json", True)
        patch.setattr(results_module, "page", lambda data: pages.append(data) or f"<p>{data.title}</p>")
        # Intervals take half of the time and are of no interest here.
        patch.setattr(table, "resampled_means", partial(resampled_means, resamples=10))
        patch.setattr(logit_table, "resampled_means", partial(resampled_means, resamples=10))
        try:
            _VERBS[verb](path)
        except ModebridgeError as error:
            return Heard(err.getvalue() + str(error), None)
    if verb == "advise":
        shown = json.loads(out.getvalue())
        del shown["left_out"]
        shown["export"] = shown["export"] and shown["export"].replace(str(path), "RUN")
        return Heard(err.getvalue(), shown)
    record = json.loads(out.getvalue()) if verb == "run" else {}
    return Heard(err.getvalue(), {"rows": record.get("rows"), **(_plain(pages[-1]) if pages else {})})


_VERBS: dict[str, Callable[[Path], None]] = {
    "run": lambda path: run_module.run(run_module.RunOptions(out=path, device="cpu")),
    "report": show.report_run,
    "advise": lambda path: show.advise_run(path, 1.5, cost_unit="flops", cascades=False),
}


def _plain(data: PageData) -> dict[str, Any]:
    """Everything on a page but the warnings and the words about its origin."""
    answers: LogitTable = data.answers
    return {
        "table": [asdict(row) for row in data.rows],
        "logits": {name: tensor.tolist() for name, tensor in {**answers.valid, **answers.test}.items()},
        "costs": {name: asdict(cost) for name, cost in answers.costs.items()},
        "profiles": {name: [asdict(point) for point in points] for name, points in data.profiles.items()},
        "samples": data.samples and data.samples.images.tolist(),
        "metrics": {kind: {name: _lines(epochs) for name, epochs in m.items()} for kind, m in data.metrics.items()},
        "studies": [[part.name, part.figure, *(table.to_dict() for table in part.tables)] for part in data.studies],
    }


def _lines(epochs: Sequence[Epoch]) -> list[dict[str, Any]]:
    """Without the time they took, which is another one when an artefact is made again."""
    return [asdict(replace(epoch, seconds=0.0)) for epoch in epochs]


def judge(copy: Path, name: str, wanted: dict[str, Heard], verbs: Sequence[str]) -> None:
    """A damaged file is named or harmless; `run` comes last, because it mends."""
    for verb in verbs:
        heard = hear(verb, copy)
        assert heard.names(name) or heard.shown == wanted[verb].shown, ("in silence", verb, name, heard.said)
        # A run makes again what its tables are made from; only another recipe may give other tables.
        if verb == "run" and name != "recipe.toml" and heard.shown is not None:
            assert heard.shown["table"] == wanted[verb].shown["table"], ("not made again", name, heard.said)


def everything(place: Path) -> Path:
    """A copy, at `place`, of a finished run folder with a study; made once per process of tests."""
    shutil.copytree(_made().name, place, dirs_exist_ok=True)
    return place


@cache
def _made() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "read_recipe", lambda name: (tiny(), 0))
        assert hear("run", path).shown is not None
    rows = {"DE-1": {"NLL": Cell(0.5, 0.1)}, "DE-2": {"NLL": Cell(0.4)}}
    table = StudyTable("A study", (Column("NLL", 3, "down"),), rows, ("A note.",))
    write_study(StudyPart("type1", "what it asks", (table,), "<svg></svg>"), RunFolder(path))
    return folder


def files_of(path: Path) -> list[str]:
    """The files of a run folder but its scratch, by their paths in it."""
    found = [file.relative_to(path).as_posix() for file in sorted(path.rglob("*")) if file.is_file()]
    return [name for name in found if not name.startswith(".work/")]


def flip(file: Path, byte: int, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[byte] ^= 1 << bit
    file.write_bytes(data)
