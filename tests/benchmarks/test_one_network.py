"""The controls at the cost of one network, on two epochs of digits, and their way into a folder of results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import one_network

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["one_network.py", *arguments])
        one_network.main()

    return run


def test_controls_are_trained_and_published(script, tmp_path, monkeypatch):
    first, second, folder = (str(tmp_path / name) for name in ("first", "second", "published"))
    kinds = "--kinds", "plain,cutmix-a"
    options = "--recipe", "digits", "--epochs", "4", "--head-epochs", "1"
    script(*options, *kinds, "--out", first, "--heads", "cutmix-a>plain")
    heads = "cutmix-a>plain,cutmix-a>plain+labels,cutmix-a>plain&cutmix-a,2x cutmix-a>labels"
    script(*options, "--out", second, "--weights", f"{first}/weights.safetensors", "--heads", heads)
    with safe_open(f"{second}/logits.safetensors", "pt") as stored:
        assert stored.get_tensor("cutmix-a>plain+labels/test").shape[0] == 2, "two heads"
    import published

    labels, names = torch.arange(900), ("mode-0", "mode-0 + mode-1")
    rows = {name: (torch.rand(len(labels)).double(), (labels % 3 > k).double()) for k, name in enumerate(names)}
    Path(folder).mkdir()
    published.write_rows(Path(folder), rows)
    about = {"ways_between": list(names), "differences": [], "rows": [{"name": name} for name in names]}
    (Path(folder) / "results.json").write_text(json.dumps(about))
    script("--out", first, "--publish", folder, "--sets", "plain + cutmix-a")
    script("--out", second, "--publish", folder, "--sets", "")
    found = {row["name"]: row for row in json.loads((Path(folder) / "results.json").read_text())["rows"]}
    expected = {"swa", "plain-ema", "plain-tail", "plain + cutmix-a", "cutmix-a + 2x cutmix-a>labels"}
    assert expected <= {*found}
    assert found["plain + cutmix-a"]["flops"] == 2
    assert 1 < found["cutmix-a + cutmix-a>plain"]["flops"] < found["cutmix-a + 2x cutmix-a>labels"]["flops"] < 1.2
    assert "cutmix-a + cutmix-a>plain, 1 epochs" in found
    assert published.wrong_figures(Path(folder)) == []
