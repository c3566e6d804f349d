"""The benchmark of text, on a few queries that are made up here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = {"play": "song music loud band", "pay": "bill card money bank", "go": "road train bus map"}


@pytest.mark.filterwarnings("ignore")  # these networks learn nothing
def test_every_row_has_scores(tmp_path, monkeypatch):
    rows = [[f"{name} {word} {k}", name] for k in range(12) for name, many in WORDS.items() for word in many.split()]
    splits = {"train": rows, "val": rows[:60], "test": rows[30:90], "oos_test": [["what is this", "oos"]] * 20}
    (tmp_path / "data.json").write_text(json.dumps(splits))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import intents

    monkeypatch.setattr(intents, "HEAD_EPOCHS", 2)
    monkeypatch.setattr(intents, "STUDENT_EPOCHS", 2)
    out = tmp_path / "out.json"
    options = "--seeds", "3", "--epochs", "1", "--out", str(out)
    monkeypatch.setattr(sys, "argv", ["intents.py", str(tmp_path / "data.json"), *options])
    intents.main()
    (table,) = json.loads(out.read_text())["tables"]
    found = table["rows"]
    assert [found[f"DE-{m}"]["flops"] for m in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert 1 < found["3 heads, the default"]["flops"] <= 1.05
    for row in found.values():
        assert all(0 <= row[key][0] <= 1 for key in ("accuracy", "aurc", "oos", "ece"))
