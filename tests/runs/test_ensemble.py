"""From a run folder to an ensemble: the kept weights, temperatures and answers fit together."""

from __future__ import annotations

import shutil

import pytest
import torch
from huggingface_hub import ModelCard

import modebridge
from modebridge.ensembles import average, cascaded, scale
from modebridge.errors import ModebridgeError
from modebridge.members.network import networks
from modebridge.report import as_dicts
from modebridge.runs import ensemble_of, read_answers, run_recipe, share_run
from modebridge.scoring import advise, dee
from tests.runs.small import finished, small

NAMES = ["mode-0", "I-0-1-small", "labels-0-1-small"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = finished(tmp_path_factory.mktemp("deploying") / "run")
    return folder, run_recipe(small(), folder=folder)


@torch.no_grad()
def test_the_ensemble_says_what_was_kept(run):
    folder, result = run
    ensemble, notes = ensemble_of(folder.path, NAMES)
    answers = read_answers(folder)
    images = result.setting.data.splits.test.images
    assert notes["names"] == NAMES
    assert ensemble.calibrated
    torch.testing.assert_close(ensemble(images).double(), answers.calibrated(NAMES), rtol=0, atol=1e-5)
    assert notes["scores"]["nll"] == answers.score(NAMES).nll
    # The first network alone is calibrated for itself.
    alone = scale(ensemble.members(images)[0], notes["fitted"].first)
    torch.testing.assert_close(alone.double(), answers.calibrated(NAMES[:1]), rtol=0, atol=1e-5)
    assert notes["example"].shape[1:] == images.shape[1:]
    assert any(torch.equal(notes["example"][0], image) for image in images), "a real image"


def test_members_by_default_and_their_order(run):
    folder, _ = run
    chosen, notes = advise(read_answers(folder), 1.2).chosen, ensemble_of(folder)[1]
    assert set(notes["names"]) == set(chosen.members)
    assert (notes["names"][0], notes["threshold"]) == (chosen.members[0], None)
    two = ["II-0-1-small", "mode-1", "mode-0"]
    assert ensemble_of(folder, two)[1]["names"] == ["mode-1", "mode-0", "II-0-1-small"]


@torch.no_grad()
def test_a_cascade_is_exported_as_it_was_scored(run):
    """The threshold of the validation split, the scores of what the file does, and the file's answers themselves."""
    folder, result = run
    answers, names = read_answers(folder), ["mode-0", "mode-1", "II-0-1-small"]
    ensemble, notes = ensemble_of(folder, names, average_cost=1.4)
    assert notes["threshold"] == answers.threshold(names, 1.4)
    scored = answers.score(names, threshold=notes["threshold"])
    assert notes["scores"] == notes["scores"] | {"nll": scored.nll, "deferred_share": scored.deferred_share}
    assert notes["scores"]["relative_flops"] == scored.cost.relative_flops < answers.cost(names).relative_flops
    table = answers.calibrated(names, threshold=notes["threshold"]).float()
    members = ensemble.members(result.setting.data.splits.test.images)
    first, full = (scale(p, t) for p, t in zip((members[0], average(members)), notes["fitted"][:2], strict=True))
    wanted = cascaded(first, full, notes["threshold"])[0]
    # An image whose confidence rounding moves over the threshold may get either answer.
    near = (answers.calibrated(names[:1]).amax(-1) - notes["threshold"]).abs() < 1e-4
    torch.testing.assert_close(wanted[~near], table[~near], rtol=0, atol=1e-4)
    assert ensemble_of(folder, names, threshold=0.7)[1]["threshold"] == 0.7


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["I-0-1-small"], "Expected mode-0 to be a member, because I-0-1-small reads it"),
        (["mode-9"], "Expected a member of this run, but got 'mode-9'; did you mean mode-"),
        (["mode-0", "curve-0-1"], "modes and bridges to export, but got 'curve-0-1'"),
    ],
)
def test_bad_members_are_said(run, members, message):
    with pytest.raises(ModebridgeError, match=message):
        ensemble_of(run[0], members)


def test_weights_that_have_changed_are_not_exported(run, tmp_path):
    cases = {"mode-0": ("modes/0", "modes/1"), "I-0-1-small": ("bridges/I-0-1-small", "bridges/labels-0-1-small")}
    for member, (place, other) in cases.items():
        there = shutil.copytree(run[0].path, tmp_path / member)
        shutil.copy(there / other / "weights.safetensors", there / place / "weights.safetensors")
        with pytest.raises(ModebridgeError, match=f"weights of {member} in .* missing or have changed"):
            ensemble_of(there, NAMES)
    with pytest.raises(ModebridgeError, match="to be a run folder"):
        ensemble_of(tmp_path / "none", NAMES)
    assert not (tmp_path / "none").exists()


def test_cascades_are_rows_of_the_table(run):
    folder, result = run
    rows, answers = {row.name: row for row in result.rows}, read_answers(folder)
    for name, members, cost in (("cascade of two networks", 2, 1.15), ("cascade of three networks", 3, 1.5)):
        row, names = rows[name], [f"mode-{k}" for k in range(members)]
        scored = answers.score(names, threshold=answers.threshold(names, cost))
        assert (row.scores.nll, row.scores.cost) == (scored.nll, scored.cost)
        assert row.family == "cascade"
        # The levels that its deep ensemble equivalent is read from are those of one, two and three networks.
        assert row.scores.dee == dee(scored.nll, [rows[networks(m)].scores.nll for m in (1, 2, 3)])
        (plain,) = as_dicts([row])
        assert (plain["threshold"], plain["deferred_share"]) == (scored.threshold, scored.deferred_share)


@torch.no_grad()
def test_a_shared_folder_and_its_card(run, tmp_path):
    """Every number on the card is one of the run's, and the hub's own classes read it."""
    folder, _ = run
    members = ["mode-0", "I-0-1-small", "I-0-2-small"]
    shared = share_run(folder, tmp_path / "shared", members, license="mit", place="me/digits")
    card, answers = ModelCard.load(tmp_path / "shared" / "README.md"), read_answers(folder)
    scored = answers.score(members)
    assert (shared.names, shared.needs_net) == (tuple(members), False)
    found = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert found == {"accuracy": scored.accuracy, "nll": scored.nll, "ece": scored.ece, "brier_score": scored.brier}
    assert {result.dataset_name for result in card.data.eval_results} == {"UCI hand-written digits"}
    assert (card.data.license, card.data.pipeline_tag) == ("mit", "image-classification")
    rows = {line.split("|")[1].strip(): line for line in card.text.splitlines() if line.startswith("| ")}
    assert {"**this**", "one network", "two networks", "three networks"} <= set(rows)
    assert f"{answers.score(['mode-0', 'mode-1']).nll:.3f}" in rows["two networks"]
    assert all(text in rows["**this**"] for text in (f"{scored.nll:.3f}", f"x{scored.cost.relative_flops:.2f}"))
    texts = "200 images; calibrated", "on 60 validation images", "Recipe `digits`, seed 0", 'mb.load("me/digits")'
    assert all(text in card.text for text in texts)
    assert str(folder.path) not in card.text
    wanted, notes = ensemble_of(folder, members)
    again = modebridge.load(tmp_path / "shared")
    assert torch.equal(again(notes["example"]), wanted(notes["example"])), "what export would take"
