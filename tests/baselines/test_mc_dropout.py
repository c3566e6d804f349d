"""Monte-Carlo dropout: the moments of a layer in closed form, and the same answers whoever else is asked about."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modebridge.baselines import McDropout, with_dropout
from modebridge.errors import ModebridgeError
from modebridge.nets import resnet
from tests.scenarios import Vectors


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("norm", ["bn", "frn"])
@torch.no_grad()
def test_without_dropping_it_is_the_network(norm):
    net = resnet("digits", norm, seed=0).double().eval()
    images = torch.rand(3, 1, 8, 8, dtype=torch.float64, generator=seeded())
    dropping = with_dropout(net, 0.0, example=images)
    rival = McDropout(dropping, 4, example=images, seed=0)
    torch.testing.assert_close(rival(images), net(images).repeat(4, 1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(with_dropout(net, 0.3, example=images)(images), net(images), rtol=0, atol=0)


@torch.no_grad()
def test_moments_of_a_linear_layer():
    r"""Of y = W (x * m) / (1 - p) + b: mean W x + b, variance p / (1 - p) sum_i (W_i x_i)^2."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)).double()
    x = torch.randn(1, 3, dtype=torch.float64)
    rate, passes, rounds = 0.3, 64, 60
    dropping = with_dropout(net, rate, example=x)
    samples = torch.cat([McDropout(dropping, passes, example=x, seed=seed)(x) for seed in range(rounds)])
    hidden = net[0](x)
    expected = net[1](hidden)[0]
    variance = rate / (1 - rate) * (net[1].weight * hidden).square().sum(dim=1)
    count = passes * rounds
    assert bool(((samples.mean(0) - expected).abs() < 4 * (variance / count).sqrt()).all())
    torch.testing.assert_close(samples.var(0), variance, rtol=6 * (2 / count) ** 0.5, atol=0)


@torch.no_grad()
def test_an_answer_depends_on_the_seed_and_the_image_alone():
    images = torch.rand(6, 1, 8, 8, generator=seeded())
    dropping = with_dropout(resnet("digits", "bn", seed=0), 0.2, example=images).eval()
    rivals = [McDropout(dropping, 4, example=images, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (rival(images).view(4, 6, 10) for rival in rivals)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert float((first[0] - first[1]).abs().max()) > 0.01, "passes differ"
    alone = torch.stack([rivals[0](image[None]) for image in images], dim=1)
    torch.testing.assert_close(alone, first, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_networks_own_dropout_is_used():
    net = nn.Sequential(
        nn.Conv2d(1, 8, 1), nn.Dropout2d(0.5), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Dropout(0.25), nn.Linear(36, 2)
    ).eval()
    images = torch.rand(2, 1, 3, 3, generator=seeded())
    dropping = with_dropout(net, 0.1, example=images)
    assert [str(layer) for layer in dropping] == [str(layer) for layer in net]
    rival = McDropout(dropping, 3, example=images, seed=0)
    assert rival.net[1].mask.shape == (3, 1, 8, 1, 1), "whole channels"
    assert rival.net[4].mask.shape == (3, 1, 36)
    x = torch.ones(6, 36)
    assert rival.net[4](x).unique().tolist() == pytest.approx([0, 4 / 3])


def test_where_dropout_is_put():
    net = resnet("digits", "bn", seed=0)
    dropping = with_dropout(net, 0.1, example=torch.rand(1, 1, 8, 8))
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert sum(isinstance(layer, nn.Dropout) for layer in dropping.modules()) == len(layers) - 1
    assert isinstance(dropping.layers[0][0], nn.Conv2d), "not before the first"
    with pytest.raises(ModebridgeError, match="at least 0 and below 1"):
        with_dropout(net, 1.0, example=torch.rand(1, 1, 8, 8))
    with pytest.raises(ModebridgeError, match="network of several layers"):
        with_dropout(nn.Linear(2, 3), 0.1, example=torch.rand(1, 2))


def test_dropout_that_is_off_is_no_dropout_and_none_is_refused():
    off = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 3))
    made = with_dropout(off, 0.3, example=torch.rand(1, 4))
    tables = torch.unflatten(McDropout(made, 4, example=torch.rand(1, 4), seed=0)(torch.rand(5, 4)), 0, (4, 5))
    assert not torch.equal(tables[0], tables[1])
    with pytest.raises(ModebridgeError, match="with dropout for Monte-Carlo dropout, but got none in Linear"):
        McDropout(nn.Linear(4, 3), 4, example=torch.rand(1, 4), seed=0)
    everything = nn.Sequential(nn.Linear(4, 8), nn.Dropout(1.0), nn.Linear(8, 3))
    answer = McDropout(everything, 2, example=torch.rand(1, 4), seed=0)(torch.rand(5, 4))
    torch.testing.assert_close(answer, everything[2].bias.expand(10, 3))


def test_layers_that_share_a_weight_are_not_torn_apart():
    tied = Vectors()
    with pytest.raises(ModebridgeError, match="'first' and 'second' of Vectors share one"):
        with_dropout(tied, 0.1, example=torch.rand(1, 4))
