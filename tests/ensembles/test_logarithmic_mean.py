"""The logarithmic mean: the softmax of the mean logits, in ensembles, in their calibration and in what reads them."""

from __future__ import annotations

import pytest
import torch

from modebridge.ensembles import Ensemble, average, fit_temperature, scale
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.scoring import predict
from tests.scenarios import blobs, modes, tiny_net


def logarithmic(tables):
    return average(tables, "logarithmic")


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(3, 7, 5), (1, 1, 2), (2, 0, 4), (2, 3, 1)])
def test_it_is_the_softmax_of_the_mean_logits(shape):
    table = logits(*shape)
    members = table.softmax(-1)
    torch.testing.assert_close(logarithmic(members), table.mean(0).softmax(-1), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(logarithmic(list(members)), logarithmic(members), rtol=0, atol=0)
    # A member may add what it likes to all logits of an image.
    shifted = table + logits(*shape[:2], 1, seed=1)
    torch.testing.assert_close(logarithmic(shifted.softmax(-1)), logarithmic(members), rtol=1e-12, atol=1e-15)
    # By its other definition: the normalised product of the M-th roots.
    product = members.prod(0) ** (1 / len(members))
    torch.testing.assert_close(logarithmic(members), product / product.sum(-1, keepdim=True), rtol=1e-12, atol=0)


def test_of_one_member_both_means_are_the_member():
    one = logits(1, 6, 4).softmax(-1)
    torch.testing.assert_close(logarithmic(one), average(one), rtol=1e-14, atol=0)
    # Members that agree are left as they are by both.
    same = one.expand(3, 6, 4)
    torch.testing.assert_close(logarithmic(same), one[0], rtol=1e-14, atol=0)


def test_probabilities_that_underflow_leave_numbers():
    sure = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]])
    mean = logarithmic(sure)
    torch.testing.assert_close(mean, torch.tensor([[0.5, 0.5, 0.0]]), rtol=0, atol=1e-18)


def test_other_names_are_refused():
    with pytest.raises(ModebridgeError, match="mean to be probability or logarithmic, but got 'geometric'; choose one"):
        average(logits(2, 3, 4).softmax(-1), "geometric")
    with pytest.raises(ModebridgeError, match="but got None"):
        Ensemble(tiny_net(), modes(2), mean=None)


@torch.no_grad()
def test_an_ensemble_by_it():
    net, pair, images = tiny_net(), modes(2), blobs(40).images
    found = Ensemble(net, pair, mean="logarithmic")
    by_hand = torch.stack([mode.load(net).eval()(images) for mode in pair]).mean(0).softmax(-1)
    torch.testing.assert_close(found(images), by_hand, rtol=1e-5, atol=1e-6)
    assert "mean='logarithmic'" in repr(found)
    plain = Ensemble(net, pair)
    assert "mean" not in repr(plain)
    assert float((found(images) - plain(images)).abs().max()) > 1e-4
    # Its temperature is that of its own mean, on labels that it mostly gets right.
    labels = torch.where(torch.arange(40) % 5 == 0, by_hand.argmin(-1), by_hand.argmax(-1))
    found.calibrate([(images, labels)])
    assert float(found.temperature) == pytest.approx(fit_temperature(by_hand, labels), rel=1e-4)
    assert abs(float(found.temperature / plain.calibrate([(images, labels)]).temperature) - 1) > 1e-3
    torch.testing.assert_close(found(images), scale(by_hand, found.temperature), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(predict(found, [(images, labels)])[0], found(images))


def test_logits_may_be_any_that_a_network_gives():
    """A network whose logits drift by a constant says the same, and so does its ensemble."""

    class Shifted(torch.nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([[1.0, -1.0, 0.5]]))
            self.shift = torch.nn.Parameter(torch.tensor(shift))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight + self.shift

    images = torch.linspace(-2, 2, 5)[:, None]
    both = Ensemble(Shifted(0.0), [Mode.from_module(Shifted(s)) for s in (0.0, 40.0)], mean="logarithmic")
    with torch.no_grad():
        torch.testing.assert_close(both(images), Shifted(0.0)(images).softmax(-1), rtol=1e-5, atol=1e-6)
