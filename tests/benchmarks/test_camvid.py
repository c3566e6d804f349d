"""The benchmark of segmentation, on a few images that are made up here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

import modebridge as mb

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore")  # these networks learn nothing
@pytest.mark.slow
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
    out = tmp_path / "out"
    found = {row["name"]: row for row in json.loads((out / "results.json").read_text())["rows"]}
    assert [found[f"DE-{m}"]["flops"] for m in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert 1 < found["3 heads at 1/2, 1.05"]["flops"] <= 1.05
    for row in found.values():
        assert all(0 <= row[key] <= 1 for key in ("accuracy", "ece", "mean_iou"))
    # What is published is what the sums of the images give, and what the library finds for the whole set.
    assert camvid.published.wrong_figures(out) == []
    assert "| DE-2 | x2.00 |" in printed
    data = {split: camvid.Streets(*camvid.read(tmp_path, split, 1)) for split in ("val", "test")}
    net, saved = camvid.UNet(4), load_file(out / "modes.safetensors")
    net.load_state_dict({key.removeprefix("0/"): tensor for key, tensor in saved.items() if key.startswith("0/")})
    ensemble = mb.Ensemble(net, [mb.Mode.from_module(net)]).calibrate(data["val"])
    scores = mb.evaluate(ensemble, data["test"])
    for key in ("nll", "accuracy", "mean_iou"):  # weights are stored in half precision
        assert getattr(scores, key) == pytest.approx(found["DE-1"][key], abs=0.01)
    monkeypatch.setattr(camvid, "variants", lambda *given: {})  # times of one and of two networks are enough
    run("--time", str(out))
    assert json.loads((out / "results.json").read_text())["milliseconds"]["DE-2"] > 0
