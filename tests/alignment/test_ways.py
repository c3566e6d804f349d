"""Networks whose way depends on the images or on the mode they are in: what does not run must not be broken."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torchvision
from torch import Tensor, nn

import modebridge as mb
from modebridge.alignment import align, find_groups, prove
from modebridge.alignment.passes import as_in_training
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from tests.alignment.renumbering import renumbered

METHODS = ("activations", "weights")


def seeded(kind, seed: int = 0, **options) -> nn.Module:
    torch.manual_seed(seed)
    return kind(**options).eval()


def batches(*brightness: float, size: int = 12) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.rand(size, 6, generator=generator) * 0.2 + level, torch.arange(size) % 3) for level in brightness]


def apart(net: nn.Module, first: Mode, second: Mode, x: Tensor) -> float:
    with torch.no_grad():
        a, b = (mode.load(net).double()(x.double()) for mode in (first, second))
    return float((a - b).abs().max() / a.abs().max())


class Branching(nn.Module):
    """Another head for dark batches."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Linear(6, 16), self.Block()
        self.bright, self.dark = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x):
        h = self.block(torch.relu(self.stem(x)))
        return self.bright(h) if x.mean() > 0.2 else self.dark(h)


@pytest.mark.parametrize("by", METHODS)
def test_a_branch_that_the_second_batch_takes_is_renumbered_too(by):
    net = seeded(Branching)
    a, b = Mode.from_module(net), Mode.from_module(seeded(Branching, 1))
    data = batches(0.5, 0.0)
    result = align(net, a, b, data, by=by, barrier_images=0)
    assert sum(match.moved for match in result.matches) > 20
    assert result.groups.stopped == ()
    for x, _ in data:
        assert apart(net, b, result.mode, x) < 1e-12


@pytest.mark.parametrize("by", METHODS)
def test_units_that_a_branch_no_batch_takes_might_read_stay_and_are_named(by):
    net = seeded(Branching)
    a, b = Mode.from_module(net), Mode.from_module(seeded(Branching, 1))
    result = mb.align(net, a, b, batches(0.5, 0.6), by=by)
    assert apart(net, b, result.mode, batches(0.0)[0][0]) < 1e-12
    assert ("weights that never ran", "dark") in result.stopped
    assert "weights that never ran in 'dark'" in str(result)
    # What stays inside the block, where the branch cannot see it, is still free.
    assert [(match.name, match.size) for match in result.matches] == [("block.up.weight", 24)]
    assert result.matches[0].moved > 10


def test_operations_that_depend_on_the_batch_are_all_watched():
    class Flipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = torch.relu(self.first(x))
            return self.last(h if x.mean() > 0.2 else h.flip(1))

    net = seeded(Flipping)
    assert list(find_groups(net, [batches(0.5)[0][0]]).groups) == [0]
    with pytest.raises(ModebridgeError, match="aten::flip in 'the network itself' keep them in place"):
        find_groups(net, [x for x, _ in batches(0.5, 0.0)])
    # And the proof sees it, if somebody renumbers nevertheless.
    mode = Mode.from_module(net)
    other = renumbered(mode, find_groups(net, [batches(0.5)[0][0]]))
    assert prove(net, mode, other, batches(0.5)[0][0]) < 1e-12
    with pytest.raises(ModebridgeError, match="the same function, but its logits differ"):
        prove(net, mode, other, [x for x, _ in batches(0.5, 0.0)])


class Outputs(NamedTuple):
    logits: Tensor
    aux_logits: Tensor


class Auxiliary(nn.Module):
    """As torchvision's GoogLeNet: a second head, with a convolution over the map, that only training runs."""

    def __init__(self, kernel: int = 3, always: bool = False) -> None:
        super().__init__()
        self.always = always
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(12, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
        self.aux = nn.Sequential(
            nn.Conv2d(12, 10, kernel), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 3)
        )
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(16, 3)

    def forward(self, x):
        h = self.stem(x)
        logits = self.head(self.drop(self.body(h).mean((2, 3))))
        return Outputs(logits, self.aux(h)) if self.training or self.always else logits


