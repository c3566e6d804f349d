"""Bridges with several heads and several taps: every head is a member of files, answers, temperatures and timings."""

from __future__ import annotations

import json
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from modebridge.bridges import Bridge, Heads, VectorBody, body_for
from modebridge.deploy import (
    ALL,
    Deployed,
    OneModule,
    Temperatures,
    export,
    fit_temperatures,
    gated,
    trade_off,
    writers,
)
from modebridge.deploy.benchmark import race_file
from modebridge.deploy.grouped_bridges import units
from modebridge.deploy.metadata import read_metadata
from modebridge.deploy.torch_runners import Branches
from modebridge.ensembles import Ensemble, fit_temperature, scale
from modebridge.errors import ModebridgeError
from modebridge.members import BridgePredictor, NetworkPredictor
from modebridge.modes import Mode
from modebridge.runs.assemble import assembled
from modebridge.runs.trade_offs import temperatures_of
from modebridge.scoring import LogitTable, MemberCost
from tests.deploy.scenes import images, middle, staged_answer, stirred

FITTED = Temperatures(0.9, (1.0, 1.1, 1.2))
ENDS = [2, 5, 6]
"""Members of two modes and 0, 1, 2 bridges."""


def network() -> nn.Sequential:
    """Its taps: "0", maps of 4 x 4; "2", maps of 2 x 2."""
    early, late = nn.Conv2d(1, 3, 3, 2, 1), nn.Conv2d(3, 4, 3, 2, 1)
    return nn.Sequential(early, nn.ReLU(), late, nn.Flatten(), nn.Linear(16, 4))


def headed(mean="probability") -> Ensemble:
    """Two modes; type II with three heads at two taps, and type I with one: little to export."""
    generator = torch.Generator().manual_seed(0)
    nets = [network().eval() for _ in range(2)]
    bodies = [
        Heads(VectorBody(14, 5, 12, generator, layout="map"), 3),
        VectorBody(4, 5, 4, generator, layout="map"),
    ]
    for weight in (weight for part in (*nets, *bodies) for weight in part.parameters()):
        weight.data.normal_(0, 0.6, generator=generator)
    modes = [Mode.from_module(net) for net in nets]
    bridges = [
        Bridge(bodies[0], modes, ["0", "2"], name="three", heads=3),
        Bridge(bodies[1], modes[1:], "2", name="one"),
    ]
    found = Ensemble(nets[0], modes, bridges, mean=mean)
    found.temperature.fill_(1.3)
    return found


@torch.no_grad()
def by_hand(found, batch, members, temperature):
    """Of the first so many members, in float64."""
    table = found.members(batch).double()[:members]
    logs = table.log().mean(0) if found.mean == "logarithmic" else table.mean(0).log()
    return (logs / temperature).softmax(-1).numpy()


@pytest.fixture(scope="module", autouse=True)
def exported_once():
    """Files of both means, plain and elastic, are made of the same parts: these are exported once for all."""
    known = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("export_parts", "export_module"):
            original = getattr(writers, name)

            def once(exporter, called, module, example, name=name, original=original):
                key = (name, called, *(tensor.double().sum().item() for tensor in module.state_dict().values()))
                known[key] = known.get(key) or original(exporter, called, module, example)
                return known[key]

            patch.setattr(writers, name, once)
        yield


def files(fast):
    """Both formats and means; all but one are slow tests."""
    ways = [(".onnx", "probability"), (".onnx", "logarithmic"), (".pt2", "probability"), (".pt2", "logarithmic")]
    return [pytest.param(*way, marks=() if way == fast else pytest.mark.slow) for way in ways]


