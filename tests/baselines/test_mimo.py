"""MIMO reads M images at once: in use one image, in training several."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modebridge.baselines import Mimo, MimoObjective
from modebridge.baselines.mimo import REPEATS, SAME
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import SPECS, ResNet
from modebridge.scoring import module_cost
from modebridge.seeds import generator
from modebridge.types import State


def tiny():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    return Mimo(net.double(), 2, example=torch.rand(1, 1, 4, 4, dtype=torch.float64), generator=generator(0))


@torch.no_grad()
def test_in_use_the_image_is_repeated_on_channels():
    mimo = tiny()
    images = torch.rand(3, 1, 4, 4, dtype=torch.float64, generator=generator(0))
    conv, linear = mimo.net[0].conv, mimo.net[-1].linear
    assert (conv.in_channels, linear.out_features) == (2, 10)
    feature = F.silu(F.conv2d(images.repeat(1, 2, 1, 1), conv.weight, conv.bias)).mean((2, 3))
    expected = torch.cat(F.linear(feature, linear.weight, linear.bias).chunk(2, dim=1))
    torch.testing.assert_close(mimo(images), expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_in_training_each_member_answers_for_its_own_image():
    mimo = tiny()
    mode = Mode.from_module(mimo)
    objective = MimoObjective(mimo, mode)
    images = torch.rand(5, 1, 4, 4, dtype=torch.float64, generator=generator(0))
    labels = torch.tensor([0, 1, 2, 3, 4])
    draw = objective.draw(5, generator(7))
    ((member, prepared),) = objective.prepare((images, labels), draw).items()
    pairs = draw["rows"].T.tolist()
    feature = torch.stack([torch.cat([images[a], images[b]]) for a, b in pairs])
    conv, linear = mimo.net[0].conv, mimo.net[-1].linear
    logits = F.linear(F.silu(F.conv2d(feature, conv.weight, conv.bias)).mean((2, 3)), linear.weight, linear.bias)
    losses = [F.cross_entropy(part, labels[rows]) for part, rows in zip(logits.chunk(2, 1), draw["rows"], strict=True)]
    loss = objective.program(member)(State(mode.params, mode.buffers), prepared)
    torch.testing.assert_close(loss, sum(losses) / 2, rtol=1e-12, atol=1e-12)


def test_what_is_drawn():
    objective = MimoObjective(tiny(), Mode.from_module(tiny()))
    rows = objective.draw(50, generator(0))["rows"]
    assert rows.shape == (2, REPEATS * 50)
    for member in rows:
        assert member.bincount().tolist() == [REPEATS] * 50, "every member sees every image as often"
    assert torch.equal(rows[0], torch.arange(50).repeat(REPEATS))
    same = float((rows[0] == rows[1]).double().mean())
    # Among the permuted rows a few meet themselves, or another copy of their image.
    assert SAME <= same < SAME + 0.05
    assert not torch.equal(rows, objective.draw(50, generator(1))["rows"])


def test_the_papers_network_costs_twice_what_is_printed():
    """The paper prints 2.000 for its MIMO on Tiny ImageNet: twice as wide, stem as before."""
    spec = SPECS["tin200"]
    with torch.device("meta"):
        base = ResNet(spec)
        wide = ResNet(replace(spec, widths=tuple(2 * width for width in spec.widths)))
        mimo = Mimo(wide, 2, example=torch.rand(1, 3, 64, 64))
    image = (3, 64, 64)
    assert 3.92 <= module_cost(mimo, image).flops / module_cost(base, image).flops <= 3.94


class Twice(nn.Module):
    """Reads its images twice."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 2, 3), nn.Conv2d(3, 2, 3), nn.Linear(2, 3)

    def forward(self, x):
        return self.head((self.one(x) + self.two(x)).mean((2, 3)))


@pytest.mark.parametrize(
    ("net", "shape", "message"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), (2, 3), "convolution on images and ends with a linear layer"),
        (nn.Sequential(nn.Conv2d(3, 4, 1)), (2, 3, 4, 4), "on images and ends with a linear layer, but got"),
        (Twice(), (2, 3, 4, 4), "to run as MIMO on an example"),
    ],
)
def test_what_cannot_be_one_is_refused(net, shape, message):
    with pytest.raises(ModebridgeError, match=message):
        Mimo(net, 2, example=torch.rand(shape))
