"""Profiles of curves: closed forms of a one-weight network, batch norm, the verdict."""

import math

import pytest
import torch
from torch import nn

from modebridge.curves import Curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.scoring import CurvePoint, barrier, check_curve, curve_profile
from tests.scenarios import EXACT, modes, tiny_net

NET = nn.Linear(1, 2, bias=False).double()
# Images of 1, labeled 0: the network's NLL is softplus(-w).
DATA = [(torch.ones(10, 1, dtype=torch.float64), torch.zeros(10, dtype=torch.long))] * 2


def mode(w):
    return Mode({"weight": torch.tensor([[w], [0.0]], dtype=torch.float64)}, {})


def curve(start=1.0, pin=-5.0, end=3.0):
    return Curve(mode(start), mode(end), (mode(pin).params,))


def softplus(x):
    return math.log1p(math.exp(x))


def test_profile_and_barrier_in_closed_form():
    profile = curve_profile(NET, curve(), DATA)
    assert [point.r for point in profile] == [k / 10 for k in range(11)]
    for point in profile:
        w = (1 - point.r) ** 2 * 1.0 + 2 * point.r * (1 - point.r) * -5.0 + point.r**2 * 3.0
        assert point.nll == pytest.approx(softplus(-w), abs=1e-9)
        assert point.accuracy == float(w > 0)
    # At the midpoint w = 0.25 - 2.5 + 0.75.
    known = softplus(1.5) - 0.5 * (softplus(-1.0) + softplus(-3.0))
    assert barrier(curve_profile(NET, curve(), DATA, positions=[1.0, 0.5, 0.0])) == pytest.approx(known)
    assert barrier(curve_profile(NET, curve(1.0, 9.0, 3.0), DATA)) == 0.0, "a curve below the line"


def test_refusals():
    point = CurvePoint(0.5, 1.0, 0.9)
    for profile, words in (([], "the two ends"), ([point], "the two ends"), ([point, point], "two different r")):
        with pytest.raises(ModebridgeError, match=words):
            barrier(profile)
    for positions, words in ((1, "at least 2"), ([], "at least one r"), ([1.5], r"\[0, 1\]")):
        with pytest.raises(ModebridgeError, match=words):
            curve_profile(NET, curve(), DATA, positions)


@pytest.mark.parametrize(
    ("midpoint", "ends", "samples", "low_loss"),
    [
        (0.95, 0.9, 10**6, True),
        (0.886, 0.9, 10**6, True),
        (0.884, 0.9, 10**6, False),
        (0.85, 0.9, 100, True),  # two standard errors are 0.06
        (0.83, 0.9, 100, False),
        (0.98, 1.0, 50, False),  # no spread at 100 %: the tolerance decides
    ],
)
def test_curves_that_are_not_low_loss(midpoint, ends, samples, low_loss):
    assert (check_curve(midpoint, ends, samples) == "") is low_loss
    assert check_curve(0.1, 0.9, 20) == (
        "The curve is not low-loss: at r = 0.5 its validation accuracy is 10.0%, 80.0 points below the mean of its "
        "ends, 90.0% (up to 13.4 points below are allowed with 20 images); train it longer, since a bridge "
        "is no better than its target."
    )


def test_batch_norm_gets_statistics_of_each_point():
    net = tiny_net(norm="bn", dtype=EXACT)
    path = Curve.line(*modes(2, "bn", EXACT))
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.rand(16, 1, 8, 8, generator=generator, dtype=EXACT), torch.arange(16) % 3) for _ in range(2)]
    with pytest.raises(ModebridgeError, match="Expected train for a network with batch norm"):
        curve_profile(net, path, batches, 3)
    profile = curve_profile(net, path, batches, 3, train=batches)
    known = path.with_statistics(net, 0.5, batches)
    assert curve_profile(net, known, batches, [0.5]) == [profile[1]]
    logits = known.at(0.5).load(net)(torch.cat([images for images, _ in batches]))
    labels = torch.cat([labels for _, labels in batches])
    assert profile[1].nll == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), abs=1e-9)
    assert curve_profile(net, path, batches, 2)[0].r == 0.0  # the ends have their own
