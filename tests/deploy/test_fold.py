"""Folding: the same numbers with fewer layers, and hands off where it would not be exact."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from modebridge.deploy.fold import fold
from modebridge.nets import resnet
from tests.deploy.scenes import stirred


def norms(net: nn.Module) -> int:
    return sum(isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) for layer in net.modules())


class Shared(nn.Module):
    """One convolution feeds two batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.left, self.right = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.left(y) + 2 * self.right(y)


class Twice(nn.Module):
    """The same pair is called twice, in two orders."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(self.norm(self.conv(x))))


class Branching(nn.Module):
    """Looks at values, so that no tracer follows it; its children can be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > 0 else self.inner(-x)


@pytest.mark.parametrize(
    ("net", "left"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2)), 0),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, affine=False)), 0),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4)), 0),
        (nn.Sequential(nn.Flatten(2), nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2)), 0),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.BatchNorm2d(2)), 1),
        (nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 2, 3)), 1),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False)), 1),
        (Shared(), 2),
        (nn.Sequential(nn.Conv2d(1, 2, 1), Twice()), 1),
        (Branching(), 0),
        (nn.Flatten(), 0),
    ],
)
@torch.no_grad()
def test_the_same_numbers(net, left):
    net = stirred(copy.deepcopy(net), 1).double()
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    folded = fold(copy.deepcopy(net))
    torch.testing.assert_close(folded(x), net(x), rtol=0, atol=1e-10)
    assert norms(folded) == left


@torch.no_grad()
def test_a_whole_network():
    net = stirred(resnet("digits", "bn", seed=0), 2).double()
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    folded = fold(copy.deepcopy(net))
    assert norms(net) > 10
    assert norms(folded) == 0
    assert [name for name, _ in folded.named_modules()] == [name for name, _ in net.named_modules()]
    torch.testing.assert_close(folded(x), net(x), rtol=0, atol=1e-10)


@torch.no_grad()
def test_taps_stay_what_they_were():
    net = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3)), nn.BatchNorm2d(2)).eval()
    assert norms(fold(copy.deepcopy(net), keep=["0"])) == 1, "the output of the inner sequence is read"
    assert norms(fold(copy.deepcopy(net), keep=["0.0"])) == 1
    assert norms(fold(copy.deepcopy(net), keep=["1"])) == 0, "a tap on the norm itself reads the same"


def test_norms_in_training_and_hooks_are_left_alone():
    assert norms(fold(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).train())) == 1
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    net[0].register_forward_hook(lambda *_: None)
    assert norms(fold(net)) == 1


def test_tied_weights_are_left_alone():
    net = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)).eval()
    net[2].weight = net[0].weight
    assert norms(fold(net)) == 2
