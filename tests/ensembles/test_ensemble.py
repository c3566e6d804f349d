"""Bridged ensembles: the mean of their members, each mode run once, calibrated on held-out data."""

from __future__ import annotations

import pytest
import torch

from modebridge.bridges import build_bridge, curve_target, last_blocks_tap, plan_bridge
from modebridge.curves import start_curve
from modebridge.ensembles import Ensemble, fit_temperature, scale
from modebridge.errors import ModebridgeError
from modebridge.nets import Tapped
from tests.scenarios import EXACT, blobs, fit_bridges, loader, modes, quick, tiny_net


@pytest.fixture(scope="module", params=["frn", "bn"])
def parts(request):
    net, ends = tiny_net(0, request.param, EXACT), modes(3, request.param, EXACT)
    curve = start_curve(net, ends[0], ends[1]).with_statistics(net, 0.5, loader(dtype=EXACT))
    images = blobs(4, dtype=EXACT).images
    plans = {
        "I": plan_bridge(net, curve, images, kind="I"),
        "back": build_bridge(net, images, [curve.end], curve_target(curve)),
        "II": plan_bridge(net, curve, images, kind="II"),
        "early": plan_bridge(net, curve, images, kind="I", tap="layers.2"),
    }
    return net, ends, curve, fit_bridges(net, plans, loader(dtype=EXACT), config=quick(1))


def test_mean_of_members_by_hand(parts):
    net, ends, curve, bridges = parts
    images = blobs(6, seed=3, dtype=EXACT).images
    ensemble = Ensemble(net, [ends[0], ends[1], curve.at(0.5)], list(bridges.values()))
    assert len(ensemble) == 7
    tap = last_blocks_tap(net.spec)
    (l0, f0), (l1, f1) = (Tapped(ends[k].load(net), [tap, "layers.2"])(images) for k in (0, 1))
    logits = [
        l0,
        l1,
        curve.at(0.5).load(net)(images),
        bridges["I"](f0[tap]),
        bridges["back"](f1[tap]),
        bridges["II"](f0[tap], f1[tap]),
        bridges["early"](f0["layers.2"]),
    ]
    expected = torch.stack([out.softmax(-1) for out in logits])
    torch.testing.assert_close(ensemble.members(images), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(ensemble(images), expected.mean(0), rtol=0, atol=1e-10)


def test_order_of_modes_does_not_matter_to_bridges(parts):
    net, ends, _, bridges = parts
    images = blobs(6, dtype=EXACT).images
    one = Ensemble(net, [ends[0], ends[1]], [bridges["II"]])
    two = Ensemble(net, [ends[1], ends[0]], [bridges["II"]])
    torch.testing.assert_close(one(images), two(images), rtol=0, atol=1e-12)


def test_each_mode_runs_once(parts):
    net, ends, _, bridges = parts
    ensemble = Ensemble(net, ends[:2], list(bridges.values()))
    calls = []
    for base in ensemble.bases:
        base.register_forward_hook(lambda *_: calls.append(1))
    ensemble(blobs(6, dtype=EXACT).images)
    assert len(calls) == 2


def test_calibration_changes_the_temperature_and_only_confidence(parts):
    net, ends, _, bridges = parts
    ensemble = Ensemble(net, [ends[0]], [bridges["I"]]).train()
    state = {k: v.clone() for k, v in ensemble.state_dict().items()}
    images = blobs(12, dtype=EXACT).images
    before = ensemble(images)
    assert not ensemble.calibrated
    assert ensemble.calibrate(loader(12, dtype=EXACT)) is ensemble
    assert ensemble.calibrated
    assert ensemble.training
    changed = {k for k, v in ensemble.state_dict().items() if not torch.equal(v, state[k])}
    assert changed == {"temperature", "_fitted"}
    assert torch.equal(ensemble(images).argmax(-1), before.argmax(-1))
    torch.testing.assert_close(ensemble(images), scale(before, float(ensemble.temperature)), rtol=0, atol=1e-10)


def test_state_dict_round_trip_and_batches_of_one(parts):
    net, ends, _, bridges = parts
    one = Ensemble(net, [ends[0]], [bridges["I"]]).calibrate(loader(12, dtype=EXACT))
    two = Ensemble(net, [ends[0]], [bridges["I"]])
    two.load_state_dict(one.state_dict())
    assert two.calibrated
    images = blobs(12, dtype=EXACT).images
    assert torch.equal(one(images), two(images))
    torch.testing.assert_close(torch.cat([one(image[None]) for image in images]), one(images), rtol=0, atol=1e-12)


def test_bad_ensembles(parts):
    net, ends, _, bridges = parts
    for given, message in [
        (([],), "at least 1 mode, but got 0"),
        (([ends[0], ends[0]],), "same weights twice"),
        (([ends[0]], [bridges["II"]]), "is not a member"),
        ((ends[0],), "a list of modes, but got one Mode"),
        (([ends[0]], bridges["I"]), "a list of bridges"),
        (([ends[0]], [torch.nn.Linear(1, 1)]), "of type Bridge, but got Linear"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            Ensemble(net, *given)
    images, labels = next(iter(loader(dtype=EXACT)))
    for item, message in [
        ((images * float("nan"), labels), "images of valid to be finite"),
        ((images, labels[:-1]), "as many labels as images in valid"),
        ((images, labels + 3), r"labels of valid to be in \[0, 3\)"),
        ((images, labels.float()), "labels of valid to be integers"),
        ((images, labels > 0), "labels of valid to be integers"),
        ({"images": images}, "dicts of valid to hold labels"),
        ((images.expand(-1, 3, -1, -1), labels), "to run on the images of valid"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            Ensemble(net, [ends[0]]).calibrate([item])
    with pytest.warns(UserWarning, match="at its limit of 100: predictions are no better than chance"):
        Ensemble(net, [ends[0]]).calibrate([(images, Ensemble(net, [ends[0]])(images).argmin(dim=1))])
    with pytest.raises(ModebridgeError, match="valid to have batches"):
        Ensemble(net, [ends[0]]).calibrate([])
    with pytest.raises(ModebridgeError, match="but got no sample"):
        fit_temperature(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))


def test_sixteen_bits_are_widened_before_probabilities_are_made(parts):
    net, ends, _, bridges = parts
    half = Ensemble(net, ends[:2], list(bridges.values())).bfloat16()
    members = half.members(blobs(6).images.bfloat16())
    assert members.dtype == torch.float32
    torch.testing.assert_close(members.sum(-1), torch.ones(6, 6), rtol=0, atol=1e-6)
