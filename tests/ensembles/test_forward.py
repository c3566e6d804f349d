"""Bases that run once, the logits of all members, both means, and cascades, each by hand."""

from __future__ import annotations

import pytest
import torch

from modebridge.bridges import plan_bridge
from modebridge.ensembles import Bases, Ensemble, average, cascaded, fit_temperature, member_logits, probabilities_of
from modebridge.errors import ModebridgeError
from modebridge.nets import Tapped
from tests.scenarios import EXACT, blobs, modes, tiny_net


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=EXACT)


@torch.no_grad()
def test_members_are_the_bases_and_every_head_of_every_bridge():
    net, ends, images = tiny_net(0, "bn", EXACT).eval(), modes(3, "bn", EXACT), blobs(5, dtype=EXACT).images
    one, two = (plan_bridge(net, ends, images, kind=kind).eval() for kind in ("I", "II"))
    bases = Bases(net, {"a": ends[0], "b": ends[1]}, [*one.taps, *two.taps])
    runs, run = [], bases.run
    bases.run = lambda *given: runs.append(1) or run(*given)
    found = member_logits(bases(images), [(one, ["b"]), (two, ["b", "a"])])
    assert len(runs) == 2
    (first, of_a), (second, of_b) = (Tapped(mode.load(net), one.taps)(images) for mode in ends[:2])
    a, b = of_a[one.tap], of_b[one.tap]
    by_hand = [first, second, *one(b).unbind(1), two(b, a)]
    assert len(found) == 5
    torch.testing.assert_close(torch.stack(found), torch.stack(by_hand), rtol=0, atol=1e-12)
    own = probabilities_of(torch.stack(member_logits(bases(images), [(one, ["a"])])))
    torch.testing.assert_close(Ensemble(net, ends[:2], [one]).members(images), own, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 7, 5), (1, 1, 2), (2, 0, 4), (2, 3, 1)])
def test_both_means(shape):
    table = logits(*shape)
    members = table.softmax(-1)
    assert torch.equal(average(list(members)), members.mean(0))
    mean = average(members, "logarithmic")
    torch.testing.assert_close(mean, table.mean(0).softmax(-1), rtol=1e-12, atol=1e-15)
    # By its other definition: the normalized product of the M-th roots.
    product = members.prod(0) ** (1 / len(members))
    torch.testing.assert_close(mean, product / product.sum(-1, keepdim=True), rtol=1e-12, atol=0)


def test_probabilities_that_underflow_leave_numbers():
    sure = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]])
    torch.testing.assert_close(average(sure, "logarithmic"), torch.tensor([[0.5, 0.5, 0.0]]), rtol=0, atol=1e-18)


def test_other_means_are_refused():
    with pytest.raises(ModebridgeError, match="mean to be probability or logarithmic, but got 'geometric'; choose one"):
        average(logits(2, 3, 4).softmax(-1), "geometric")
    with pytest.raises(ModebridgeError, match="but got None"):
        Ensemble(tiny_net(), modes(2), mean=None)


@torch.no_grad()
def test_an_ensemble_with_the_logarithmic_mean():
    net, pair, images = tiny_net(), modes(2), blobs(40).images
    found, plain = Ensemble(net, pair, mean="logarithmic"), Ensemble(net, pair)
    by_hand = torch.stack([mode.load(net).eval()(images) for mode in pair]).mean(0).softmax(-1)
    torch.testing.assert_close(found.predict_proba(images), by_hand, rtol=1e-5, atol=1e-6)
    assert "mean='logarithmic'" in repr(found)
    assert "mean" not in repr(plain)
    # Its temperature is that of its own mean, on labels that it mostly gets right.
    labels = torch.where(torch.arange(40) % 5 == 0, by_hand.argmin(-1), by_hand.argmax(-1))
    wanted = pytest.approx(fit_temperature(by_hand, labels), rel=1e-4)
    assert float(found.calibrate([(images, labels)]).temperature) == wanted
    assert abs(float(found.temperature / plain.calibrate([(images, labels)]).temperature) - 1) > 1e-3


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.6, 2.0])
def test_a_cascade_asks_all_members_below_the_threshold(threshold):
    first, full = (logits(20, 3, seed=seed).softmax(-1) for seed in (0, 1))
    found, deferred = cascaded(first, full, threshold)
    for row, (short, long) in enumerate(zip(first, full, strict=True)):
        assert bool(deferred[row]) == (float(short.max()) < threshold)
        assert torch.equal(found[row], long if deferred[row] else short)
    assert cascaded(first[:0], full[:0], threshold)[0].shape == (0, 3)
