"""Which units are found: whatever is renumbered, the function stays what it was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import modebridge as mb
from modebridge.alignment import align, find_groups, prove
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from tests.alignment.renumbering import METHODS, Odd, pair, renumbered, seeded
from tests.networks import NETWORKS, OTHERS, made


def images(n: int = 24) -> Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


PARTLY = {"timm vit_tiny", "torchvision vit", "Hugging Face style", "timm beit", "torchvision shufflenet"}
MOSTLY_NOT = {"timm mixer", "timm xcit", "torchvision swin"}
"""Networks with operations that keep some units in place, and those where little more than perceptrons is matched."""


@pytest.mark.parametrize("name", [*NETWORKS, *OTHERS])
def test_any_renumbering_is_the_same_function(name):
    net = made(name)
    groups = find_groups(net, images(2))
    mode = Mode.from_module(net)
    other = renumbered(mode, groups)
    assert prove(net, mode, other, images(3)) < 1e-9
    # Not for lack of movement: all weights have moved, but for the bias of the classes (and one channel in front).
    moved = [key for key in mode.params if not torch.equal(mode.params[key], other.params[key])]
    share = 0.7 if name in PARTLY else 0.19
    assert len(moved) >= (share * len(mode.params) if name in PARTLY | MOSTLY_NOT else len(mode.params) - 3)
    if name not in PARTLY | MOSTLY_NOT | {"timm regnet"}:
        assert groups.stopped == ()


def test_the_groups_of_a_residual_network_and_of_a_transformer():
    groups = find_groups(made("torchvision resnet18"), images(2))
    # The stem's stream (stage 1 has no projection), three more stages, and the inner channels of eight blocks.
    assert sorted(group.size for group in groups.groups) == sorted(3 * [64, 128, 256, 512])
    groups = find_groups(made("timm vit_tiny"), images(2))
    # A stream of 192, and in each of three layers 768 hidden units; heads stay in place.
    assert [group.size for group in groups.groups] == [192, 768, 768, 768]
    assert groups.stopped == tuple(("aten::unbind", f"blocks.{k}.attn") for k in range(3))


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (lambda x: torch.fft.rfft(x).abs()[:, [0, 1, 2, 3, 4, 3, 2, 1]], "_fft_r2c"),
        (lambda x: x.sort(dim=1).values, "sort"),
        (lambda x: x.flip(1), "flip"),
        (lambda x: x * torch.arange(8.0), "arange"),
        (lambda x: x + x.max(1, keepdim=True).indices, "max"),
        (lambda x: F.pad(x, (1, -1)), "constant_pad_nd"),
        (lambda x: x[:, ::2].repeat(1, 2), "slice"),
        (lambda x: x[:, [7, 6, 5, 4, 3, 2, 1, 0]], "index"),
        (lambda x: x.view(-1, 2, 4).transpose(1, 2).reshape(-1, 8), "view"),
    ],
)
def test_an_operation_without_a_rule_keeps_its_units_in_place(operation, name):
    with pytest.raises(ModebridgeError, match=f"aten::{name} in 'the network itself' keep them in place; pass a spec"):
        find_groups(Odd(operation), torch.rand(2, 6))


@pytest.mark.parametrize(
    ("operation", "sizes"),
    [
        (lambda x: torch.cat([x[:, 3:], x[:, :3]], 1), [3, 5]),
        (lambda x: torch.cat([torch.cat([x[:, :2], x[:, 2:5]], 1), x[:, 5:]], 1), [2, 3, 3]),
        (lambda x: torch.cat([x.chunk(2, 1)[0] * x.chunk(2, 1)[1].sigmoid(), x[:, :4]], 1), [4]),
        (lambda x: x * torch.empty_like(x).fill_(0.5), [8]),
        (lambda x: x.view(-1, 2, 4).sum(1).repeat(1, 2), [2]),
        (lambda x: x.view(-1, 4, 2).softmax(1).view(-1, 8), [4]),
        (lambda x: x + x.view(-1, 2, 4).mean(1, keepdim=True).expand(-1, 2, 4).reshape(-1, 8), [2]),
        (lambda x: x.t().unsqueeze(0).movedim(0, 2).squeeze_().t(), [8]),
        (lambda x: x.unsqueeze(-1).transpose_(1, 2).squeeze(1).clone().add_(1), [8]),
        (lambda x: F.normalize(x, dim=-1), [8]),
        (lambda x: F.group_norm(x, 4), [4]),
        (lambda x: F.conv2d(x.view(-1, 8, 1, 1), x.new_ones(8, 2, 1, 1), groups=4).flatten(1), [4]),
        (lambda x: F.conv1d(x[:, :4].unsqueeze(2), x.new_ones(8, 1, 1), groups=4).flatten(1), [4, 4]),
    ],
)
def test_what_is_found_is_true_whatever_happens_on_the_way(operation, sizes):
    net = seeded(Odd, operation=operation)
    mode = Mode.from_module(net)
    groups = find_groups(net, torch.rand(2, 6))
    assert prove(net, mode, renumbered(mode, groups), torch.rand(5, 6)) < 1e-9
    assert sorted(group.size for group in groups.groups) == sizes


def batches(*brightness: float, size: int = 12) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.rand(size, 6, generator=generator) * 0.2 + level, torch.arange(size) % 3) for level in brightness]


class Branching(nn.Module):
    """Another head for dark batches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Linear(6, 16), nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16))
        self.bright, self.dark = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x):
        h = torch.relu(self.stem(x))
        h = h + self.block(h)
        return self.bright(h) if x.mean() > 0.2 else self.dark(h)