def pictures(n: int = 8) -> Tensor:
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("by", METHODS)
def test_heads_that_only_training_runs_follow(by):
    net = seeded(Auxiliary)
    a, b = Mode.from_module(net), Mode.from_module(seeded(Auxiliary, 1))
    result = align(net, a, b, [(pictures(), torch.zeros(8).long())], by=by, barrier_images=0)
    assert result.groups.training
    assert {"stem.0.weight", "body.0.weight"} <= {match.name for match in result.matches if match.moved > 3}
    nets = [mode.load(net).double() for mode in (b, result.mode)]
    with torch.no_grad(), as_in_training(nets[0]), as_in_training(nets[1]):
        before, after = (net(pictures().double()) for net in nets)
    assert torch.allclose(before.aux_logits, after.aux_logits, atol=1e-12)
    assert torch.allclose(before.logits, after.logits, atol=1e-12)


def test_the_auxiliary_logits_of_googlenet():
    net = seeded(lambda: torchvision.models.googlenet(num_classes=3, init_weights=False))
    mode = Mode.from_module(net)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    groups = find_groups(net, x)
    assert groups.stopped == ()
    other = renumbered(mode, groups)
    nets = [given.load(net) for given in (mode, other)]
    with torch.no_grad(), as_in_training(nets[0]), as_in_training(nets[1]):
        before, after = (given(x) for given in nets)
    for one, two in zip(before, after, strict=True):
        assert float((one - two).abs().max() / one.std()) < 1e-4


def test_a_network_that_returns_an_object_in_training_alone():
    net = seeded(Auxiliary).train()
    a, b = Mode.from_module(net), Mode.from_module(seeded(Auxiliary, 1))
    data = [(pictures(8), torch.arange(8) % 3), (pictures(1), torch.zeros(1).long())]
    result = mb.align(net, a, b, data)
    assert result.barrier_after is not None
    assert net.training
    ensemble = mb.Ensemble(net, [a, result.mode])
    assert mb.evaluate(ensemble, data).nll == pytest.approx(mb.evaluate(mb.Ensemble(net, [a, b]), data).nll)


def test_a_head_that_needs_larger_images_keeps_what_it_reads_in_place():
    net = seeded(Auxiliary, kernel=7)
    a, b = Mode.from_module(net), Mode.from_module(seeded(Auxiliary, 1, kernel=7))
    result = align(net, a, b, [(pictures(), torch.zeros(8).long())], barrier_images=0)
    assert ("weights that never ran", "aux") in result.groups.stopped
    assert torch.equal(result.mode.params["stem.0.weight"], b.params["stem.0.weight"])
    assert [match.name for match in result.matches if match.moved] == ["body.0.weight"]


def test_every_output_is_proven():
    net = seeded(Auxiliary, always=True)
    mode = Mode.from_module(net)
    groups = find_groups(net, pictures(2))
    assert prove(net, mode, renumbered(mode, groups), pictures()) < 1e-12
    wrong = Mode({**mode.params, "aux.4.weight": mode.params["aux.4.weight"].flip(1)}, mode.buffers)
    with pytest.raises(ModebridgeError, match="the same function, but its logits differ"):
        prove(net, mode, wrong, pictures())


def test_units_that_are_returned_stay():
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 10), nn.Linear(10, 3)

        def forward(self, x):
            feature = self.first(x).relu()
            return {"logits": self.last(self.second(feature).relu()), "hidden": [feature]}

    groups = find_groups(seeded(Features), batches(0.5)[0][0])
    assert [group.name for group in groups.groups.values()] == ["second.weight"]
    assert groups.stopped == (("being returned as output.hidden[0]", "the network itself"),)


