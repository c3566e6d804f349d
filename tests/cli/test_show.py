"""The verbs that train nothing: recipes, cost, advise, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from modebridge.cli.app import app
from modebridge.errors import ModebridgeError
from modebridge.recipes import RECIPES
from modebridge.runs import RunFolder, read_answers
from tests.runs.small import finished


def invoke(*arguments: object) -> str:
    answer = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def data(*arguments: object) -> Any:
    return json.loads(invoke(*arguments, "--json"), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("show") / "run").path


@pytest.mark.parametrize("unit", ["flops", "params"])
@pytest.mark.parametrize("options", [(), ("--cascades",)])
def test_advice_keeps_to_its_budgets(run: Path, unit: str, options: tuple[object, ...]) -> None:
    advice = data("advise", run, "--budget", 2.5, "--cost-unit", unit, *options)
    assert advice["chosen"]["cost"] <= 2.5
    assert advice["exact"]
    assert advice["optimism"] >= 0
    shown = " ".join(invoke("advise", run, "--budget", 2.5, "--cost-unit", unit, *options).split())
    assert "* Use mode 2 " in shown, "the best one alone"
    # What was chosen on validation images is tested on others, and the score is that of every table.
    threshold = advice["chosen"]["threshold"]
    scored = read_answers(RunFolder(run, writes=False)).score(advice["chosen"]["members"], threshold=threshold)
    assert f"Its NLL on the test images, which played no part in the choice, is {scored.nll:.4f}" in shown
    assert advice["test"]["nll"] == scored.nll
    export = f"modebridge export {run} digits.onnx --members {','.join(advice['chosen']['members'])}"
    assert advice["export"] == export + (f" --threshold {threshold:.8g}" if threshold else "")


def test_too_few_images_for_a_limited_loss_leave_the_other_advice(run: Path) -> None:
    shown = " ".join(invoke("advise", run, "--max-loss", 0.2).split())
    assert "* Use mode 2 " in shown
    assert "No cascade that loses at most 0.2 % of the images:" in shown


def test_bad_advice_is_refused(run: Path) -> None:
    for option, value, message in (
        ("--cost-unit", "watts", "--cost-unit to be flops or params, but got 'watts'"),
        ("--budget", "0.9", "at least one network, but got 0.9"),
    ):
        with pytest.raises(ModebridgeError, match=message):
            invoke("advise", run, option, value)


def test_advice_names_the_export_command_only_where_the_weights_are(tmp_path: Path) -> None:
    finished(tmp_path)
    advice = data("advise", tmp_path)
    assert f"Next: {advice['export']}\n" in invoke("advise", tmp_path)
    mode = next(name for name in advice["chosen"]["members"] if name.startswith("mode-")).replace("mode-", "modes/")
    (tmp_path / mode / "weights.safetensors").unlink()
    said = f"It cannot be exported from '{tmp_path}', which has its logits but not the weights in {mode}; "
    shown = invoke("advise", tmp_path)
    assert f"{said}`modebridge run` with the folder's recipe.toml and --out OTHER trains it" in shown
    assert "Next:" not in shown
    assert data("advise", tmp_path)["export"] is None


def test_costs_of_networks_of_another_kind() -> None:
    settings = ("--set", "methods=packed,distilled", "--set", "norm=frn")
    rows = {row["name"]: row for row in data("cost", "digits", *settings, "--paper")}
    costs = {name: (row["relative_flops"], row["relative_params"]) for name, row in rows.items()}
    assert costs["distilled network"] == (1.0, 1.0)
    assert costs["packed ensemble, 4 members, width x2"] == pytest.approx((1.0, 1.0), abs=0.03)
    assert [name for name, row in rows.items() if "paper_flops" not in row] == ["packed ensemble, 4 members, width x2"]
    shown = invoke("cost", "digits", *settings, "--paper")
    assert "digits frn" in shown
    assert "cost[P]" in shown
    assert "[P]: as in the paper" in " ".join(shown.split())


def test_recipes_are_listed() -> None:
    listed = {row["name"]: row for row in data("recipes")}
    assert set(listed) == set(RECIPES)
    assert (listed["cifar10"]["networks"], listed["cifar10"]["methods"]) == (8, "paper")
    assert "Tiny ImageNet, 480 MB" in invoke("recipes")


def test_a_report_goes_where_it_is_wanted(run: Path, tmp_path: Path) -> None:
    assert f"Page: {tmp_path / 'report.html'}" in invoke("report", run, "--out", tmp_path)
    assert "<h1>digits, seed 0</h1>" in (tmp_path / "report.html").read_text()
    with pytest.raises(ModebridgeError, match="to be a run folder, but it has no recipe"):
        invoke("report", tmp_path)
