"""`predict` and `evaluate`: one pass, every score the same as by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

from modebridge.bridges import Bridge, body_like, last_blocks_tap
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.scoring import Cost, Scored, accuracy, brier, cost, ece, evaluate, nll, predict
from modebridge.scoring.scores import hits, interval_of, resampled_means, surprisals
from tests.scenarios import EXACT, TINY, modes, tiny_net


def batches(count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = [7, 7, 4][:count]
    images = [torch.rand(n, 1, 8, 8, generator=generator, dtype=EXACT) for n in sizes]
    return [(part, torch.randint(3, (len(part),), generator=generator)) for part in images]


@pytest.fixture
def ensemble():
    members, tap = modes(2, dtype=EXACT), last_blocks_tap(TINY)
    one = Bridge(body_like(TINY, "I", seed=0).double(), members[:1], tap, name="I")
    two = Bridge(body_like(TINY, "II", seed=1).double(), members, tap, name="II")
    return Ensemble(tiny_net(dtype=EXACT), members, [one, two])


def test_scores_are_those_by_hand(ensemble):
    data = batches()
    found = evaluate(ensemble.calibrate(batches(seed=1)), iter(data))  # in one pass
    images, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    with torch.no_grad():
        plain = ensemble.members(images).mean(dim=0)
        tempered = ensemble(images)
    assert found.n == 18
    assert found.accuracy == accuracy(plain, labels)
    for score, raw, calibrated in [
        (nll, found.raw_nll, found.nll),
        (ece, found.raw_ece, found.ece),
        (brier, found.raw_brier, found.brier),
    ]:
        assert raw == pytest.approx(score(plain, labels), rel=1e-9)
        assert calibrated == pytest.approx(score(tempered, labels), rel=1e-9)
    table, numbers = predict(ensemble, data)
    torch.testing.assert_close(table, tempered, rtol=0, atol=1e-12)
    assert torch.equal(numbers, labels)
    assert not table.requires_grad
    assert found.temperature == float(ensemble.temperature) != 1.0
    assert found.nll != found.raw_nll
    assert found.cost == cost(ensemble, (1, 8, 8))
    assert found.intervals == {}


def test_a_mode_and_a_module_are_ensembles_of_one():
    (mode, _), net, data = modes(2, dtype=EXACT), tiny_net(dtype=EXACT), batches()
    wanted = evaluate(Ensemble(net, [mode]), data)
    assert evaluate(mode, data, net=net) == wanted
    assert evaluate(mode.load(net), data) == wanted
    assert wanted.cost.relative_flops == 1.0
    with pytest.raises(ModebridgeError, match="no net; pass Ensemble"):
        evaluate(mode, data)
    with pytest.raises(ModebridgeError, match="a module or an exported file, but got function"):
        evaluate(batches, data)


def test_an_exported_file_has_calibrated_scores_and_its_own_cost(ensemble):
    ensemble.calibrate(batches(seed=1))
    whole, several = evaluate(ensemble, batches()), []

    class File:
        meta: ClassVar = {"cost": asdict(whole.cost), "temperature": 1.5}

        def __call__(self, images):
            used = torch.arange(len(images)) % 3 + 1
            several.append(used > 1)
            return SimpleNamespace(probabilities=ensemble(images).detach().numpy(), used=used.numpy())

    found = evaluate(File(), batches(), intervals=True)
    assert (found.n, found.accuracy, found.cost.relative_flops) == (18, whole.accuracy, whole.cost.relative_flops)
    assert found.nll == pytest.approx(whole.nll, rel=1e-9)
    assert found.temperature == 1.5
    assert "uncalibrated" not in str(found), "a file has no raw scores"
    File.meta = {**File.meta, "threshold": 0.9}
    several.clear()
    found = evaluate(File(), batches())
    share = float(torch.cat(several).double().mean())
    assert (found.threshold, found.deferred_share) == (0.9, share)
    assert 0.5 < share < 1
    average = 1 + (whole.cost.relative_flops - 1) * share
    assert found.cost.relative_flops == pytest.approx(average), "of a cascade, over the images"


def test_intervals_and_no_temperature(ensemble):
    found = evaluate(ensemble, batches(), intervals=True)
    assert found.temperature is None
    assert (found.nll, found.ece, found.brier) == (found.raw_nll, found.raw_ece, found.raw_brier)
    plain, labels = predict(ensemble, batches())
    means = resampled_means(torch.stack([hits(plain, labels), surprisals(plain, labels)], dim=1))
    assert found.intervals["accuracy"] == interval_of(means[:, 0])
    assert found.intervals["nll"] == pytest.approx(interval_of(means[:, 1]))
    images, labels = batches()[0]
    assert evaluate(ensemble, [(images[:1], labels[:1])], intervals=True).n == 1


def test_no_data_is_refused(ensemble):
    for empty in ([], iter([])):
        with pytest.raises(ModebridgeError, match="Expected data to have batches"):
            evaluate(ensemble, empty)


def test_predict_leaves_a_module_as_it_was():
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 10), nn.Softmax(dim=1))
    net.double().train()
    net[1].eval()  # a frozen part in a network in training
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    first, _ = predict(net, batches())
    assert torch.equal(first, predict(net, batches())[0])  # no dropout
    assert [m.training for m in net] == [True, False, True, True, True]
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    with pytest.raises(ModebridgeError):
        predict(net, [(torch.rand(2, 1, 8, 8), torch.zeros(3, dtype=torch.long))])
    assert net.training  # also after an error


@pytest.mark.parametrize("answer", [None, torch.zeros(7), torch.zeros(2, 7, 10), torch.zeros(6, 10)])
def test_predict_refuses_what_is_no_table(answer):
    with pytest.raises(ModebridgeError, match="Expected the model to return probabilities"):
        predict(lambda images: answer, batches(1))


def test_scores_print_as_a_table():
    price = Cost(1e6, 10, 1.05, 1.08)
    numbers = {"nll": 0.7, "ece": 0.1, "brier": 0.4, "raw_nll": 0.7, "raw_ece": 0.1, "raw_brier": 0.4}
    intervals = {"accuracy": (0.45, 0.55), "nll": (0.68, 0.72)}
    scores = Scored(n=1900, cost=price, accuracy=0.5, intervals=intervals, **numbers)
    assert str(scores).splitlines() == [
        "score     uncalibrated      95% interval",
        "accuracy        50.00%  45.00% to 55.00%",
        "NLL             0.7000  0.6800 to 0.7200",
        "ECE             0.1000",
        "Brier           0.4000",
        "1,900 images; FLOPs x1.05 and parameters x1.08 of one network",
    ]
    assert "499 images (the interval is too short with so few)" in str(replace(scores, n=499))


def test_half_precision():
    net, ends = tiny_net(0, "bn"), modes(2, "bn")
    half = tiny_net(0, "bn").bfloat16()
    halves = [Mode.from_state_dict(half, mode.state) for mode in ends]
    images = [(part.float(), labels) for part, labels in batches()]
    rounded = [(part.bfloat16(), labels) for part, labels in images]
    scores = evaluate(Ensemble(half, halves).calibrate(rounded), rounded)
    exact = evaluate(Ensemble(net, ends).calibrate(images), images)
    assert scores.raw_nll == pytest.approx(exact.raw_nll, abs=0.01)
    assert scores.nll == pytest.approx(exact.nll, abs=0.01)
    with pytest.raises(ModebridgeError, match=r"to be torch\.bfloat16, .* but got torch\.float32"):
        evaluate(Ensemble(half, halves), images)
    # A table that came in bfloat16 is judged by that precision; logits are still refused.
    rows, labels = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)).bfloat16(), torch.arange(50) % 40
    assert abs(nll(rows.softmax(-1), labels) - 4) < 1
    with pytest.raises(ModebridgeError, match="pass probabilities, not logits"):
        nll(rows.abs(), labels)
