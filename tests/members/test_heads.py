"""Bridges with several heads as members: what they learn, what they cost, and in the table."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from modebridge import trees
from modebridge.bridges import build_bridge, curve_target, heads_target, label_target, mode_target
from modebridge.errors import ModebridgeError
from modebridge.members import HeadsMember, ModeMember, Pin, PointMember, members_of, parse_member, row_plans
from modebridge.members.setting import Setting
from modebridge.training import fit_many
from tests.members.one_run import HEADS, finished, recipe


def test_names_and_rows() -> None:
    wanted = recipe(("heads", *HEADS[1:]))
    members = [member for member in members_of(wanted) if isinstance(member, HeadsMember)]
    assert tuple(member.name for member in members) == HEADS
    assert [parse_member(name) for name in HEADS] == members
    assert [member.heads(wanted) for member in members] == [2, 3, 1]
    rows = {row.name: row.role for row in row_plans(wanted) if "head" in row.name}
    assert rows == {
        "one network + 2 heads": "heads",
        "one network + 3 heads (midpoints, labels)": "",
        "one network + 1 head (mean), on mode 1": "",
    }
    assert not any("head" in row.name for row in row_plans(recipe()))
    # The summary says of heads that they need no curve: not of those on midpoints.
    (alone,) = [row for row in row_plans(recipe(("heads-0-midpoints-small",))) if "midpoints" in row.name]
    assert not alone.role
    assert not HeadsMember(3).belongs(wanted)
    assert HeadsMember.parse("heads-0-others-slim2.5") == HeadsMember(0, size="slim2.5")


@pytest.mark.parametrize(
    "name", ["I-0-1-huge", "labels-0-1-slim", "heads-0-others-slim0x", "heads-0-others+others-small", "heads-0-small"]
)
def test_what_is_no_name_of_a_member(name: str) -> None:
    with pytest.raises(ModebridgeError, match="Expected a member such as"):
        parse_member(name)
    with pytest.raises(ModebridgeError, match=f"but got '{name}'".replace("+", r"\+")):
        members_of(recipe((name,)))


def test_each_has_the_weights_that_the_library_gives() -> None:
    """By hand: the same seed, batches and targets, one wide block and CutMix, trained alone."""
    run, answers = finished()
    setting, modes = run.setting, [run.load(ModeMember(k)) for k in range(3)]
    tensors = run.tensors([node for j in (1, 2) for node in PointMember(0, j).nodes(run.recipe)])
    middle = [curve_target(Pin(0, j).load(setting, tensors)) for j in (1, 2)]
    wanted = {HEADS[0]: [mode_target(modes[1]), mode_target(modes[2])], HEADS[1]: [*middle, label_target()]}
    for name, targets in wanted.items():
        on = setting.net, setting.example, modes[:1], heads_target(targets)
        named = {"name": name, "seed": setting.seed_of(name.removesuffix("-small"))}
        share = build_bridge(*on, slim=run.recipe.slim("small"), **named).share
        plan = build_bridge(*on, budget=share * (1 + 1e-9), wide=True, **named)
        config = replace(run.recipe.training("bridge"), seed=setting.seed_of("bridges"), mixup=0.0, cutmix=1.0)
        data, valid = setting.data.train("bridges", bridges=True), setting.data.valid()
        alone = fit_many(setting.net, {name: plan}, data, config=config, valid=valid)[name]
        assert trees.fingerprint(alone.state_dict()) == trees.fingerprint(run.load(parse_member(name)).state_dict())
    assert answers.test[HEADS[0]].shape == (2, len(answers.test_labels), 10)


def test_they_count_as_their_heads_and_cost_as_one_bridge() -> None:
    run, answers = finished()
    one, several = (answers.cost(("mode-0", name)).relative_flops for name in ("I-0-1-small", HEADS[0]))
    assert one - 0.02 < several < one + 0.01
    heads = [answers.test["mode-0"], *answers.test[HEADS[0]]]
    expected = sum(head.double().softmax(-1) for head in heads) / 3
    torch.testing.assert_close(answers.probabilities(("mode-0", HEADS[0])), expected, rtol=0, atol=1e-6)
    member, setting = HeadsMember(0, ("midpoints", "labels")), run.setting
    assert member.teachers(run.recipe) == (PointMember(0, 1), PointMember(0, 2))
    assert set(member.made_from(run.recipe)) == {ModeMember(k) for k in range(3)}
    # Mode 0 and two midpoints run once, and the body forward and backward.
    assert HeadsMember.work([member], setting) == 3 * setting.base_cost.flops + 3 * member.chosen(setting).flops
    places = [node.place for node in HeadsMember(0).parents(run.recipe)]
    assert places == ["modes/0", "modes/1", "modes/2"], "no curve"


def test_inputs_that_are_no_images_are_mixed_as_for_bridges() -> None:
    vectors = SimpleNamespace(recipe=recipe(mixup=0.3, cutmix=0.2), example=torch.zeros(2, 5))
    assert HeadsMember.mixing(vectors) == (0.3, 0.2)  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", range(3, 9))
def test_features_without_places_have_the_body_of_a_bridge(classes: int) -> None:
    """Where no block can be wide, heads are as wide as `slim` says, whatever the rounding of shares."""
    net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, classes))
    for modes in (2, 3, 4):
        setting = Setting(replace(recipe(width_divisor=2.0), modes=modes))
        vars(setting).update(network=SimpleNamespace(spec=None), net=net, example=torch.rand(2, 5))
        plain, wide = (HeadsMember(0).chosen(setting, wide) for wide in (False, True))
        assert wide.heads == modes - 1
        assert (wide.flops, wide.params) == (plain.flops, plain.params)


def test_a_note_where_the_network_that_heads_read_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library adds a head on labels there; a run, whose costs are known before it trains, says what to set."""
    run, _ = finished()
    parents = run.tensors(list(HeadsMember(0).parents(run.recipe)))
    monkeypatch.setattr("modebridge.members.bridge.fit_many", lambda *given, **options: {})
    for right, notes in ((0.96, 0), (0.8, 1)):
        monkeypatch.setattr("modebridge.members.heads.training_accuracy", lambda *_, right=right: ([right], [9] * 9))
        with warnings.catch_warnings(record=True, action="always") as said:
            members = [HeadsMember(0), HeadsMember(0, ("others", "labels"))]
            assert HeadsMember.make(members, run.setting, parents, run.recipe.training("bridge")) == {}
        assert len(said) == notes
    assert "only 80% of its training data" in str(said[0].message)
    name = str(said[0].message).partition("methods=")[2].partition(",")[0]
    assert parse_member(name) == members[1]
