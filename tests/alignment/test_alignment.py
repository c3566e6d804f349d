"""Units are found, matched and renumbered; the function stays what it was."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from modebridge.alignment import align, find_groups, prove
from modebridge.alignment.groups import Groups
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import Tapped, call
from tests.alignment.renumbering import renumbered
from tests.networks import NETWORKS, OTHERS, HuggingFaceStyle, made
from tests.plans import fit_mode
from tests.scenarios import loader, quick, tiny_net

METHODS = ("activations", "weights")


def images(n: int = 24, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


@cache
def found(name: str) -> tuple[nn.Module, Groups]:
    net = made(name)
    return net, find_groups(net, images(2))


@pytest.mark.parametrize("name", [*NETWORKS, *OTHERS])
def test_any_renumbering_is_the_same_function(name):
    net, groups = found(name)
    mode = Mode.from_module(net)
    other = renumbered(mode, groups)
    assert prove(net, mode, other, images(3)) < 1e-9
    # Not for lack of movement: nearly every weight has moved.
    moved = [key for key in mode.params if not torch.equal(mode.params[key], other.params[key])]
    assert len(moved) > 0.6 * len(mode.params)


PLANTED = [(name, by) for name in (*NETWORKS, "Hugging Face style", "torchvision swin") for by in METHODS]


# Half of this regnet's last units are dead, and with them all that they hear: only weights tell them apart.
PLANTED.append(("timm regnet", "weights"))
LONG = {("timm resnet18", "weights"), ("torchvision resnet18", "weights"), ("timm regnet", "weights")}


@pytest.mark.parametrize(
    ("name", "by"), [pytest.param(*case, marks=[pytest.mark.slow] * (case in LONG)) for case in PLANTED]
)
def test_a_planted_renumbering_is_found_exactly(name, by):
    net, groups = found(name)
    mode = Mode.from_module(net)
    data = [(images(), torch.zeros(24).long())]
    result = align(net, mode, renumbered(mode, groups), data, by=by, barrier_images=0)
    wrong = [key for key in mode.state if not torch.equal(mode.state[key], result.mode.state[key])]
    assert wrong == []
    assert result.difference < 1e-9
    assert all(match.after >= match.before for match in result.matches)


def test_the_groups_of_a_residual_network():
    _, groups = found("torchvision resnet18")
    # The stem's stream (stage 1 has no projection), three more stages, and the inner channels of eight blocks.
    assert sorted(group.size for group in groups.groups.values()) == sorted(
        [64, 128, 256, 512] + 2 * [64, 128, 256, 512]
    )
    assert groups.stopped == ()


def test_the_groups_of_a_transformer():
    _, groups = found("timm vit_tiny")
    # A stream of 192; in each of three layers 3 heads, in each head 64 channels for query and key and 64 for value,
    # and 768 hidden units.
    sizes = sorted((group.size, group.outer is not None) for group in groups.groups.values())
    assert sizes == sorted([(192, False)] + 3 * [(3, False), (64, True), (64, True), (768, False)])


def test_an_identical_mode_stays_as_it_is():
    net, _ = found("plain module")
    mode = Mode.from_module(net)
    for by in METHODS:
        result = align(net, mode, mode, [(images(), torch.zeros(24).long())], by=by, barrier_images=0)
        assert result.mode.id == mode.id
        assert all(match.moved == 0 for match in result.matches)


def test_trained_networks_come_nearer_and_the_barrier_falls():
    class Perceptron(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 3))

        def forward(self, x):
            return self.layers(x)

    net = Perceptron(0)
    a, b = (fit_mode(Perceptron(seed), loader(96, 16), config=quick(20, weight_decay=1e-3)) for seed in (0, 1))
    for by in METHODS:
        result = align(net, a, b, loader(96, 16), by=by)
        assert result.quality_after > result.quality_before + 0.1
        assert result.barrier_after <= result.barrier_before
        assert "outputs are unchanged to" in str(result)
        assert "Barrier" in str(result)


@pytest.mark.parametrize("norm", [pytest.param("frn", marks=pytest.mark.slow), "bn"])
def test_our_networks_with_the_barrier(norm):
    net = tiny_net(0, norm)
    a, b = (fit_mode(tiny_net(seed, norm), loader(48), config=quick(4)) for seed in (0, 1))
    result = align(net, a, b, loader(48))
    assert result.quality_after > result.quality_before
    assert result.barrier_before is not None
    assert result.barrier_after is not None
    quick_result = align(net, a, b, loader(48), barrier_images=0)
    assert quick_result.mode.id == result.mode.id
    assert quick_result.barrier_before is None


def test_dict_batches():
    net = made("Hugging Face style")
    mode = Mode.from_module(net)
    batch = {"pixel_values": images(8), "mask": torch.ones(8, 16).long(), "labels": torch.zeros(8).long()}
    groups = find_groups(net, {"pixel_values": images(2), "mask": torch.ones(2, 16).long()})
    assert align(net, mode, renumbered(mode, groups), [batch], barrier_images=0).mode.id == mode.id


def test_batches_of_other_lengths_and_of_one():
    class Texts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, tokens):
            return self.head(self.layer(self.embed(tokens)).mean(1))

    torch.manual_seed(0)
    net = Texts().eval()
    mode = Mode.from_module(net)
    sizes = ((1, 7), (16, 9), (5, 4))
    data = [{"tokens": torch.randint(20, size), "labels": torch.zeros(size[0]).long()} for size in sizes]
    groups = find_groups(net, {"tokens": data[0]["tokens"]})
    assert align(net, mode, renumbered(mode, groups), data, barrier_images=0).mode.id == mode.id


class Odd(nn.Module):
    def __init__(self, operation) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.operation = operation

    def forward(self, x):
        return self.last(self.operation(self.first(x)))


def test_an_operation_that_is_not_understood_keeps_its_units_in_place():
    with pytest.raises(ModebridgeError, match=r"aten::_fft_r2c in 'the network itself' keep them in place"):
        find_groups(Odd(lambda x: torch.fft.rfft(x).abs()[:, [0, 1, 2, 3, 4, 3, 2, 1]]), torch.rand(2, 6))
    # Also where it is understood, and fixes places.
    for operation, name in ((lambda x: x.sort(dim=1).values, "sort"), (lambda x: x.roll(1, 1), "roll")):
        with pytest.raises(ModebridgeError, match=f"aten::{name} in 'the network itself' keep them in place"):
            find_groups(Odd(operation), torch.rand(2, 6))


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.flip(1),
        lambda x: x.cumsum(1),
        lambda x: x[:, ::2].repeat(1, 2),
        lambda x: x * torch.arange(8.0),
        lambda x: x.roll(1, 1),
        lambda x: torch.cat([x[:, 3:], x[:, :3]], 1),
        lambda x: x.view(-1, 2, 4).transpose(1, 2).reshape(-1, 8),
        lambda x: torch.stack([x, -x], 1).amax(1),
        lambda x: x.view(-1, 2, 4).sum(1).repeat(1, 2),
        lambda x: x.view(-1, 2, 4)[:, 0].repeat(1, 2),
        lambda x: x.view(-1, 4, 2).softmax(1).view(-1, 8),
        lambda x: x + x.view(-1, 2, 4).mean(1, keepdim=True).expand(-1, 2, 4).reshape(-1, 8),
        lambda x: torch.nn.functional.normalize(x, dim=-1),
        lambda x: x * x.view(-1, 2, 4).norm(dim=1).repeat(1, 2),
        lambda x: x * torch.linalg.vector_norm(x, ord=1, dim=1, keepdim=True),
        lambda x: torch.nn.functional.glu(x.repeat(1, 2), 1),
        lambda x: torch.nn.functional.glu(torch.cat([x, x.flip(1)], 1), 1),
        lambda x: x.view(-1, 2, 4).max(1).values.repeat(1, 2),
        lambda x: x + x.max(1, keepdim=True).indices,
        lambda x: torch.max(x, -x),
        lambda x: torch.nn.functional.pixel_shuffle(x.view(-1, 8, 1, 1), 2).flatten(1),
        lambda x: torch.nn.functional.channel_shuffle(x.view(-1, 8, 1, 1), 2).flatten(1),
    ],
)
def test_what_is_found_is_true_whatever_happens_on_the_way(operation):
    torch.manual_seed(0)
    net = Odd(operation)
    mode = Mode.from_module(net)
    try:
        groups = find_groups(net, torch.rand(2, 6))
    except ModebridgeError:
        return
    assert prove(net, mode, renumbered(mode, groups), torch.rand(5, 6)) < 1e-9


SPEC = {"first.weight": ("hidden", None), "first.bias": ("hidden",), "last.weight": (None, "hidden")}


def test_a_spec_by_hand():
    torch.manual_seed(0)
    net = Odd(torch.relu)
    mode = Mode.from_module(net)
    data = [(torch.rand(9, 6), torch.zeros(9).long())]
    other = renumbered(mode, find_groups(net, data[0][0]))
    assert align(net, mode, other, data, by="weights", spec=SPEC, barrier_images=0).mode.id == mode.id
    with pytest.raises(ModebridgeError, match="by='weights' with a spec"):
        align(net, mode, other, data, spec=SPEC, barrier_images=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first.wait": ("hidden", None)}, "'first.wait'; did you mean first.weight"),
        ({"first.bias": ("hidden", None)}, "one entry per dimension of 'first.bias', which has 1, but got 2"),
        ({"last.bias": ("hidden",)}, "one size, but got 8 in 'first.weight' and 3 in 'last.bias'"),
        ({"last.weight": (None, None)}, "same function, but its logits differ by"),
    ],
)
def test_a_wrong_spec_is_refused(change, message):
    torch.manual_seed(0)
    net = Odd(torch.relu)
    a = Mode.from_module(net)
    b = renumbered(a, find_groups(net, torch.rand(2, 6)))
    with pytest.raises(ModebridgeError, match=message):
        align(
            net,
            a,
            b,
            [(torch.rand(9, 6), torch.zeros(9).long())],
            by="weights",
            spec={**SPEC, **change},
            barrier_images=0,
        )


def test_bad_arguments():
    net = Odd(torch.relu)
    mode = Mode.from_module(net)
    data = [(torch.rand(9, 6), torch.zeros(9).long())]
    with pytest.raises(ModebridgeError, match="by to be 'activations' or 'weights', but got 'magic'"):
        align(net, mode, mode, data, by="magic", barrier_images=0)
    with pytest.raises(ModebridgeError, match="data to have batches"):
        align(net, mode, mode, [], barrier_images=0)
    with pytest.raises(ModebridgeError, match="got no image"):
        align(net, mode, mode, data, images=0, barrier_images=0)
    with pytest.raises(ModebridgeError, match="have units that can be permuted, but found none; there is nothing"):
        find_groups(nn.Linear(3, 2), torch.rand(2, 3))


def test_hugging_face_taps_and_logits():
    net = HuggingFaceStyle().eval()
    logits, features = Tapped(net, ["layers.1"])({"pixel_values": images(2)})
    assert features["layers.1"].shape == (2, 16, 16)
    with torch.no_grad():  # with gradients torch takes another path through attention
        assert torch.equal(logits, call(net, images(2)))
