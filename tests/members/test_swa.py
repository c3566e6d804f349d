"""SWA networks: what they are trained to be, and as modes under curves and bridges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, update_bn

from modebridge import Mode, seeds
from modebridge.members import (
    BridgeMember,
    ModeMember,
    ModeWeights,
    PointMember,
    SwaMember,
    artefacts_behind,
    parse_member,
)
from modebridge.members.mode_member import AlignedMode, weights_of
from modebridge.members.swa_member import SwaWeights
from modebridge.nets import ResNet, spec_of
from modebridge.recipes import StageConfig, find_recipe
from modebridge.training import TrainConfig, side_by_side
from tests.members.methods_run import SEED, batches, finished, recipe
from tests.plans import fit_mode
from tests.runs.small import tiny
from tests.scenarios import EXACT, loader, tiny_net


def of(epochs: int, weight_decay: float = 0.0) -> TrainConfig:
    return SwaWeights(0).training(replace(tiny(), mode=StageConfig(epochs, weight_decay), lr=0.05, warmup=5))


def test_the_last_quarter_of_training_is_averaged_at_a_constant_rate() -> None:
    config = SwaWeights(0).training(find_recipe("tin200"))
    assert (config.average_from, config.keep, config.nesterov) == (150, "last", "authors")
    # The authors' rate from epoch 150 on.
    assert {round(config.lr * config.factor(epoch), 4) for epoch in range(149, 200)} == {0.0158}
    assert config.factor(148) == find_recipe("tin200").training("mode").factor(148)
    assert [of(n).average_from for n in (0, 1, 2, 4, 20)] == [0, 1, 1, 3, 15]


def test_its_rows_are_its_own_not_those_of_modes() -> None:
    rows = SwaMember.rows(replace(tiny(), methods=("swa", "swa-1")))
    assert [(row.name, row.members) for row in rows] == [("SWA", (SwaMember(0),)), ("SWA 1", (SwaMember(1),))]


def test_it_is_torchs_averaged_model() -> None:
    """Torch's SGD, AveragedModel and update_bn, the mean beside a training that it does not touch."""
    config, net = of(8, 1e-3), tiny_net(0, "bn", EXACT)
    data = loader(dtype=EXACT)
    ours = fit_mode(net, data, config=config)
    assert config.average_from == 6
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    mean = AveragedModel(net)
    net.train()
    for epoch in range(8):
        data.set_epoch(epoch)
        optimiser.param_groups[0]["lr"] = 0.05 * TrainConfig(epochs=8).factor(min(epoch, 5))
        for images, labels in data:
            optimiser.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimiser.step()
        if epoch >= 5:
            mean.update_parameters(net)
    assert int(mean.n_averaged) == 3
    data.set_epoch(8)
    update_bn(data, mean)
    state = mean.module.state_dict()
    for name, tensor in ours.state.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, state[name], rtol=0, atol=1e-10)


@pytest.mark.slow
def test_it_begins_and_goes_as_the_mode_of_its_number() -> None:
    def by_hand() -> Mode:
        net = ResNet(spec_of("digits", "bn", 10), seeds.generator(SEED, "mode", 0))
        config = replace(recipe().training("mode"), average_from=2, seed=seeds.seed_for(SEED, "mode", 0))
        return fit_mode(net, batches("mode", 0), config=config)

    (mode,) = side_by_side([by_hand])  # one core, as in a run
    assert finished()[0].load(SwaMember(0)).networks["swa-0"].id == mode.id


def test_with_base_swa_it_is_the_mode_of_the_run() -> None:
    recipe = replace(tiny(), base="swa")
    assert ModeMember(1).artefacts(recipe) == (SwaWeights(1),) == SwaMember(1).artefacts(tiny())
    places = {artefact.place for artefact in artefacts_behind([BridgeMember("II", 0, 1)], recipe)}
    assert places == {"bridges/II-0-1-small", "curves/0-1", "swa/0", "swa/1"}


def test_bridges_on_another_base_lie_beside_those_of_the_run() -> None:
    recipe = tiny()
    for name in ("swa-0", "swa-curve-0-1", "swa-curve-0-1@0.3", "swa-I-1-0-small", "swa-II-0-1-slim8@0.3"):
        assert parse_member(name).name == name
    bridge, other = (BridgeMember("I", 0, 1, base=base) for base in ("swa", ""))
    assert [member.name for member in (*bridge.reads, *bridge.ancestors)] == ["swa-0", "swa-0", "swa-1"]
    assert bridge.imitates == PointMember(0, 1, base="swa")
    assert {artefact.place for artefact in bridge.learns_from(recipe)} == {"curves/swa-0-1", "swa/0", "swa/1"}
    assert {artefact.place for artefact in other.learns_from(recipe)} == {"curves/0-1", "modes/0", "modes/1"}
    aligned = replace(recipe, align="weights")
    assert weights_of(1, aligned, "swa").place == "aligned/swa-1"
    assert weights_of(1, aligned, "swa").parents(aligned) == (SwaWeights(0), SwaWeights(1))
    own = replace(aligned, base="swa")
    assert weights_of(1, own) == AlignedMode(1, "weights")
    assert weights_of(1, own).parents(own) == (SwaWeights(0), SwaWeights(1))
    assert weights_of(1, aligned).parents(aligned) == (ModeWeights(0), ModeWeights(1))
