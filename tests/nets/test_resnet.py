"""The paper's networks against the counts of the authors' own (facts table) and against closed forms."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from modebridge.errors import ModebridgeError
from modebridge.nets import SPECS, FilterResponseNorm, SameConv2d, Tapped, resnet

PARAMS = {
    "cifar10": {"frn": 1_860_986, "bn": 1_858_506},
    "cifar100": {"frn": 7_433_044, "bn": 7_428_100},
    "tin200": {"frn": 21_388_104, "bn": 21_379_592},
    "in1k": {"frn": 25_583_592, "bn": 25_557_032},
}
MACS_M = {"cifar10": 270.98, "cifar100": 1072.11, "tin200": 4637.69, "in1k": 4089.18}
TAPS = {
    "cifar10": ("layers.12", (128, 8, 8)),
    "cifar100": ("layers.12", (256, 8, 8)),
    "tin200": ("layers.13", (256, 16, 16)),
    "in1k": ("layers.13", (1024, 14, 14)),
}


@pytest.mark.parametrize("name", PARAMS)
def test_parameter_counts(name):
    with torch.device("meta"):
        nets = {norm: resnet(name, norm) for norm in PARAMS[name]}
    assert {norm: sum(p.numel() for p in net.parameters()) for norm, net in nets.items()} == PARAMS[name]


@pytest.mark.parametrize("name", MACS_M)
def test_multiply_adds_and_bridge_taps(name):
    net = resnet(name, seed=0).to("meta").eval()
    tap, shape = TAPS[name]
    with FlopCounterMode(display=False) as counter:
        logits, features = Tapped(net, [tap])(torch.empty(1, *SPECS[name].image, device="meta"))
    assert round(counter.get_total_flops() / 2e6, 2) == MACS_M[name]
    assert logits.shape == (1, SPECS[name].classes)
    assert features[tap].shape == (1, *shape)


def test_frn_is_its_formula():
    torch.manual_seed(0)
    frn = FilterResponseNorm(3).double()
    with torch.no_grad():
        for parameter in frn.parameters():
            parameter.copy_(torch.randn(3))
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    nu2 = (x**2).mean(dim=(2, 3), keepdim=True)
    shape = (1, 3, 1, 1)
    y = frn.gamma.view(shape) * x / torch.sqrt(nu2 + 1e-6) + frn.beta.view(shape)
    torch.testing.assert_close(frn(x), torch.maximum(y, frn.tau.view(shape)), rtol=0, atol=1e-12)


def test_same_padding_puts_the_odd_pixel_right_and_bottom():
    conv = SameConv2d(1, 1, 3, 2, bias=False).double()
    with torch.no_grad():
        conv.weight.copy_(torch.arange(1.0, 10.0).view(1, 1, 3, 3))
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    x[0, 0, 0, 0] = 1.0
    # Nothing is padded on the left: the corner pixel meets the kernel's first weight, padded it would be the fifth.
    assert conv(x)[0, 0].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    reference = F.conv2d(F.pad(x, (0, 1, 0, 1)), conv.weight, stride=2)
    torch.testing.assert_close(conv(x), reference, rtol=0, atol=1e-12)
    for size in (1, 2, 5, 8):
        assert conv(torch.zeros(1, 1, size, size, dtype=torch.float64)).shape[-1] == math.ceil(size / 2)


def test_initialisation_scale():
    net = resnet("cifar10", seed=0)
    assert float(net.head.weight.detach().std()) == pytest.approx(math.sqrt(2 / 10), rel=0.05)
    conv = net.layers[15].conv2
    assert float(conv.weight.detach().std()) == pytest.approx(math.sqrt(2 / (128 * 9)), rel=0.02)


def test_same_seed_same_weights_whatever_the_global_generator():
    torch.manual_seed(0)
    a = resnet("digits", seed=3)
    torch.manual_seed(1)
    b = resnet("digits", seed=3)
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)
    assert not torch.equal(next(resnet("digits", seed=4).parameters()), next(a.parameters()))


def test_unknown_names():
    with pytest.raises(ModebridgeError, match="did you mean cifar10"):
        resnet("cifar-10")
    with pytest.raises(ModebridgeError, match="'frn' or 'bn'"):
        resnet("cifar10", "ln")  # type: ignore[arg-type]
