"""The benchmark of segmentation, on a few images that are made up here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore")  # these networks learn nothing
def test_every_row_has_scores(tmp_path, monkeypatch, capsys):
    random = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 8), ("test", 4)):
        names = [f"{k}.png" for k in range(count)]
        (tmp_path / f"{split}.txt").write_text("".join(f"/SegNet/{split}/{name} /SegNet/{name}\n" for name in names))
        for folder, shape, most in ((split, (16, 24, 3), 256), (f"{split}annot", (16, 24), 12)):
            (tmp_path / folder).mkdir()
            for name in names:
                Image.fromarray(random.integers(most, size=shape, dtype=np.uint8)).save(tmp_path / folder / name)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import camvid

    def run(*options: str) -> None:
        monkeypatch.setattr(sys, "argv", ["camvid.py", *options])
        camvid.main()

    sizes = "--width", "4", "--epochs", "1", "--head-epochs", "1"
    run(str(tmp_path), "--out", str(tmp_path / "out"), *sizes)
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [found["rows"][f"DE-{m}"]["flops"] for m in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert 1 < found["rows"]["3 heads at 1/2, 1.05"]["flops"] <= 1.05
    for row in found["rows"].values():
        assert all(0 <= row[key] <= 1 for key in ("accuracy", "ece", "mean_iou"))
    run("--table", str(tmp_path / "out"))
    table = capsys.readouterr().out
    assert "| DE-2 | x2.00 |" in table
    assert table in printed
