"""BatchEnsemble, MIMO and packed ensembles as members of a run: trained, scored, exported."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from modebridge.deploy import EnsembleModule, export
from modebridge.deploy.metadata import describe
from modebridge.errors import ModebridgeError
from modebridge.members import Setting, base_epochs, members_of, parse_member
from modebridge.runs import (
    Job,
    RunFolder,
    begin,
    ensemble_of,
    make_job,
    read_answers,
    run_recipe,
)
from tests.runs.small import tiny

NAMES = ["batch-ensemble-2", "mimo-2", "packed-4-x2"]
MEMBERS = dict(zip(NAMES, (2, 2, 4), strict=True))


def recipe():
    return replace(tiny(), methods=("batch-ensemble-2", "mimo", "packed"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("rivals") / "run")
    result = run_recipe(recipe(), folder=folder)
    begin(folder, recipe(), 0)
    return folder, result


def test_they_are_in_the_table(run):
    folder, result = run
    rows = {row.members[0]: row for row in result.rows if len(row.members) == 1}
    answers = read_answers(folder)
    for name, members in MEMBERS.items():
        assert answers.test[name].shape == (members, 60, 10)
        assert parse_member(name).name == name
    costs = {name: rows[name].relative_flops for name in NAMES}
    assert costs["batch-ensemble-2"] == pytest.approx(2)
    assert costs["mimo-2"] == pytest.approx(1, abs=0.02)
    assert costs["packed-4-x2"] == pytest.approx(1, abs=0.02)
    assert rows["batch-ensemble-2"].relative_params == pytest.approx(1, abs=0.03)
    assert folder.places("rivals") == [f"rivals/{name}" for name in sorted(NAMES)]


def test_training_costs_are_counted_on_all_rows():
    setting = Setting(recipe())
    epochs = recipe().mode.epochs
    costs = [base_epochs([parse_member(name)], setting) / epochs for name in NAMES]
    assert costs == pytest.approx([2, 4, 1], rel=0.02)


@torch.no_grad()
@pytest.mark.slow
def test_each_exports_alone(run):
    folder, result = run
    answers = read_answers(folder)
    images = result.setting.data.splits.test.images
    for name in NAMES:
        ensemble, notes = ensemble_of(folder.path, [name])
        for told in (ensemble(images), EnsembleModule(ensemble)(images)[0]):
            torch.testing.assert_close(told.double(), answers.calibrated([name]), rtol=0, atol=1e-5)
        meta = describe(ensemble, notes["temperatures"], images, info={"names": [name], "unit": notes["unit"]})
        # In units of the recipe's network, not of itself.
        assert meta["cost"]["relative_flops"] == pytest.approx(answers.score([name]).relative_flops)
        assert (len(ensemble), notes["names"], ensemble.calibrated) == (1, [name], True)
    with pytest.raises(ModebridgeError, match="'mimo-2' to be exported alone"):
        ensemble_of(folder.path, ["mode-0", "mimo-2"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_one(run, tmp_path, name):
    folder, _ = run
    ensemble, notes = ensemble_of(folder.path, [name])
    info = {key: notes[key] for key in ("names", "scores", "unit")}
    done = export(ensemble, tmp_path / "one.onnx", notes["example"], valid=notes["temperatures"], info=info, plain=True)
    assert done.parity < 1e-5
    assert done.meta["cost"]["relative_flops"] == pytest.approx(done.meta["scores"]["relative_flops"])


@pytest.mark.parametrize("name", ["mimo-2", "packed-4-x2"])
def test_again_it_is_the_same(run, name):
    """MIMO's permutations are drawn from the run's seed, wherever it is trained."""
    folder, _ = run
    (artefact,) = parse_member(name).artefacts(recipe())
    again = make_job(Job((artefact,), (), "key"), Setting(recipe()), {})[name].tensors
    kept = folder.read(artefact.place)[0]
    assert again.keys() == kept.keys()
    assert all(torch.equal(tensor, kept[key]) for key, tensor in again.items())


def test_names():
    for name in ("mimo-3-x2", "packed-2", "batch-ensemble-8"):
        assert parse_member(name).name == name
    usual = members_of(replace(tiny(), methods=("mimo", "packed"), net="timm:resnet18"))
    assert [member.name for member in usual[-2:]] == ["mimo-2", "packed-4"], "widths of others cannot be changed"
    setting = Setting(replace(tiny(), net="timm:resnet18"))
    with pytest.raises(ModebridgeError, match="one of the paper's networks for mimo-2-x2"):
        parse_member("mimo-2-x2").cost(setting)
