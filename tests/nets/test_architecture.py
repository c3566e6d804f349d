"""One program for two modules only where nothing but weights makes the difference."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.nets import same_architecture
from tests.networks import HuggingFaceStyle, Plain
from tests.scenarios import Vectors, tiny_net


@dataclass
class Options:
    scale: float = 2.0


class Custom(nn.Module):
    def __init__(self, **more: object) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.act = F.relu
        self.options = Options()
        self.table = {"steps": [1, 2.0, float("nan")], "kinds": {"a", "b"}, "type": torch.float32}
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.register_buffer("count", torch.zeros(()))
        self.twice = lambda x: 2 * x
        self.part = partial(F.dropout, p=0.5)
        self.method = self.forward  # an object that holds its holder
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.act(x))


@pytest.mark.parametrize("make", [Custom, Plain, HuggingFaceStyle, Vectors, tiny_net])
def test_the_same_module_at_other_weights_is_alike(make):
    one, other = make(), make()
    for tensor in (*other.parameters(), *(b for name, b in other.named_buffers() if name in other.state_dict())):
        tensor.data.add_(1)
    assert same_architecture(one, other)
    assert same_architecture(one, copy.deepcopy(one).eval())


DIFFERENT = {
    "attribute": lambda net: setattr(net, "scale", 3.0),
    "attribute inside": lambda net: setattr(net.options, "scale", 3.0),
    "function": lambda net: setattr(net, "act", F.gelu),
    "argument": lambda net: setattr(net, "part", partial(F.dropout, p=0.4)),
    "list": lambda net: net.table["steps"].append(4),
    "dict": lambda net: net.table.update(type=torch.float64),
    "non-persistent buffer": lambda net: net.mean.add_(1),
    "submodule": lambda net: setattr(net, "linear", nn.Linear(3, 2, bias=False)),
    "shape": lambda net: setattr(net, "linear", nn.Linear(4, 2)),
    "hook": lambda net: net.linear.register_forward_hook(lambda module, inputs, output: -output),
    "opaque": lambda net: setattr(net, "lock", threading.Lock()),
}


@pytest.mark.parametrize("how", DIFFERENT)
def test_whatever_may_make_a_difference_does(how):
    one, other = Custom(scale=2.0, lock=None), Custom(scale=2.0, lock=None)
    assert same_architecture(one, other)
    if how == "opaque":
        one.lock = threading.Lock()
    DIFFERENT[how](other)
    assert not same_architecture(one, other)
    assert not same_architecture(other, one)


def test_tied_weights_and_closures_count():
    tied, free = Vectors(), Vectors()
    free.second = nn.Linear(4, 4, bias=False)
    assert not same_architecture(tied, free)

    def times(k: float) -> Custom:
        return Custom(scaled=lambda x: k * x)

    assert same_architecture(times(2.0), times(2.0))
    assert not same_architecture(times(2.0), times(3.0))