@pytest.mark.parametrize(("suffix", "mean"), files(fast=(".pt2", "logarithmic")))
@torch.no_grad()
def test_an_elastic_file(tmp_path, suffix, mean, monkeypatch):
    own, batch = headed(mean), images(9, seed=5)
    done = export(own, tmp_path / f"heads{suffix}", images(1), temperatures=FITTED, members=True)
    file = Deployed.load(done.path)
    assert done.parity < 1e-5
    members = own.members(batch)
    for bridges, (end, temperature) in enumerate(zip(ENDS, FITTED.by_bridges, strict=True)):
        told = file(batch, bridges=bridges, threshold=ALL)
        np.testing.assert_allclose(told.probabilities, by_hand(own, batch, end, temperature), atol=1e-5)
        assert told.used.tolist() == [end] * 9
        np.testing.assert_allclose(told.members[:, :end], members[:end].transpose(0, 1).numpy(), atol=1e-5)
        assert not told.members[:, end:].any()
        entropies = [-(table * table.log()).sum(-1) for table in (members[:end].double().mean(0), *members.double())]
        disagreement = entropies[0] - torch.stack(entropies[1 : end + 1]).mean(0)
        np.testing.assert_allclose(told.mutual_information, disagreement, atol=1e-5)
    threshold = middle(own, batch, FITTED.first)
    told, unsure = file(batch, bridges=1, threshold=threshold), members[0].log().div(0.9).softmax(-1).amax(-1)
    unsure = (unsure < threshold)[:, None].numpy()
    assert 0 < unsure.sum() < 9
    wanted = np.where(unsure, by_hand(own, batch, 5, 1.1), scale(members[0], 0.9).numpy())
    np.testing.assert_allclose(told.probabilities, wanted, atol=1e-5)
    assert told.used.tolist() == np.where(unsure[:, 0], 5, 1).tolist()
    assert file(images(0)).members.shape == (0, 6, 4)
    # An earlier reader would take every member for a mode or a bridge.
    monkeypatch.setattr("modebridge.deploy.metadata.FORMAT", 3)
    with pytest.raises(ModebridgeError, match="to be of format 3 or older, but got 4; install a newer modebridge"):
        Deployed.load(done.path)


@pytest.mark.parametrize(("suffix", "mean"), files(fast=(".onnx", "probability")))
def test_a_plain_file(tmp_path, suffix, mean):
    own, batch = headed(mean), images(5, seed=3)
    file = Deployed.load(export(own, tmp_path / f"plain{suffix}", images(1), elastic=False, names=list("abcd")).path)
    told, meta = file(batch), file.meta
    np.testing.assert_allclose(told.probabilities, by_hand(own, batch, 6, 1.3), atol=1e-5)
    assert told.used.tolist() == [6] * 5
    assert (meta["format"], meta["bases"], meta["bridges"], meta["heads"]) == (4, 2, 2, [3, 1])
    assert meta["members"] == ["a", "b", "c/0", "c/1", "c/2", "d"]
    assert meta["taps"] == ["0 + 2", "2"]
    # A body's last layer has all its heads; the unit is the base's 9 * 16 * 3 + 27 * 4 * 4 + 16 * 4.
    bodies = [14 * 5 + 5 * 12, 4 * 5 + 5 * 4]
    costs = [2 + done / 928 for done in accumulate(bodies, initial=0)]
    assert meta["cost"]["by_bridges"] == pytest.approx(costs)


def test_what_metadata_says_twice(tmp_path):
    meta = export(headed(), tmp_path / "a.onnx", images(1), elastic=False).meta

    def said_of(change):
        return read_metadata(json.dumps({**meta, **change}), tmp_path, sealed=True)

    assert said_of({})["members"][2:5] == ["three/0", "three/1", "three/2"]
    for change, words in (
        ({"heads": [4]}, "number of bridges with heads .* to be 2, .* but got 1"),
        ({"heads": [3, 2]}, "number of members .* to be 7, .* but got 6"),
        ({"heads": [4, 0]}, "'heads' .* to be a list of integers of at least 1"),
    ):
        with pytest.raises(ModebridgeError, match=words):
            said_of(change)


