"""A packed network is M narrow networks, to the rounding of float64."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from modebridge.baselines import Packed
from modebridge.errors import ModebridgeError
from modebridge.nets import SPECS, ResNet
from modebridge.seeds import generator


def unlike(net, seed):
    """Norms and statistics that are not neutral."""
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.add_(torch.rand(tensor.shape, dtype=tensor.dtype, generator=generator(seed)))
    return net


@pytest.mark.parametrize("norm", ["bn", "frn"])
@torch.no_grad()
def test_the_papers_network_equals_narrow_ones(norm):
    wide = replace(SPECS["digits"], norm=norm)
    narrow = replace(wide, widths=(4, 8, 16), stem=(4, 3, 1))
    images = torch.rand(5, 1, 8, 8, dtype=torch.float64, generator=generator(0))
    networks = [unlike(ResNet(narrow, generator(k)).double().eval(), k) for k in range(4)]
    packed = Packed(ResNet(wide).double(), 4, example=images).eval()
    packed.fill(networks)
    expected = torch.cat([network(images) for network in networks])
    torch.testing.assert_close(packed(images), expected, rtol=1e-10, atol=1e-10)
    assert sum(p.numel() for p in packed.parameters()) == sum(p.numel() for net in networks for p in net.parameters())


def any_net(width=12, classes=5):
    """A hidden linear layer, a depthwise convolution and a grouped norm."""
    return nn.Sequential(
        *(nn.Conv2d(2, width, 3), nn.GroupNorm(width // 2, width)),
        *(nn.Conv2d(width, width, 3, groups=width), nn.SiLU()),
        *(nn.Conv2d(width, 2 * width, 1, bias=False), nn.BatchNorm2d(2 * width)),
        *(nn.Flatten(), nn.Linear(2 * width * 4, width), nn.SiLU(), nn.Linear(width, classes)),
    ).double()


@torch.no_grad()
def test_any_network_is_cut_into_narrow_ones():
    images = torch.rand(4, 2, 6, 6, dtype=torch.float64, generator=generator(0))
    packed = Packed(any_net(), 3, example=images).eval()
    networks = [unlike(any_net(4).eval(), k) for k in range(3)]
    packed.fill(networks)
    torch.testing.assert_close(packed(images), torch.cat([net(images) for net in networks]), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_cut_weights_keep_the_size_of_activations():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 400), nn.Linear(400, 400, bias=False), nn.Linear(400, 2))
    packed = Packed(net, 4, example=torch.rand(1, 3))
    x = torch.randn(50, 400)
    assert float(packed.net[1](x).std()) == pytest.approx(float(net[1](x).std()), rel=0.1)
    assert torch.equal(packed.net[1].weight[1], 2 * net[1].weight[100:200, 100:200])


class Joining(nn.Module):
    """Concatenation puts the channels of members side by side with those of others."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.head = (nn.Linear(n, m) for n, m in ((3, 4), (4, 4), (8, 4), (4, 2)))

    def forward(self, x):
        a = self.a(x)
        return self.head(self.c(torch.cat([a, self.b(a)], dim=1)))


ACROSS = nn.Sequential(nn.Conv1d(3, 12, 1), nn.Conv1d(12, 12, 1, groups=3), nn.Flatten(), nn.Linear(12, 2))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (ACROSS, "'1' to have one group or a multiple of the 2 members"),
        (Joining(), "mixes their channels"),
        (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "mixes their channels"),
        (nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), "channels of '0' to be a multiple of the 2 members"),
        (nn.Sequential(nn.Linear(3, 4)), "a network of several layers"),
    ],
)
def test_what_cannot_be_one_is_refused(net, message):
    with pytest.raises(ModebridgeError, match=message):
        Packed(net, 2, example=torch.rand(2, 3, 1) if net is ACROSS else torch.rand(2, 3))
