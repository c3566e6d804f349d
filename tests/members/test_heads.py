"""Bridges with several heads as members: what they learn, what they cost, and in table, advice and files."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from modebridge import seeds, trees
from modebridge.bridges import curve_target, label_target, mode_target, plan_bridge
from modebridge.errors import ModebridgeError
from modebridge.members import HeadsMember, ModeMember, artefacts_behind, members_of, parse_member, row_plans
from modebridge.members.curve_member import PointMember
from modebridge.members.setting import Setting
from modebridge.members.small_network import BridgeWeights
from modebridge.recipes import Recipe
from modebridge.runs import Run
from modebridge.runs.results import belongs
from tests.plans import fit_bridges
from tests.runs.small import tiny

NAMES = ("heads-0-others-small", "heads-0-midpoints+labels-small", "heads-1-mean-small")


def recipe(**changes: object) -> Recipe:
    one = tiny()
    short = replace(one.curve, epochs=1)
    return replace(one, curve=short, bridge=short, modes=3, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(recipe(methods=("heads", *NAMES[1:])), seed=3)


@pytest.fixture(scope="module")
def answers(run: Run):
    return run.answers(members_of(run.recipe))


def test_the_recipe_has_them_by_name(run: Run) -> None:
    members = [member for member in members_of(run.recipe) if isinstance(member, HeadsMember)]
    assert tuple(member.name for member in members) == NAMES
    assert [parse_member(name) for name in NAMES] == members
    assert [member.heads(run.recipe) for member in members] == [2, 3, 1]
    names = [plan.name for plan in row_plans(run.recipe) if "head" in plan.name]
    assert names == ["DE-1 + 2 heads (others)", "DE-1 + 3 heads (midpoints, labels)", "DE-1 + 1 head (mean), on mode 1"]
    assert not any("head" in plan.name for plan in row_plans(recipe()))
    assert not HeadsMember(3).belongs(run.recipe)
    for wrong in ("heads-0-others+others-small", "heads-0-anything-small", "heads-0-small"):
        assert HeadsMember.parse(wrong) is None


def test_each_has_the_weights_that_the_library_gives(run: Run, answers) -> None:
    """By hand: the same seed, batches and targets, one wide block and CutMix, trained alone."""
    setting = run.setting
    modes = [run.mode(k) for k in range(3)]
    middle = [curve_target(run.curve(0, j)) for j in (1, 2)]
    wanted = {NAMES[0]: [mode_target(modes[1]), mode_target(modes[2])], NAMES[1]: [*middle, label_target()]}
    for name, targets in wanted.items():
        seed = seeds.seed_for(3, name.removesuffix("-small"))
        slim, first = run.recipe.slim("small"), modes[0]
        small = plan_bridge(setting.net, first, setting.example, target=targets, slim=slim).share
        wide = {"budget": small, "wide": True}
        plan = plan_bridge(setting.net, first, setting.example, target=targets, name=name, seed=seed, **wide)
        settings = replace(run.recipe.training("bridge"), seed=setting.seed_of("bridges"))
        data = setting.data.train("bridges", bridges=True)
        mixing, valid = {"mixup": 0.0, "cutmix": 1.0}, setting.data.valid()
        alone = fit_bridges(setting.net, {name: plan}, data, config=settings, valid=valid, **mixing)[name]
        trained = run.load(parse_member(name)).bridge
        assert trees.fingerprint(alone.state_dict()) == trees.fingerprint(trained.state_dict())
    assert answers.test[NAMES[0]].shape == (2, len(answers.test_labels), 10)


def test_they_count_as_their_heads_and_cost_as_one_bridge(run: Run, answers) -> None:
    alone, headed = answers.score(("mode-0", "I-0-1-small")), answers.score(("mode-0", NAMES[0]))
    assert alone.relative_flops - 0.02 < headed.relative_flops < alone.relative_flops + 0.01
    head_logits = [answers.test["mode-0"], *answers.test[NAMES[0]]]
    expected = sum(voice.double().softmax(-1) for voice in head_logits) / 3
    torch.testing.assert_close(answers.probabilities(("mode-0", NAMES[0])), expected, rtol=0, atol=1e-6)
    member, setting = HeadsMember(0, ("midpoints", "labels")), run.setting
    assert member.teachers(run.recipe) == (PointMember(0, 1), PointMember(0, 2))
    assert set(member.made_from(run.recipe)) == {ModeMember(k) for k in range(3)}
    # Mode 0 and two midpoints run once, and the body forward and backward.
    expected = 3 * setting.base_cost.flops + 3 * member.chosen(setting).flops
    assert BridgeWeights.work([BridgeWeights(member)], setting) == expected
    places = {artefact.place for artefact in artefacts_behind([HeadsMember(0)], run.recipe)}
    assert places == {"modes/0", "modes/1", "modes/2", f"bridges/{NAMES[0]}"}  # no curve


def test_answers_of_heads_that_learned_other_modes_are_left_out() -> None:
    """As in a folder that goes on with another number of modes, and without the heads."""
    parents = [f"mode-{k}" for k in range(3)]
    assert belongs(HeadsMember(0), parents, recipe())
    for other in (2, 4):
        assert not belongs(HeadsMember(0), parents, replace(recipe(), modes=other))


def test_members_that_a_recipe_cannot_have() -> None:
    for wrong in ("heads-3-others-small", "heads-0-others-huge", "heads-0-others-slim"):
        with pytest.raises(ModebridgeError, match=f"but got '{wrong}'"):
            members_of(recipe(methods=(wrong,)))
        assert not any("head" in plan.name for plan in row_plans(recipe(methods=(wrong,))))
    assert HeadsMember.parse("heads-0-others-slim2.5") == HeadsMember(0, size="slim2.5")


@pytest.mark.parametrize("name", ["I-0-1-huge", "labels-0-1-slim", "heads-0-others-slim0x"])
def test_sizes_that_nobody_knows_are_no_names(name: str) -> None:
    with pytest.raises(ModebridgeError, match="Expected a member such as"):
        parse_member(name)


@pytest.mark.parametrize("classes", range(3, 9))
def test_features_without_places_have_the_body_of_a_bridge(classes: int) -> None:
    """Where no design can change anything, heads are as wide as `slim` says, whatever the rounding of shares."""
    net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, classes))
    setting = Setting(recipe(width_divisor=2.0))
    vars(setting).update(network=SimpleNamespace(spec=None), net=net, example=torch.rand(2, 5))
    for heads in (1, 2, 3):
        plain, auto = (setting.body("I", "small", heads, wide) for wide in (False, True))
        assert (auto.flops, auto.params) == (plain.flops, plain.params)


def test_midpoints_are_not_said_to_need_no_curve(run: Run) -> None:
    roles = {row.name: row.role for row in row_plans(run.recipe)}
    assert roles["DE-1 + 2 heads (others)"] == "heads"
    (alone,) = [row for row in row_plans(recipe(methods=("heads-0-midpoints-small",))) if "midpoints" in row.name]
    assert not alone.role
