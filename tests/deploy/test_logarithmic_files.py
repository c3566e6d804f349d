"""Files by the logarithmic mean: plain, grouped and elastic, of both formats, against the mean of the logits itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from modebridge.bridges import Bridge
from modebridge.bridges.bodies import VectorBody
from modebridge.deploy import ALL, Deployed, OneModule, Temperatures, export, fit_temperatures, gated
from modebridge.deploy.torch_runners import Branches, Vmapped
from modebridge.ensembles import Ensemble, fit_temperature
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from tests.deploy.scenes import images, middle

FITTED = Temperatures(0.9, (1.0, 1.1))


def logarithmic(ones=1, twos=1):
    """Two modes of a small network, and bridges: little to export."""
    generator = torch.Generator().manual_seed(0)
    nets = [nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 4)) for _ in range(2)]
    for weight in (weight for net in nets for weight in net.parameters()):
        weight.data.normal_(0, 0.6, generator=generator)
    modes = [Mode.from_module(net.eval()) for net in nets]
    bridges = [Bridge(VectorBody(6, 5, 4, generator), modes[:1], "2", name=f"I-{k}") for k in range(ones)]
    bridges += [Bridge(VectorBody(12, 5, 4, generator), modes, "2", name=f"II-{k}") for k in range(twos)]
    found = Ensemble(nets[0], modes, bridges, mean="logarithmic")
    found.temperature.fill_(1.3)
    return found


@torch.no_grad()
def by_hand(found, batch, bridges, temperature):
    """softmax(mean of log p / T) of the bases and some bridges, in float64."""
    logs = found.members(batch).double().log()[: len(found.bases) + bridges]
    return (logs.mean(0) / temperature).softmax(-1).numpy()


@pytest.mark.slow  # test_headed.py has one that is fast
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_an_elastic_file(tmp_path, suffix, monkeypatch):
    own = logarithmic(twos=0)
    done = export(own, tmp_path / f"log{suffix}", images(1), temperatures=FITTED, members=True)
    file = Deployed.load(done.path)
    assert (file.meta["mean"], file.meta["format"]) == ("logarithmic", 3)
    batch = images(9, seed=5)
    for bridges, temperature in enumerate(FITTED.by_bridges):
        wanted = by_hand(own, batch, bridges, temperature)
        np.testing.assert_allclose(file(batch, bridges=bridges, threshold=ALL).probabilities, wanted, atol=1e-5)
    threshold = middle(own, batch, FITTED.first)
    told = file(batch, threshold=threshold)
    with torch.no_grad():
        members = own.members(batch)
    wanted, unsure = gated(members, 2, FITTED, threshold, "logarithmic")
    assert 0 < int(unsure.sum()) < 9
    np.testing.assert_allclose(told.probabilities, wanted.numpy(), atol=1e-5)
    # How much the members disagree is of their mixture, whatever mean answers.
    mixed = members.double().mean(0)
    entropies = [-(table * table.log()).sum(-1) for table in (mixed, *members.double())]
    told = file(batch, threshold=ALL)
    np.testing.assert_allclose(told.mutual_information, entropies[0] - torch.stack(entropies[1:]).mean(0), atol=1e-5)
    np.testing.assert_allclose(told.members, members.transpose(0, 1).numpy(), atol=1e-5)
    # Readers before it would average the programs of a .pt2 archive in their own way, and never say so.
    monkeypatch.setattr("modebridge.deploy.metadata.FORMAT", 2)
    with pytest.raises(ModebridgeError, match="to be of format 2 or older, but got 3; install a newer modebridge"):
        Deployed.load(done.path)


@pytest.mark.parametrize(("suffix", "grouped"), [pytest.param(".onnx", True, marks=pytest.mark.slow), (".pt2", False)])
def test_a_plain_file_whose_bridges_run_as_one_or_not(tmp_path, suffix, grouped):
    own = logarithmic(ones=2, twos=0)
    assert len(OneModule(own, grouped=True).runners) == 1
    path = export(own, tmp_path / f"plain{suffix}", images(1), elastic=False, grouped=grouped).path
    batch = images(5, seed=3)
    np.testing.assert_allclose(Deployed.load(path)(batch).probabilities, by_hand(own, batch, 2, 1.3), atol=1e-5)


@torch.no_grad()
def test_what_torch_runs():
    own, batch = logarithmic(), images(5, seed=3)
    wanted = torch.from_numpy(by_hand(own, batch, 2, 1.3)).float()
    for runner in (OneModule(own), Branches(own)):
        torch.testing.assert_close(runner(batch), wanted, rtol=0, atol=1e-5)
    pair = logarithmic(ones=0, twos=0)
    torch.testing.assert_close(Vmapped(pair)(batch), pair(batch), rtol=0, atol=1e-5)


def test_temperatures_are_of_the_mean_that_answers():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (200,), generator=generator)
    table = 2 * torch.nn.functional.one_hot(labels, 4) + 1.5 * torch.randn(3, 200, 4, generator=generator).double()
    fitted = fit_temperatures(table.softmax(-1), labels, 2, "logarithmic")
    assert fitted.first == fit_temperature(table[0].softmax(-1), labels)
    wanted = [fit_temperature(table[:m].mean(0).softmax(-1), labels) for m in (2, 3)]
    assert list(fitted.by_bridges) == pytest.approx(wanted, rel=1e-9)
    assert fitted.by_bridges != fit_temperatures(table.softmax(-1), labels, 2).by_bridges