class Experts(nn.Module):
    """A mixture of experts: every image goes to the one that the router chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.router = nn.Linear(6, 16), nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 16)) for _ in range(4))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = self.stem(x).relu()
        weight, chosen = self.router(h).softmax(-1).max(-1)
        out = torch.zeros_like(h)
        for k, expert in enumerate(self.experts):
            rows = chosen == k
            if bool(rows.any()):
                out[rows] = expert(h[rows]) * weight[rows, None]
        return self.head(h + out)


def test_a_mixture_of_experts():
    net = seeded(Experts)
    a, b = Mode.from_module(net), Mode.from_module(seeded(Experts, 1))
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(64, 6, generator=generator) * 3, torch.arange(64) % 3) for _ in range(3)]
    result = mb.align(net, a, b, data)
    assert apart(net, b, result.mode, data[2][0]) < 1e-12
    assert [match.size for match in result.matches if match.moved] == [16]
    for k in range(4):
        assert ("images that the two networks route differently", f"experts.{k}.0") in result.stopped
        assert torch.equal(result.mode.params[f"experts.{k}.0.bias"], b.params[f"experts.{k}.0.bias"])
    # Where both route alike, everything is found.
    groups = find_groups(net, [x for x, _ in data])
    for by in METHODS:
        assert align(net, a, renumbered(a, groups), data, by=by, barrier_images=0).mode.id == a.id


@pytest.mark.parametrize("by", METHODS)
def test_concatenations_of_concatenations(by):
    class Nested(nn.Module):
        """As Inception: branches that concatenate themselves; the map is flattened with its places."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 6, 3, padding=1)
            self.one, self.two, self.three = (nn.Conv2d(6, width, 1) for width in (4, 5, 3))
            self.mix = nn.Conv2d(12, 7, 1)
            self.last = nn.Linear(19 * 4, 3)

        def forward(self, x):
            h = self.stem(x).relu()
            inner = torch.cat([self.two(h).relu(), self.three(h).relu()], 1)
            h = torch.cat([self.one(h).relu(), inner], 1)
            h = torch.cat([h, self.mix(h).relu()], 1)
            return self.last(torch.nn.functional.adaptive_avg_pool2d(h, 2).flatten(1))

    net = seeded(Nested)
    mode = Mode.from_module(net)
    groups = find_groups(net, pictures(2))
    assert sorted(group.size for group in groups.groups.values()) == [3, 4, 5, 6, 7]
    assert groups.stopped == ()
    other = renumbered(mode, groups)
    assert align(net, mode, other, [(pictures(), torch.zeros(8).long())], by=by, barrier_images=0).mode.id == mode.id


def test_filling_a_mask_keeps_no_units_in_place():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = self.first(x).relu()
            keep = torch.empty(len(x), 5).fill_(1.0)
            keep[:, 0].fill_(2.0)
            return self.last(h * torch.empty_like(h).fill_(0.5)) * keep.mean(1, keepdim=True)

    groups = find_groups(seeded(Masked), batches(0.5)[0][0])
    assert [group.size for group in groups.groups.values()] == [8]
    assert groups.stopped == ()


def test_half_precision_and_complex_weights():
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 9, dtype=torch.complex64)
            self.last = nn.Linear(9, 3)

        def forward(self, x):
            return self.last(self.first(x.to(torch.complex64)).abs())

    half = seeded(lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)).bfloat16())
    for net, x in ((half, batches(0.5)[0][0].bfloat16()), (seeded(Complex), batches(0.5)[0][0])):
        mode = Mode.from_module(net)
        other = renumbered(mode, find_groups(net, x))
        assert other.id != mode.id
        for by in METHODS:
            result = mb.align(net, mode, other, [(x, torch.zeros(12).long())], by=by)
            assert result.mode.id == mode.id
            assert result.quality_after > 0.999


def test_what_cannot_run_is_a_sentence():
    lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    mode = Mode.from_module(seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))))
    with pytest.raises(ModebridgeError, match=r"'0.weight' has no shape yet; run the network once"):
        mb.align(lazy, mode, mode, batches(0.5))
    with pytest.raises(ModebridgeError, match=r"'0.weight' has no shape yet; run the network once"):
        Mode.from_module(lazy)
    net = seeded(Auxiliary)
    with pytest.raises(ModebridgeError, match=r"Auxiliary to run on the images of data, but got \(3, 2, 2\)"):
        mb.align(net, Mode.from_module(net), Mode.from_module(net), [(torch.rand(4, 3, 2, 2), torch.zeros(4).long())])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("by", METHODS)
def test_networks_that_work_in_place_on_their_images(by, dtype):
    """Each network sees the images as they are, not what another one left of them; so does the caller."""

    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 9)
            self.last = nn.Linear(9, 3)

        def forward(self, x):
            return self.last(self.first(x.sub_(0.6).mul_(-3.0)).relu())

    net = seeded(InPlace).to(dtype)
    data = [(x.to(dtype), labels) for x, labels in batches(0.1, 0.5)]
    kept = [x.clone() for x, _ in data]
    mode = Mode.from_module(net)
    other = renumbered(mode, find_groups(net, kept[0].clone()))
    result = mb.align(net, mode, other, data, by=by)
    assert result.mode.id == mode.id
    assert result.quality_after > 0.999
    assert result.difference < 1e-6
    assert all(torch.equal(x, before) for (x, _), before in zip(data, kept, strict=True))
