"""Modes and means of their weights: what they are trained to be, and as modes under curves and bridges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, update_bn

from modebridge import seeds
from modebridge.members import (
    AveragedMember,
    BridgeMember,
    ModeMember,
    PointMember,
    SwaMember,
    nodes_behind,
    parse_member,
)
from modebridge.members.network import AlignedMode, weights_of
from modebridge.recipes import StageConfig, find_recipe
from modebridge.training import TrainConfig
from tests.members.one_run import SEED, finished
from tests.runs.small import tiny
from tests.scenarios import EXACT, fit_mode, loader, tiny_net


def swa(epochs: int, weight_decay: float = 0.0) -> TrainConfig:
    return SwaMember(0).training(replace(tiny(), mode=StageConfig(epochs, weight_decay), lr=0.05, warmup=5))


def test_the_last_quarter_of_training_is_averaged_at_a_constant_rate() -> None:
    config = SwaMember(0).training(find_recipe("tin200"))
    assert (config.average_from, config.constant_from, config.keep, config.nesterov) == (150, 150, "last", "authors")
    # The authors' rate from epoch 150 on.
    assert {round(config.lr * config.factor(epoch), 4) for epoch in range(149, 200)} == {0.0158}
    assert config.factor(148) == find_recipe("tin200").training("mode").factor(148)
    assert [swa(n).average_from for n in (0, 1, 2, 4, 20)] == [0, 1, 1, 3, 15]
    usual = AveragedMember(0).training(find_recipe("tin200"))
    assert usual == replace(find_recipe("tin200").training("mode"), average_from=151, keep="last")
    short = [replace(tiny(), mode=StageConfig(n)) for n in (0, 1, 2, 4, 20)]
    assert [AveragedMember(0).training(recipe).average_from for recipe in short] == [0, 1, 2, 4, 16]


@pytest.mark.parametrize("constant", [6, 0])
def test_it_is_torchs_averaged_model(constant: int) -> None:
    """Torch's SGD, AveragedModel and update_bn, the mean beside a training that it does not touch."""
    config, net = replace(swa(8, 1e-3), constant_from=constant), tiny_net(0, "bn", EXACT)
    data = loader(dtype=EXACT)
    ours = fit_mode(net, data, config=config)
    assert config.average_from == 6
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    mean = AveragedModel(net)
    net.train()
    for epoch in range(8):
        data.set_epoch(epoch)
        optimizer.param_groups[0]["lr"] = 0.05 * TrainConfig(epochs=8).factor(min(epoch, 5) if constant else epoch)
        for images, labels in data:
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()
        if epoch >= 5:
            mean.update_parameters(net)
    assert int(mean.n_averaged) == 3
    data.set_epoch(8)
    update_bn(data, mean)
    state = mean.module.state_dict()
    for name, tensor in ours.state.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, state[name], rtol=0, atol=1e-10)


def test_a_mode_and_the_means_of_its_weights_have_the_weights_that_the_library_gives() -> None:
    """The same start and the same batches, by the library's function."""
    run, _ = finished()
    for member in (ModeMember(1), AveragedMember(0), SwaMember(0)):
        purpose = "mode", member.number
        net = run.setting.network.build(seeds.generator(SEED, *purpose))
        config = replace(member.training(run.recipe), seed=seeds.seed_for(SEED, *purpose))
        by_hand = fit_mode(net, run.setting.data.train(*purpose), config=config, valid=run.setting.data.valid())
        assert run.load(member).id == by_hand.id


def test_a_mode_of_a_recipe_has_the_weights_that_the_recipe_says() -> None:
    recipe = replace(tiny(), base="swa")
    assert ModeMember(1).nodes(recipe) == (SwaMember(1),) == SwaMember(1).nodes(tiny())
    assert ModeMember(1).nodes(replace(tiny(), base="averaged")) == (AveragedMember(1),)
    places = {node.place for node in nodes_behind([BridgeMember("II", 0, 1)], recipe)}
    assert places == {"bridges/II-0-1-small", "curves/0-1", "swa/0", "swa/1"}
    rows = SwaMember.rows(replace(tiny(), methods=("swa", "swa-1")))
    assert [(row.name, row.members) for row in rows] == [("SWA", ("swa-0",)), ("SWA 1", ("swa-1",))]
    assert SwaMember.usual(recipe) == []


def test_bridges_on_another_base_lie_beside_those_of_the_run() -> None:
    recipe = tiny()
    for name in (
        "averaged-1",
        "averaged-I-0-1-small",
        "swa-0",
        "swa-curve-0-1",
        "swa-curve-0-1@0.3",
        "swa-I-1-0-small",
        "swa-II-0-1-slim8@0.3",
    ):
        assert parse_member(name).name == name
    bridge, other = (BridgeMember("I", 0, 1, base=base) for base in ("swa", ""))
    assert [member.name for member in (*bridge.reads, *bridge.made_from(recipe))] == ["swa-0", "swa-0", "swa-1"]
    assert bridge.imitates == PointMember(0, 1, base="swa")
    assert {node.place for node in bridge.parents(recipe)} == {"curves/swa-0-1", "swa/0", "swa/1"}
    assert {node.place for node in other.parents(recipe)} == {"curves/0-1", "modes/0", "modes/1"}
    aligned = replace(recipe, align="weights")
    assert weights_of(1, aligned, "swa").place == "aligned/swa-1"
    assert weights_of(1, aligned, "swa").parents(aligned) == (SwaMember(0), SwaMember(1))
    own = replace(aligned, base="swa")
    assert weights_of(1, own) == AlignedMode(1, "weights")
    assert weights_of(1, own).parents(own) == (SwaMember(0), SwaMember(1))
    assert weights_of(1, aligned).parents(aligned) == (ModeMember(0), ModeMember(1))