def grouped(norm="bn") -> Ensemble:
    """One mode; three bridges of one architecture and a plain one at one tap, two of them with batch norm inside."""
    torch.manual_seed(0)
    mode = Mode.from_module(stirred(network(), 0))
    bodies = [stirred(Heads(body_for((4, 2, 2), 8, "I", 2, norm=norm, seed=k), 2), k) for k in range(3)]
    bridges = [Bridge(body, [mode], "2", heads=2) for body in bodies]
    bridges.insert(1, Bridge(stirred(body_for((4, 2, 2), 4, "I", 2, norm=norm, seed=9), 9), [mode], "2"))
    return Ensemble(network(), [mode], bridges)


@pytest.mark.parametrize("norm", ["frn", "bn"])
@torch.no_grad()
def test_bridges_with_heads_that_run_as_one(norm):
    own, batch = grouped(norm).double(), images(5).double()
    for together, wanted in ((True, [(0, 2, 3), (1,)]), (False, [(0,), (1,), (2,), (3,)])):
        one = OneModule(own, grouped=together)
        assert one.units == wanted
        assert not any(isinstance(layer, nn.BatchNorm2d) for layer in one.runners.modules()), "folded"
        torch.testing.assert_close(one.members(batch), own.members(batch), rtol=0, atol=1e-10)
        torch.testing.assert_close(one(batch), own(batch), rtol=0, atol=1e-10)


def test_heads_that_are_made_otherwise_run_alone():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, feature):
            return torch.stack([self.a(feature), self.b(feature)], dim=1)

    bodies, reads = [Two(), Two(), *(Heads(nn.Linear(4, 6), 2) for _ in range(2))], [[(0, "a")]] * 4
    assert units(bodies, reads, [2] * 4) == [(0,), (1,), (2, 3)]


@pytest.mark.parametrize("mean", ["probability", "logarithmic"])
@torch.no_grad()
def test_what_torch_runs(mean):
    own, batch = headed(mean), images(5, seed=3)
    torch.testing.assert_close(Branches(own, dtype=torch.bfloat16)(batch.bfloat16()), own(batch), rtol=0, atol=0.02)
    own, batch = own.double(), batch.double()
    for runner in (OneModule(own), OneModule(own, grouped=True), Branches(own, dtype=torch.float64)):
        torch.testing.assert_close(runner(batch), own(batch), rtol=0, atol=1e-10)
    answer = staged_answer(OneModule(headed().double(), FITTED), batch, bridges=2)
    np.testing.assert_allclose(answer.probabilities, by_hand(headed().double(), batch, 6, 1.2), atol=1e-10)
    assert answer.used.tolist() == [6] * 5


@pytest.fixture(scope="module")
def said():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (200,), generator=generator)
    table = 2 * torch.nn.functional.one_hot(labels, 4) + 3 * torch.randn(8, 200, 4, generator=generator).double()
    return table, labels


def test_a_temperature_for_every_number_of_bridges(said, tmp_path):
    members, labels = said[0].softmax(-1), said[1]
    fitted = fit_temperatures(members, labels, 2, heads=(3, 1, 2))
    assert fitted.by_bridges == tuple(fit_temperature(members[:end].mean(0), labels) for end in (2, 5, 6, 8))
    assert (fitted.first, fitted.heads) == (fit_temperature(members[0], labels), (3, 1, 2))
    assert fit_temperatures(members, labels, 2, heads=[1] * 6) == fit_temperatures(members, labels, 2)
    answers, unsure = gated(members[:5], 2, fitted, 0.7)
    wanted = scale(members[:5].mean(0), fitted.by_bridges[1])
    torch.testing.assert_close(answers[unsure], wanted[unsure], rtol=0, atol=1e-12)
    last = trade_off(members, labels, 2, fitted, 2.0, 0.3)[-1]
    assert (last.share, last.cost) == (1.0, pytest.approx(2.3))
    with pytest.raises(ModebridgeError, match=r"besides the bases to be one of \[0, 3, 4, 6\], but got 2"):
        gated(members[:4], 2, fitted, 0.7)
    with pytest.raises(ModebridgeError, match=r"the 6 members after the bases, but got \[3, 1\]"):
        fit_temperatures(members, labels, 2, heads=[3, 1])
    with pytest.raises(ModebridgeError, match=r"one number of heads per bridge, for 3 bridges, but got \(3, 2\)"):
        Temperatures(1.0, (1.0,) * 4, (3, 2)).check(3)
    # In a file they are those of `valid`, the full one the ensemble's own.
    own, batch = headed(), images(60)
    own.calibrate([(batch, torch.arange(60) % 4)])
    meta = export(own, tmp_path / "a.onnx", images(1), valid=[(batch, torch.arange(60) % 4)]).meta
    with torch.no_grad():
        tables = own.members(batch)
    fresh = [fit_temperature(tables[:end].mean(0), torch.arange(60) % 4) for end in ENDS]
    assert meta["temperatures"] == pytest.approx(fresh, rel=1e-5)


