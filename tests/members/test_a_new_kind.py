"""A new kind of member is one class and one line: the table, the page, the advice and the cost plot show it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from modebridge.cli.app import app
from modebridge.errors import ModebridgeError
from modebridge.evaluate import MemberCost
from modebridge.members import KINDS, Member, Predictor, members_of, parse_member, register
from modebridge.runs import RunFolder, ensemble_of, gather, read_answers, run_recipe
from tests.runs.damaging import tiny


class Guess(Predictor):
    """Two heads, each sure of a class of its own to the extent of some nats."""

    id = "guess"

    def heads(self, inputs: Any, outputs: Any) -> list[Tensor]:
        return [torch.eye(10)[k].repeat(len(inputs), 1) * 3.0 for k in (2, 7)]


@dataclass(frozen=True)
class GuessMember(Member):
    name = "guess"
    title = "a guess"
    family = "guessing"

    def artefacts(self, recipe: Any) -> tuple[()]:
        return ()

    def load(self, blueprint: Any, tensors: Mapping[str, Any]) -> Guess:
        return Guess()

    def cost(self, blueprint: Any) -> MemberCost:
        return MemberCost(1000.0, 20)

    @classmethod
    def parse(cls, name: str) -> GuessMember | None:
        return cls() if name == "guess" else None

    @classmethod
    def of(cls, recipe: Any) -> list[GuessMember]:
        return [cls()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    register(GuessMember)
    folder = tmp_path_factory.mktemp("kind") / "run"
    result = CliRunner().invoke(app, ["run", str(_recipe(folder.parent)), "--out", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    yield folder
    KINDS.remove(GuessMember)


def _recipe(folder: Path) -> Path:
    (folder / "small.py").write_text("from tests.runs.damaging import tiny as recipe\n")
    return folder / "small.py"


def test_it_is_in_the_table(run: Path) -> None:
    rows = {row["name"]: row for row in json.loads((run / "results.json").read_text())["rows"]}
    row = rows["a guess"]
    assert (row["members"], row["family"]) == (["guess"], "guessing")
    assert 0 < row["relative_flops"] < 0.01
    # Each head is one voice: two classes share what is certain, eight the rest.
    labels = read_answers(RunFolder(run)).test_labels
    shares = torch.full((10,), 1 / (torch.e**3 + 9), dtype=torch.float64)
    shares[[2, 7]] = (torch.e**3 + 1) / (torch.e**3 + 9) / 2
    assert row["raw_nll"] == pytest.approx(float(-shares[labels].log().mean()), abs=1e-6)
    assert "| a guess |" in (run / "results.md").read_text()


def test_its_heads_are_voices_in_any_mean(run: Path) -> None:
    answers = read_answers(RunFolder(run))
    assert answers.test["guess"].shape == (2, len(answers.test_labels), 10)
    heads = [answers.test["mode-0"], *answers.test["guess"]]
    expected = sum(head.double().softmax(dim=-1) for head in heads) / 3
    torch.testing.assert_close(answers.probabilities(["mode-0", "guess"]), expected)


def test_it_is_on_the_page_and_in_the_cost_plot(run: Path) -> None:
    text = (run / "report.html").read_text()
    assert re.search(r"<td[^>]*>a guess", text)
    plot = text[text.index('id="cost') :] if 'id="cost' in text else text
    assert "guessing" in plot


def test_it_is_advised(run: Path) -> None:
    result = CliRunner().invoke(app, ["advise", str(run), "--budget", "1.2", "--json"])
    assert result.exit_code == 0, result.output
    advice = json.loads(result.stdout)
    fronts = [tuple(choice["members"]) for choice in advice["front"]]
    assert ("guess",) in fronts, "nothing is as cheap"


def test_what_cannot_be_exported_says_so(run: Path) -> None:
    with pytest.raises(ModebridgeError, match="'guess'; this kind of member cannot be exported"):
        ensemble_of(run, ["mode-0", "guess"])


def test_without_the_kind_its_logits_are_left_out(run: Path) -> None:
    KINDS.remove(GuessMember)
    try:
        assert "guess" not in {member.name for member in members_of(tiny())}
        with pytest.raises(ModebridgeError, match="such as mode-0"):
            parse_member("guess")
        folder = RunFolder(run, writes=False)
        assert "guess" not in gather(folder).answers.test
        assert "no kind of member" in folder.damage["logits/guess"]
    finally:
        register(GuessMember)
    assert run_recipe(tiny(), folder=RunFolder(run)).trained == ()
