"""Narrow 1x1 convolutions with a stride: training gives right gradients where torch's own would corrupt memory."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modebridge.nets import SPECS, ResNet, frozen_copy, run
from modebridge.nets.quirks import is_narrow

TRAINING = """
import torch
from torch import nn
import modebridge as mb
from modebridge.data import ImageSet, Loader

torch.set_num_threads(1)

def trained(width, size, dtype, order):
    torch.manual_seed(0)
    layers = nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 16, 1, stride=2), nn.ReLU()
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
    net = net.to(dtype).to(memory_format=order)
    images = torch.rand(64, 1, size, size, generator=torch.Generator().manual_seed(1)).to(dtype)
    train = Loader(ImageSet(images, torch.arange(64) % 3, 3), 16, shuffle=True, seed=0)
    mode = mb.fit_modes([net], [train], config=mb.TrainConfig(epochs=10, lr=0.05, warmup=1, keep="last"))[0]
    return torch.cat([tensor.double().flatten() for tensor in mode.params.values()])

# Heaps are corrupted on CPUs without AVX-512 by fewer than 8 channels, on others by fewer than 16 on large images.
for width, size in ((4, 16), (8, 64), (15, 64)):
    exact = trained(width, size, torch.float64, torch.contiguous_format)
    print(float((trained(width, size, torch.float32, torch.channels_last) - exact).abs().max()))
"""


def test_training_goes_on_and_ends_where_float64_does():
    """In a process of its own: without the protection it is killed by a corrupted heap."""
    done = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]
    assert [float(line) < 1e-5 for line in done.stdout.split()] == [True] * 3, done.stdout


@pytest.mark.parametrize("stride", [2, (2, 1), (1, 3)])
@pytest.mark.parametrize("size", [7, 8])
def test_the_other_way_is_the_same_function(stride, size):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 1, stride), nn.Flatten()).train()
    images = torch.rand(4, 3, size, size)
    params = {name: tensor.detach().clone().requires_grad_() for name, tensor in net.named_parameters()}
    bare = frozen_copy(net, training=True)
    found = run(bare, params, {}, images)
    exact = [tensor.detach().double().requires_grad_() for tensor in params.values()]
    expected = F.conv2d(images.double(), *exact, stride).flatten(1)
    torch.testing.assert_close(found, expected.float())
    got = torch.autograd.grad(found.square().sum(), list(params.values()))
    for own, true in zip(got, torch.autograd.grad(expected.square().sum(), exact), strict=True):
        torch.testing.assert_close(own, true.float())


def test_other_layers_are_left_as_they_are():
    """To the last bit: nothing stands between them and torch."""
    wide = [nn.Conv2d(16, 4, 1, 2), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, 2)]
    wide += [nn.Conv2d(4, 4, 1, 2, groups=2), nn.Conv2d(3, 4, 1, 2, padding=1)]
    assert not any(map(is_narrow, wide))
    narrow = [nn.Conv2d(15, 4, 1, 2), nn.Conv2d(1, 4, 1, (1, 2)), nn.Conv2d(3, 4, 1, 2, padding="valid")]
    assert all(map(is_narrow, narrow))


def test_no_network_of_ours_is_narrow():
    """Their gradients are torch's own, to the last bit, on every CPU."""
    with torch.device("meta"):
        nets = {name: ResNet(spec) for name, spec in SPECS.items()}
    assert [name for name, net in nets.items() if any(map(is_narrow, net.modules()))] == []
