"""BatchEnsemble, MIMO and packed ensembles as members of a run: trained, scored, exported."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from modebridge.deploy import export
from modebridge.errors import ModebridgeError
from modebridge.members import Setting, base_epochs, members_of, parse_member
from modebridge.runs import Job, ensemble_of, make_job
from tests.members.one_run import BASELINES, finished, recipe
from tests.runs.small import tiny


def test_they_are_in_the_table() -> None:
    run, answers = finished()
    for name, members in BASELINES.items():
        assert answers.test[name].shape == (members, 60, 10)
    costs = {name: answers.cost([name]) for name in BASELINES}
    assert costs["batch-ensemble-2"].relative_flops == pytest.approx(2)
    assert costs["batch-ensemble-2"].relative_params == pytest.approx(1, abs=0.03)
    assert costs["mimo-2"].relative_flops == pytest.approx(1, abs=0.02)
    assert costs["packed-4-x2"].relative_flops == pytest.approx(1, abs=0.02)
    assert run.folder.places("baselines") == [f"baselines/{name}" for name in sorted(BASELINES)]
    epochs = run.recipe.mode.epochs
    trained = [base_epochs([parse_member(name)], run.setting) / epochs for name in BASELINES]
    assert trained == pytest.approx([2, 4, 1], rel=0.02), "counted on all rows of a batch"


@torch.no_grad()
def test_each_exports_alone() -> None:
    run, answers = finished()
    images = torch.cat([images for images, _ in run.setting.data.test()])
    for name in BASELINES:
        ensemble, notes = ensemble_of(run.folder, [name])
        torch.testing.assert_close(ensemble(images).double(), answers.calibrated([name]), rtol=0, atol=1e-5)
        assert (len(ensemble), notes["names"], ensemble.calibrated) == (1, [name], True)
        # In units of the recipe's network, not of itself.
        assert notes["unit"] == run.setting.base_cost
    with pytest.raises(ModebridgeError, match="'mimo-2' to be exported alone"):
        ensemble_of(run.folder, ["mode-0", "mimo-2"])


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_a_file_of_one(tmp_path, name: str) -> None:
    ensemble, notes = ensemble_of(finished()[0].folder, [name])
    export(ensemble, tmp_path / "one.onnx", notes["example"], valid=notes["fitted"])  # which checks parity
    assert (tmp_path / "one.onnx").is_file()


@pytest.mark.parametrize("name", BASELINES)
def test_again_it_is_the_same(name: str) -> None:
    """What is drawn comes from the run's seed, wherever it is trained."""
    run, _ = finished()
    node = parse_member(name)
    setting = Setting(run.recipe, run.seed)
    again = make_job(Job((node,), (), "key"), setting, {})[name].tensors
    kept = run.folder.read(node.place)[0]
    assert again.keys() == kept.keys()
    assert all(torch.equal(tensor, kept[key]) for key, tensor in again.items())


def test_names() -> None:
    for name in ("mimo-3-x2", "packed-2", "batch-ensemble-8"):
        assert parse_member(name).name == name
    usual = members_of(recipe(("mimo", "packed"), net="timm:resnet18"))
    assert [member.name for member in usual[-2:]] == ["mimo-2", "packed-4"], "widths of others cannot be changed"
    with pytest.raises(ModebridgeError, match="one of the paper's networks for mimo-2-x2"):
        parse_member("mimo-2-x2").cost(Setting(replace(tiny(), net="timm:resnet18")))