def test_of_a_run(said):
    """A member that is a bridge with heads is a part of the ensemble; its temperatures are of all of its heads."""
    (table, labels), names = said, ["mode-0", "I-0-1-small", "II-0-1-small"]
    tables = {"mode-0": table[0], "I-0-1-small": table[1:4], "II-0-1-small": table[4]}
    costs = {"mode-0": MemberCost(10, 10)} | {name: MemberCost(1, 1, ("mode-0",)) for name in names[1:]}
    answers = LogitTable(tables, tables, labels, labels, costs)
    fitted = temperatures_of(answers, names)
    assert fitted.heads == (3, 1)
    assert fitted.by_bridges == pytest.approx([answers.temperature(names[:count]) for count in (1, 2, 3)], rel=1e-9)
    own, net = headed(), network()
    modes = [Mode.from_module(base) for base in own.bases]
    predictors = {f"mode-{k}": NetworkPredictor(f"mode-{k}", mode) for k, mode in enumerate(modes)}
    predictors |= {bridge.name: BridgePredictor(bridge, predictors["mode-0"].networks) for bridge in own.bridges}
    found = assembled(SimpleNamespace(net=net), predictors)
    assert len(found) == 6
    with torch.no_grad():
        assert torch.equal(found.members(images(3)), own.members(images(3)))


@pytest.mark.slow
@torch.no_grad()
def test_eight_bits_groups_and_times(tmp_path):
    own, batch = headed(), images(60, seed=1)
    labels = torch.arange(60) % 4
    done = export(own, tmp_path / "int8.onnx", images(1), int8=batch, check=(batch, labels), members=True)
    assert done.int8.agreement > 0.9
    # Every head is near its own member, and nearer than to any other.
    told, members = torch.from_numpy(Deployed.load(done.path)(batch).members), own.members(batch).transpose(0, 1)
    apart = (told[:, :, None] - members[:, None]).abs().mean(dim=(0, 3))
    assert apart.argmin(dim=1).tolist() == list(range(6))
    assert float(apart.diagonal().max()) < 0.05
    assert Deployed.load(done.path)(batch, bridges=1).used.tolist() == [5] * 60
    lines = race_file(Deployed.load(done.path), [2], seconds=0.01)
    assert [line.name for line in lines][-1] == "DE-2 + 2 bridges"
    one = grouped()
    path = export(one, tmp_path / "grouped.onnx", images(1), elastic=False, grouped=True).path
    np.testing.assert_allclose(Deployed.load(path)(batch).probabilities, one(batch), atol=1e-5)


@pytest.mark.slow
def test_compiled_ahead_of_time(tmp_path):
    own, batch = headed(), images(5, seed=1)
    file = Deployed.load(export(own, tmp_path / "a.pt2", images(1), aot=True, temperatures=FITTED).path)
    for bridges, (end, temperature) in enumerate(zip(ENDS, FITTED.by_bridges, strict=True)):
        told = file(batch, bridges=bridges).probabilities
        np.testing.assert_allclose(told, by_hand(own, batch, end, temperature), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_says_what_the_ensemble_says():
    own, batch = headed(), images(5, seed=1)
    torch.testing.assert_close(Branches(own, compiled=True)(batch), own(batch), rtol=0, atol=1e-5)
