"""The sizes of bridges that docs/frontier.md prints."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("recipe", "place"), [("cifar10", "CIFAR-10"), ("tin200", "Tiny ImageNet")])
def test_the_page_says_what_is_counted(recipe, place, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    (paper, default, *designs) = import_module("bridge_sizes").sizes(recipe)
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "frontier.md").read_text())
    low, high = (100 * pick(params for _, _, params in designs) for pick in (min, max))
    assert re.search(rf"{low:.1f} to {high:.1f} %[^(]*on {place} \([^)]*{100 * default[2]:.1f} %", page)
    assert all(flops <= paper[1] for _, flops, _ in [default, *designs])
    assert f"{100 * paper[2]:.1f} %" in page
