"""Metrics, times and studies of a run folder: what is damaged is left out, and named where somebody would miss it."""

from __future__ import annotations

import json
import random

import pytest

from modebridge import ModebridgeError
from modebridge.recipes.extras import read_json, read_metrics_of, read_studies, read_times, stages_of
from modebridge.report.tables import Cell, Column, StudyTable, TableRow
from modebridge.training import Epoch, append_metrics

TABLE = StudyTable("t", (Column("NLL", 3, "down"),), (TableRow("DE-1", {"NLL": Cell(1.0, 0.5, "1.1")}),), ("n",))
BAD = [b"", b"\xff\xfe", b"null", b"3", b'"x"', b"[]", b"[[1]]", b"{}", b"{", b"[" * 100_000, b'{"a": 1e999}']


def write(file, data):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())


@pytest.mark.parametrize("data", BAD)
def test_files_of_something_else(tmp_path, data):
    for name in ("times.json", "results.json", "metrics/modes/0.jsonl", "studies/type1/table.json"):
        write(tmp_path / name, data)
    assert read_times(tmp_path, ["mode-0"]) == {}
    assert stages_of(read_json(tmp_path / "results.json")) == {}
    assert read_metrics_of(tmp_path) == {"modes": {"0": []}, "curves": {}, "bridges": {}}
    parts, lost = read_studies(tmp_path)
    assert parts == []
    assert len(lost) == 1
    assert "study type1 is left out" in lost[0]


@pytest.mark.parametrize("bad", [None, "x", [1], {"a": 1}, True, -1, float("nan"), 1e300])
def test_values_of_another_kind(tmp_path, bad):
    write(tmp_path / "times.json", {"relative": {"mode-0": 1.0, "mode-1": bad}})
    kept = {"mode-0": 1.0} | ({"mode-1": 1.0} if bad is True else {})
    assert read_times(tmp_path, ["mode-0"]) == kept
    assert stages_of({"seconds": {"modes": 1, "curves": bad}})["modes"] == 1
    assert stages_of({"seconds": bad}) in ({}, {"a": 1.0})


def test_every_flipped_bit_of_a_study_is_read_or_named(tmp_path):
    """The page shows what it can read; a name that was damaged into another name is no error that could be seen."""
    text = json.dumps({"name": "type1", "about": "a", "tables": [TABLE.as_dict()]}).encode()
    draw = random.Random(0)
    for _ in range(300):
        raw = bytearray(text)
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        write(tmp_path / "studies/type1/table.json", bytes(raw))
        parts, lost = read_studies(tmp_path)
        assert len(parts) + len(lost) == 1
        for part in parts:
            assert all(isinstance(table.markdown(), str) for table in part.tables)


def test_whole_ones(tmp_path):
    write(tmp_path / "studies/type1/table.json", {"name": "type1", "about": "a", "tables": [TABLE.as_dict()]})
    (tmp_path / "studies/type1/figure.svg").write_bytes(b"<svg>\xff")
    (part,), lost = read_studies(tmp_path)
    assert part.tables == (TABLE,)
    assert lost == []
    epochs = [Epoch(number, 2, 0.1, {"train": 1.0}) for number in (1, 2)]
    file = tmp_path / "metrics/modes/0.jsonl"
    for epoch in epochs:
        append_metrics(file, epoch)
    with file.open("ab") as stream:
        stream.write(b'{"number": "x"}\n{"number": 3, "losses": 5}\n\xff\xff\n{"number": 3, "tot')
    assert read_metrics_of(tmp_path)["modes"]["0"] == epochs


def test_a_table_of_something_else_is_refused():
    good = TABLE.as_dict()
    for key, value in (("columns", [{"name": "x", "digits": "3", "better": ""}]), ("rows", [3]), ("notes", None)):
        with pytest.raises(ModebridgeError, match="Expected the table of a study"):
            StudyTable.from_dict({**good, key: value})