@pytest.mark.parametrize("by", METHODS)
def test_a_branch_that_the_second_batch_takes_is_renumbered_too(by):
    net, a, b = pair(Branching)
    result = align(net, a, b, batches(0.5, 0.0), by=by, barrier_images=0)
    assert sum(match.moved for match in result.matches) > 20
    assert result.stopped == ()
    assert prove(net, b, result.mode, [x for x, _ in batches(0.5, 0.0)]) < 1e-12


@pytest.mark.parametrize("by", METHODS)
def test_units_that_a_branch_no_batch_takes_might_read_stay_and_are_named(by):
    net, a, b = pair(Branching)
    result = mb.align(net, a, b, batches(0.5, 0.6), by=by)
    assert prove(net, b, result.mode, batches(0.0)[0][0]) < 1e-12
    assert result.stopped == (("weights that never ran", "dark"),)
    assert "weights that never ran in 'dark'" in str(result)
    # What stays inside the block, where the branch cannot see it, is still free.
    assert [(match.name, match.size) for match in result.matches] == [("block.0.weight", 24)]
    assert result.matches[0].moved > 10


def test_operations_that_depend_on_the_batch_are_all_watched():
    class Flipping(Odd):
        def forward(self, x):
            h = torch.relu(self.first(x))
            return self.last(h if x.mean() > 0.2 else h.flip(1))

    net = seeded(Flipping)
    with pytest.raises(ModebridgeError, match="aten::flip in 'the network itself' keep them in place"):
        find_groups(net, [x for x, _ in batches(0.5, 0.0)])
    # And the proof sees it, if somebody renumbers nevertheless.
    mode = Mode.from_module(net)
    other = renumbered(mode, find_groups(net, [batches(0.5)[0][0]]))
    with pytest.raises(ModebridgeError, match="the same function, but its logits differ"):
        prove(net, mode, other, [x for x, _ in batches(0.5, 0.0)])


class Auxiliary(nn.Module):
    """As torchvision's GoogLeNet: a second head that only training runs."""

    def __init__(self, always: str = "") -> None:
        super().__init__()
        self.always = always
        self.stem, self.head, self.aux = nn.Linear(6, 12), nn.Linear(14, 3), nn.Linear(12, 3)
        self.body = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 14))

    def forward(self, x):
        h = self.stem(x).relu()
        logits = self.head(self.body(h))
        if self.always == "feature":
            return logits + self.aux(h), h
        return {"logits": logits, "more": [self.aux(h)]} if self.training or self.always else logits


def test_a_head_that_only_training_runs_keeps_what_it_reads_in_place():
    net, a, b = pair(Auxiliary)
    result = mb.align(net.train(), a, b, batches(0.5, 0.1))
    assert net.training
    assert result.stopped == (("weights that never ran", "aux"),)
    assert [match.name for match in result.matches if match.moved] == ["body.0.weight"]
    assert prove(seeded(Auxiliary, always="yes"), b, result.mode, batches(0.3)[0][0]) < 1e-12


def test_every_output_is_proven_and_features_that_are_returned_stay():
    net, x = seeded(Auxiliary, always="yes"), batches(0.5)[0][0]
    mode = Mode.from_module(net)
    groups = find_groups(net, x)
    assert [group.size for group in groups.groups] == [12, 14, 16]
    assert prove(net, mode, renumbered(mode, groups), x) < 1e-12
    wrong = Mode({**mode.params, "aux.weight": mode.params["aux.weight"].flip(1)}, mode.buffers)
    with pytest.raises(ModebridgeError, match="the same function, but its logits differ"):
        prove(net, mode, wrong, x)
    groups = find_groups(seeded(Auxiliary, always="feature"), x)
    assert [group.size for group in groups.groups] == [14, 16]
    assert ("being returned as output.1", "the network itself") in groups.stopped
