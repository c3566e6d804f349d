"""One module: the library's probabilities, no more work than asked for, several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from scipy.stats import entropy
from torch import nn

from modebridge.bridges import Bridge, VectorBody, body_for
from modebridge.deploy import OneModule, Temperatures
from modebridge.deploy.elastic_answer import uncertainty
from modebridge.deploy.grouped_bridges import Grouped, units
from modebridge.ensembles import Ensemble, scale
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from tests.deploy.scenes import ensemble, images, middle, staged_answer, stirred
from tests.scenarios import TINY, tiny_net

FITTED = Temperatures(0.8, (1.0, 1.1, 1.2, 1.3))


@pytest.mark.parametrize("norm", ["frn", "bn"])
@pytest.mark.parametrize("grouped", [False, True])
@torch.no_grad()
def test_it_says_what_the_ensemble_says(norm, grouped):
    own = ensemble(norm, ones=3).double()
    one = OneModule(own, grouped=grouped)
    assert one.units == ([(0, 1, 2), (3,)] if grouped else [(0,), (1,), (2,), (3,)])
    for count in (1, 5):
        batch = images(count).double()
        torch.testing.assert_close(one.members(batch), own.members(batch), rtol=0, atol=1e-10)
        torch.testing.assert_close(one(batch), own(batch), rtol=0, atol=1e-10)


@torch.no_grad()
def test_the_ensemble_is_not_touched():
    own = ensemble()
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    one = OneModule(own)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in one.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())


@pytest.mark.parametrize("asked", [0, 1, 2, 3])
@torch.no_grad()
def test_fewer_bridges_by_hand(asked):
    own, batch = ensemble().double(), images(6).double()
    answer = staged_answer(OneModule(own, FITTED), batch, asked)
    members = own.members(batch)
    torch.testing.assert_close(
        answer.probabilities, scale(members[: 2 + asked].mean(0), FITTED.by_bridges[asked]), rtol=0, atol=1e-10
    )
    assert answer.used.tolist() == [2 + asked] * 6
    torch.testing.assert_close(answer.members[:, : 2 + asked], members[: 2 + asked].transpose(0, 1), atol=1e-10, rtol=0)
    assert not answer.members[:, 2 + asked :].any()


@torch.no_grad()
def test_sure_images_get_the_first_base_alone_and_nothing_else_runs_for_them():
    own, batch = ensemble().double(), images(9).double()
    one = OneModule(own, FITTED)
    seen: dict[str, int] = {}
    for name, part in [("base", one.bases[1]), *[(f"bridge{k}", part) for k, part in enumerate(one.runners)]]:
        part.register_forward_hook(lambda m, args, out, name=name: seen.__setitem__(name, len(args[0])))
    threshold = middle(own, batch, FITTED.first)
    answer = staged_answer(one, batch, threshold=threshold)
    members = own.members(batch)
    alone, whole = scale(members[0], FITTED.first), scale(members.mean(0), FITTED.by_bridges[-1])
    unsure = alone.amax(-1) < threshold
    assert 0 < int(unsure.sum()) < 9
    assert set(seen.values()) == {int(unsure.sum())}
    torch.testing.assert_close(answer.probabilities[unsure], whole[unsure], rtol=0, atol=1e-10)
    torch.testing.assert_close(answer.probabilities[~unsure], alone[~unsure], rtol=0, atol=1e-10)
    assert torch.equal(answer.used, torch.where(unsure, 5, 1))
    seen.clear()
    assert staged_answer(one, batch, threshold=0.0).used.tolist() == [1] * 9
    assert seen == {}


@torch.no_grad()
def test_no_image():
    answer = staged_answer(OneModule(ensemble()), images(0))
    assert answer.probabilities.shape == (0, 3)
    assert answer.members.shape == (0, 5, 3)
    assert answer.entropy.shape == answer.used.shape == (0,)


@torch.no_grad()
def test_uncertainty_against_scipy():
    own, batch = ensemble().double(), images(5).double()
    answer = staged_answer(OneModule(own), batch)
    members = own.members(batch).numpy()
    assert answer.entropy.tolist() == pytest.approx(entropy(own(batch).numpy(), axis=-1).tolist(), abs=1e-9)
    disagreement = entropy(members.mean(0), axis=-1) - entropy(members, axis=-1).mean(0)
    assert answer.mutual_information.tolist() == pytest.approx(disagreement.tolist(), abs=1e-9)


def test_members_that_agree_share_no_information_and_members_that_contradict_share_a_bit():
    agree = torch.tensor([[0.3, 0.7]]).expand(4, 1, 2)
    assert uncertainty(agree[0], agree, torch.tensor([4]))[1].item() == pytest.approx(0, abs=1e-6)
    split = torch.eye(2)[:, None]
    assert uncertainty(split.mean(0), split, torch.tensor([2]))[1].item() == pytest.approx(0.6931, abs=1e-4)


@torch.no_grad()
def test_threads_do_not_hear_each_other():
    one = OneModule(ensemble())
    batches = [images(3, seed) for seed in range(16)]
    alone = [one(batch) for batch in batches]

    def ask(batch):
        with torch.no_grad():
            return one(batch)

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, batches * 4))
    assert all(torch.equal(told, alone[k % 16]) for k, told in enumerate(together))


def test_bad_arguments_are_said():
    with pytest.raises(ModebridgeError, match="temperature for each of 0 to 3 bridges, but got 2"):
        OneModule(ensemble(), Temperatures(1.0, (1.0, 1.0)))
    with pytest.raises(ModebridgeError, match="positive"):
        OneModule(ensemble(), Temperatures(0.0, (1.0,) * 4))


def test_what_goes_together():
    small, large = (VectorBody(4, width, 3) for width in (4, 5))
    odd = nn.Sequential(nn.Linear(4, 3), nn.Softplus())
    here, there = [(0, "a")], [(0, "b")]
    bodies = [small, VectorBody(4, 4, 3), large, VectorBody(4, 4, 3), odd, odd, VectorBody(4, 4, 3)]
    reads = [here, here, here, there, here, here, here * 2]
    assert units(bodies, reads) == [(0, 1), (2,), (3,), (4,), (5,), (6,)]
    assert units([], []) == []


@torch.no_grad()
def test_vectors_grouped():
    bodies = [VectorBody(4, 5, 3, torch.Generator().manual_seed(k)).double() for k in range(3)]
    feature = torch.rand(2, 4, dtype=torch.float64)
    torch.testing.assert_close(
        Grouped(bodies)(feature), torch.stack([body(feature) for body in bodies]), rtol=0, atol=1e-12
    )


@torch.no_grad()
def test_a_tap_before_a_batch_norm_reads_what_it_read():
    """The bridge reads a convolution whose batch norm must then stay."""
    net = stirred(tiny_net(0, "bn"), 0)
    mode = Mode.from_module(net)
    body = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(TINY.widths[1], 3))
    own = Ensemble(net, [mode], [Bridge(body, [mode], "layers.4.conv1", name="x")]).double()
    one, batch = OneModule(own), images(3).double()
    torch.testing.assert_close(one(batch), own(batch), rtol=0, atol=1e-10)
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in one.modules()) == 1


@torch.no_grad()
def test_sequences_grouped():
    bodies = [stirred(body_for((6, 9), 3, "I", 2, layout="sequence", seed=k), k) for k in range(3)]
    assert units(bodies, [[(0, "a")]] * 3) == [(0, 1, 2)]
    for length in (9, 14):
        feature = torch.rand(2, 6, length)
        torch.testing.assert_close(Grouped(bodies)(feature), torch.stack([body(feature) for body in bodies]))
