"""Statistics of batch norm along curves: the ends keep theirs, and what cannot be estimated is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import modebridge as mb
from modebridge.curves import start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import refresh_statistics
from tests.journeys.test_own_models import QUICK, pairs
from tests.networks import Plain, made


def test_a_layer_that_runs_twice_averages_both():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.norm(x[:, :2]) + self.norm(input=x[:, 2:]))

    net, x = Twice().double(), torch.rand(10, 4, dtype=torch.float64)
    mode = mb.Mode.from_module(net)
    batches = [(x[:4], torch.zeros(4).long()), (x[4:], torch.zeros(6).long())]
    fresh = refresh_statistics(net, mode.params, mode.buffers, batches)
    torch.testing.assert_close(
        fresh["norm.running_mean"], (x[:, :2].mean(0) + x[:, 2:].mean(0)) / 2, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", [pytest.param("torchvision resnet18", marks=pytest.mark.slow), "plain module"])
def test_the_ends_keep_their_own_statistics(name):
    net, train = made(name), pairs()
    modes = [mb.Mode.from_module(made(name, seed)) for seed in (0, 1)]
    curve = mb.fit_curve(net, modes[0], modes[1], train, config=QUICK)
    for r, mode in ((0.0, modes[0]), (1.0, modes[1])):
        assert all(torch.equal(curve.point(r)[key], mode.params[key]) for key in mode.params)
        assert curve.at(r).id == mode.id
        assert curve.with_statistics(net, r, train).at(r).id == mode.id
        x = train[0][0]
        assert torch.equal(curve.at(r).load(net)(x), mode.load(net)(x))
    # Estimated once a point.
    known = curve.with_statistics(net, 0.3, train)
    assert known.with_statistics(net, 0.3, []).statistics[0.3] is known.statistics[0.3]


class Renorm(nn.Module):
    """A layer with running statistics of its own making."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spread", torch.ones(4))

    def forward(self, x):
        return x / self.spread


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: nn.BatchNorm1d(4, track_running_stats=False), "'1' has track_running_stats=False: its output"),
        (Renorm, "'1.spread' of Renorm differs, and how it depends on the parameters is unknown"),
        (lambda: nn.utils.spectral_norm(nn.Linear(4, 4)), "'1.weight_u' of Linear differs"),
    ],
)
def test_layers_that_statistics_cannot_serve_are_refused(layer, reason):
    def net(seed):
        torch.manual_seed(seed)
        built = nn.Sequential(nn.Linear(4, 4), layer(), nn.Linear(4, 2))
        for name, buffer in built.named_buffers():
            if name == "1.spread":
                buffer.uniform_(0.5, 1.5)
        return built

    a, b = (mb.Mode.from_module(net(seed)) for seed in (0, 1))
    with pytest.raises(ModebridgeError, match=reason):
        start_curve(net(0), a, b)


def test_constants_and_layers_without_a_batch_are_no_hindrance():
    def net(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), Renorm(), nn.Linear(4, 2))

    a, b = (mb.Mode.from_module(net(seed)) for seed in (0, 1))
    assert torch.equal(start_curve(net(0), a, b).at(0.5).buffers["2.spread"], torch.ones(4))


def test_a_batch_of_one_is_a_sentence():
    net, train = Plain(), pairs(13, 12)
    modes = [mb.Mode.from_module(made("plain module", seed)) for seed in (0, 1)]
    curve = start_curve(net, *modes)
    with pytest.raises(ModebridgeError, match="more than one value per channel for batch norm, but got 1 image"):
        curve.with_statistics(net, 0.5, train)
