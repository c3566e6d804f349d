"""examples/my_recipe.py, small: two networks of timm go through every verb, from scratch and from checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from typer.testing import CliRunner, Result

from modebridge.cli.app import app
from modebridge.deploy import DeployedEnsemble
from modebridge.members import Setting
from modebridge.recipes import changed, find_recipe
from modebridge.runs import RunFolder, read_answers
from modebridge.training import fit_modes

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_recipe.py"
ONES = "curve.epochs", "bridge.epochs", "student_epochs"
SHORT = ["--set=data.train=60", "--set=data.test=80", *(f"--set={key}=1" for key in ONES)]


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that begins from two checkpoints, as a user has them."""
    place = tmp_path_factory.mktemp("own")
    recipe = place / "my_recipe.py"
    recipe.write_text(EXAMPLE.read_text().replace("return train, valid, test", "return train, test"))
    for k in range(2):
        torch.manual_seed(k)
        small = {"channels": (16, 32, 64, 128), "stem_width": 16}
        net = timm.create_model("resnet10t", num_classes=10, in_chans=3, **small)
        (place / "checkpoints").mkdir(exist_ok=True)
        torch.save(net.state_dict(), place / "checkpoints" / f"{k}.pt")
    invoke("run", recipe, *SHORT, "--modes", place / "checkpoints", "--out", place / "run", "--json")
    return place / "run"


def test_it_ends_with_the_same_table_as_the_demo(run: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    assert not any(name.startswith("modes") for name in results["trained"]), "those that were given stay"
    rows = {row["name"]: row for row in results["rows"]}
    assert {"one network", "one network + 1 head", "distilled network", "two networks"} <= set(rows)
    assert 1.0 < rows["one network + 1 head"]["relative_flops"] <= 1.05
    answers = read_answers(RunFolder(run, writes=False))
    assert answers.test["mode-0"].shape == (80, 10)
    assert "my-recipe" in (run / "report.html").read_text()
    assert json.loads((run / "data.json").read_text())["image"] == [3, 32, 32]
    advice = invoke("advise", run, "--json")
    assert json.loads(advice.stdout)["chosen"]["members"][0].startswith("mode-")
    # Validation images are split off train: that is said wherever something is fitted on them.
    for said in ("\n".join(results["warnings"]), (run / "report.html").read_text(), advice.stderr):
        assert "that no checkpoint was trained on: return (train, valid, test)" in said
    shown = invoke("cost", run.parent / "my_recipe.py").stdout
    assert all(words not in shown for words in ("frn", "one heads")), shown


@pytest.mark.slow
def test_report_times_and_export(run: Path, tmp_path: Path) -> None:
    invoke("report", run)
    invoke("export", run, tmp_path / "fast.onnx", "--members", "mode-0,heads-0-others-small")
    deployed = DeployedEnsemble.load(tmp_path / "fast.onnx")
    answers = read_answers(RunFolder(run, writes=False))
    samples = RunFolder(run, writes=False).read("samples/0-1")[0]
    expected = answers.calibrated(["mode-0", "heads-0-others-small"])[samples["numbers"]]
    probabilities = deployed(samples["images"].numpy()).probabilities
    torch.testing.assert_close(torch.tensor(probabilities).double(), expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_verbs_that_need_no_weights(run: Path) -> None:
    timed = json.loads(invoke("bench", run, "--batch", "1", "--device", "cpu", "--json").stdout)["rows"]
    assert [row["name"] for row in timed[:3]] == ["one network", "one network + 1 head", "two networks"]
    rows = {row["name"]: row for row in json.loads(invoke("cost", run.parent / "my_recipe.py", "--json").stdout)}
    assert rows["one network"]["relative_flops"] == 1.0
    assert "correspondence" in invoke("study", "correspondence", "--out", run).stdout


def test_the_best_checkpoint_comes_first_unless_told(tmp_path: Path) -> None:
    """Two networks of the demo, of which the second has learned something."""
    settings = ["data.train=100", "data.valid=60", "data.test=60", "mode.epochs=1", "methods=", "device=cpu"]
    recipe = changed(find_recipe("digits"), settings)
    setting = Setting(recipe, 0)
    (tmp_path / "given").mkdir()
    (trained,) = fit_modes([setting.net], setting.data.train("mode", 0), recipe.training("mode"))
    for name, state in (("a.pt", setting.net.state_dict()), ("b.pt", trained.state)):
        torch.save(state, tmp_path / "given" / name)
    given = [part for one in settings for part in ("--set", one)]
    for options, first in ((["--as-named"], "a.pt"), ([], "b.pt")):
        out = tmp_path / first
        answer = invoke("run", "digits", *given, "--modes", tmp_path / "given", "--out", out, *options)
        said = "First network: b.pt, the best on validation images (calibrated NLL " in answer.stderr
        assert said == (first == "b.pt")
        assert "split off train" not in answer.output, "the demo's are its own"
        assert "Far behind on validation images: a.pt (" in answer.stderr
        wanted = torch.load(tmp_path / "given" / first, weights_only=True)
        assert torch.equal(RunFolder(out).read("modes/0")[0]["head.weight"], wanted["head.weight"])
        # Again without --modes: as many as were given, though the recipe has four.
        again = invoke("run", "digits", *given, "--out", out)
        assert "Using the 2 networks that" in again.output
        assert "Nothing to train" in again.output
