"""The controls at the cost of one network, on two epochs of digits, and their way into a folder of results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
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


def test_controls_are_trained_and_published(script, tmp_path):
    first, second, third, folder = (str(tmp_path / name) for name in ("first", "second", "third", "published"))
    kinds = "--kinds", "plain,cutmix-a,swa"
    options = "--recipe", "digits", "--epochs", "4", "--head-epochs", "1"
    script(*options, *kinds, "--out", first, "--heads", "cutmix-a>plain")
    heads = "cutmix-a>plain,cutmix-a>plain+labels,cutmix-a>plain&cutmix-a,2x cutmix-a>labels,early-logits plain>plain"
    script(*options, "--out", second, "--weights", f"{first}/weights.safetensors", "--heads", heads)
    step = "--step", "0.3", "--cutmix", "0", "--students", "plain&cutmix-a"
    script(*options, *step, "--out", third, "--weights", f"{first}/weights.safetensors", "--heads", "plain>cutmix-a")
    with safe_open(f"{second}/logits.safetensors", "pt") as stored:
        assert stored.get_tensor("cutmix-a>plain+labels/test").shape[0] == 2, "two heads"
    import published

    sets, head = "plain + cutmix-a,plain + cutmix-a @1.15", "cutmix-a + cutmix-a>plain"
    script("--out", first, "--publish", folder, "--sets", sets, "--difference", head, "plain")
    script("--out", second, "--publish", folder, "--sets", "")
    facts = json.loads((tmp_path / "published" / "results.json").read_text())
    found = {row["name"]: row for row in facts["rows"]}
    assert {"swa", "plain-ema", "plain-tail", "plain + early-logits plain>plain", f"{head}, 1 epochs"} <= {*found}
    assert found["plain + cutmix-a"]["flops"] == 2
    assert 1 < found["plain + cutmix-a @1.15"]["flops"] < 1.3
    assert 1 < found[head]["flops"] < found["cutmix-a + 2x cutmix-a>labels"]["flops"] < 1.4
    assert facts["ways_between"] == ["plain", "plain + cutmix-a"]
    (difference,) = facts["differences"]
    assert difference["nll"][0] == pytest.approx(found[head]["nll"] - found["plain"]["nll"], abs=2e-5)
    assert sum(facts["sides"][0][f"with its {one}"] for one in ("base", "target")) <= 1
    assert published.wrong_figures(tmp_path / "published") == []
    seeds = str(tmp_path / "seeds.json")
    for _ in range(2):  # a seed counts once
        script("--out", first, "--publish", seeds, "--sets", "plain + cutmix-a")
    script("--out", third, "--publish", seeds, "--sets", "", "--suffix", ", steps")
    (table,) = json.loads((tmp_path / "seeds.json").read_text())["tables"]
    assert table["seeds"] == [0]
    assert table["rows"][head]["nll"] == [pytest.approx(found[head]["nll"], abs=2e-3)]
    assert table["rows"]["student plain&cutmix-a, steps"]["flops"] == 1
    assert len(table["rows"]["plain + plain>cutmix-a, steps"]["nll"]) == len(table["rows"]["plain"]["nll"]) == 1
