"""Designs of bridges: cost by closed form, never above a budget, and the same numbers in every way to run them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import modebridge as mb
from modebridge import trees
from modebridge.bridges import DepthwiseBlock, LowRankBlock, ResidualBody, body_for, body_like, body_within, choose_body
from modebridge.curves import start_curve
from modebridge.deploy import Deployed, OneModule
from modebridge.deploy.grouped_bridges import Grouped, units
from modebridge.errors import ModebridgeError
from modebridge.nets import SPECS, BasicBlock, BottleneckBlock, FilterResponseNorm
from modebridge.scoring import cost, module_cost
from tests.deploy.scenes import stirred
from tests.scenarios import blobs, loader, modes, quick, tiny_net
from tests.sequences import Sound, sounds

KINDS = {
    "plain": BasicBlock,
    "bottleneck": BottleneckBlock,
    "depthwise": DepthwiseBlock,
    "low-rank": LowRankBlock,
    "shallow": BasicBlock,
}
CHEAP = ["bottleneck", "depthwise", "low-rank", "shallow"]


def weights_of_convolutions(design, c, w, taps):
    """By hand: numbers in the convolutions of one block from c to w channels (4 w of a bottleneck), the shortcut's too.

    `taps` is 9 on maps and 3 on sequences; with stride 1 a number is one multiply-add per place.
    """
    rank = 8 * math.ceil(w / 32)
    out = 4 * w if design == "bottleneck" else w
    inside = {
        "bottleneck": c * w + taps * w * w + w * 4 * w,
        "depthwise": (taps * c + c * w) + (taps * w + w * w),
        "low-rank": (taps * c * rank + rank * w) + (taps * w * rank + rank * w),
    }.get(design, taps * c * w + taps * w * w)
    return inside + (0 if c == out else c * out), out


@pytest.mark.parametrize("design", KINDS)
@pytest.mark.parametrize(("shape", "layout", "taps"), [((24, 5, 7), "map", 9), ((24, 13), "sequence", 3)])
@pytest.mark.parametrize("width", [8, 40])
def test_flops_and_parameters_by_closed_form(design, shape, layout, taps, width):
    body = ResidualBody(24, [(width, 1)] * 2, 10, block=KINDS[design], layout=layout)
    first, out = weights_of_convolutions(design, 24, width, taps)
    second, out = weights_of_convolutions(design, out, width, taps)
    counted = module_cost(body, shape)
    assert counted.flops == math.prod(shape[1:]) * (first + second) + 10 * out
    norms = sum(
        2 * layer.num_features for layer in body.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
    )
    assert counted.params == first + second + norms + 10 * out + 10
    per_block = 2 * (2 * width + out) if design == "bottleneck" else 2 * 2 * width
    assert norms == 2 * per_block + (0 if out == 24 else 2 * out)


def test_the_stride_is_paid_for_where_it_is():
    """On the first convolution of a depthwise or low-rank pair: all that follows runs on a quarter of the places."""
    for padding in ("half", "same"):
        body = ResidualBody(16, [(32, 2)], 3, block=DepthwiseBlock, padding=padding, bias=True)
        assert module_cost(body, (16, 8, 8)).flops == 16 * (9 * 16 + 16 * 32 + 9 * 32 + 32 * 32 + 16 * 32) + 3 * 32
        body = ResidualBody(16, [(32, 2)], 3, block=LowRankBlock, padding=padding, bias=True)
        assert module_cost(body, (16, 8, 8)).flops == 16 * (72 * 16 + 8 * 32 + 72 * 32 + 8 * 32 + 16 * 32) + 3 * 32


@pytest.mark.parametrize(
    ("design", "shape", "layout", "kind"),
    [
        *((design, (64, 8, 8), "map", "I") for design in KINDS),
        ("shallow", (512, 15, 15), "map", "II"),
        ("depthwise", (512, 15, 15), "map", "I"),
        ("low-rank", (7, 7, 96), "map, channels last", "I"),
        ("bottleneck", (96, 17), "sequence", "II"),
        ("depthwise", (96, 17), "sequence", "I"),
    ],
)
def test_within_the_budget_and_the_next_one_is_not(design, shape, layout, kind):
    features = [shape] * (1 if kind == "I" else 2)
    budget = {"sequence": 2e5, "map": 3e6 if shape[0] < 512 else 3e7}.get(layout, 3e6)
    body, counted = body_within(shape, layout, 10, kind, budget, design=design)
    assert counted == module_cost(body, *features).flops <= budget
    blocks = list(body.layers)
    assert {type(block) for block in blocks} == {
        BottleneckBlock if shape[0] == 512 and design in ("plain", "shallow") else KINDS[design]
    }
    assert design != "shallow" or len(blocks) == 1
    width = blocks[0].norm1.weight.shape[0]
    assert width % 8 == 0
    channels = (shape[0] if layout in ("map", "sequence") else shape[-1]) * len(features)
    strides = [2 if min(shape[1:]) >= 14 and k == 0 and len(shape) == 3 else 1 for k in range(len(blocks))]
    if layout == "sequence":
        strides[0] = 2
    with torch.device("meta"):
        wider, same = (
            ResidualBody(channels, [(width + more, s) for s in strides], 10, block=type(blocks[0]), layout=layout)
            for more in (8, 0)
        )
    assert module_cost(wider, *features).flops > budget
    if shape == (64, 8, 8):  # what cheap convolutions and fewer blocks are for: more channels at the end
        assert (body.head.in_features > 24) == (design != "plain")
    assert module_cost(same, *features).flops == counted


def test_slim_keeps_the_channels_between_blocks():
    for spec in (SPECS["digits"], SPECS["tin200"], SPECS["in1k"]):
        with torch.device("meta"):
            bodies = {design: body_like(spec, "I", 2, design=design) for design in KINDS}
        assert len({body.head.in_features for body in bodies.values()}) == 1
        assert [len(body.layers) for body in bodies.values()] == [3, 3, 3, 3, 1]
        shape = (bodies["plain"].layers[0].conv1.in_channels, 8, 8)
        places = {math.prod(body.layers(torch.empty(1, *shape, device="meta")).shape[2:]) for body in bodies.values()}
        assert len(places) == 1
    body = body_for((64, 4, 4), 3, "I", 2, design="bottleneck")
    assert [block.conv1.out_channels for block in body.layers] == [8, 8, 8]
    assert body.head.in_features == 32


def test_a_depthwise_filter_starts_as_large_as_a_plain_one():
    """Kaiming by the fan-out of its own group: the squares of a filter sum to 2 on average, as of a 3x3 of c to c."""
    squares = [
        ResidualBody(256, [(256, 1)], 3, block=block, generator=torch.Generator().manual_seed(0)).layers[0].conv1
        for block in (BasicBlock, DepthwiseBlock)
    ]
    plain, deep = squares[0].weight, squares[1][0].weight
    for weight in (plain, deep):
        assert float(weight.detach().square().sum(dim=(1, 2, 3)).mean()) == pytest.approx(2, rel=0.1)


def test_joint_training_equals_training_alone_to_the_last_bit():
    net, ends = tiny_net(0, "bn"), modes(2, "bn")
    curve = start_curve(net, *ends).with_statistics(net, 0.5, loader())
    images, data = blobs(4).images, list(loader(16))
    plans = {d: mb.plan_bridge(net, curve, images, slim=1, design=d, name=d) for d in CHEAP}
    together = mb.fit_bridges(net, plans, data, config=quick(1))
    for design in CHEAP:
        alone = mb.fit_bridges(net, {design: plans[design]}, data, config=quick(1))[design]
        assert trees.fingerprint(alone.state_dict()) == trees.fingerprint(together[design].state_dict()), design
        assert trees.fingerprint(alone.state_dict()) != trees.fingerprint(plans[design].bridge.state_dict())


def test_fitted_to_a_budget_and_costed():
    net, ends = tiny_net(), modes(2)
    curve = start_curve(net, *ends)
    for design in ("depthwise", "low-rank"):
        bridge = mb.plan_bridge(net, curve, blobs(2).images, budget=0.5, design=design).bridge
        assert isinstance(bridge.body.layers[0], KINDS[design])
        assert isinstance(bridge.body.layers[0].norm1, FilterResponseNorm)  # as the base's
        fast = mb.BridgedEnsemble(net, ends[:1], [bridge])
        assert cost(fast, (1, 8, 8)).relative_flops == pytest.approx(1 + bridge.share, abs=1e-12)
        assert 0 < bridge.share <= 0.5
    bridge = mb.fit_bridge(net, curve, loader(), budget=0.5, design="depthwise", config=quick(0))
    assert isinstance(bridge.body.layers[0], DepthwiseBlock)


def ensemble_of(design, norm="bn"):
    """A mode, and two type I bridges and a type II bridge of a design."""
    net = stirred(tiny_net(0, norm), 0)
    ends = [mb.Mode.from_module(stirred(tiny_net(seed, norm), seed)) for seed in (0, 1)]
    curve = start_curve(net, *ends)
    bridges = [
        mb.plan_bridge(
            net, curve, blobs(2).images, kind=kind, slim=2, design=design, name=str(k), seed=k, target="labels"
        ).bridge
        for k, kind in enumerate(["I", "I", "II"])
    ]
    return mb.BridgedEnsemble(net, ends, [stirred(bridge, k) for k, bridge in enumerate(bridges)])


@pytest.mark.parametrize(("design", "norm"), [*((design, "bn") for design in CHEAP), ("depthwise", "frn")])
@torch.no_grad()
def test_one_module_folds_and_groups(design, norm):
    own = ensemble_of(design, norm).double()
    batch = torch.rand(5, 1, 8, 8, dtype=torch.float64)
    for grouped in (False, True):
        one = OneModule(own, grouped=grouped)
        assert one.units == ([(0, 1), (2,)] if grouped else [(0,), (1,), (2,)])
        assert not any(isinstance(layer, nn.BatchNorm2d) for layer in one.modules())
        torch.testing.assert_close(one.members(batch), own.members(batch), rtol=0, atol=1e-10)


@torch.no_grad()
def test_sequences_of_depthwise_blocks_grouped():
    bodies = [stirred(body_for((6, 9), 3, "I", 1, layout="sequence", design="depthwise", seed=k), k) for k in range(3)]
    assert units(bodies, [[(0, "a")]] * 3) == [(0, 1, 2)]
    feature = torch.rand(2, 6, 14)
    torch.testing.assert_close(Grouped(bodies)(feature), torch.stack([body(feature) for body in bodies]))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize("design", ["depthwise", "low-rank"])
@torch.no_grad()
def test_exported(design, suffix, tmp_path: Path):
    own, images = ensemble_of(design), torch.rand(4, 1, 8, 8)
    done = mb.export(own, tmp_path / f"fast.{suffix}", images[:1])
    got = torch.as_tensor(Deployed.load(done.path)(images.numpy()).probabilities)
    torch.testing.assert_close(got, own(images), rtol=0, atol=1e-5)


def test_what_cannot_be_built_is_said():
    net, ends = tiny_net(), modes(2)
    curve, images = start_curve(net, *ends), blobs(2).images
    with pytest.raises(
        ModebridgeError, match=r"design to be one of 'plain', .*'shallow', 'auto', but got 'thin'; choose one"
    ):
        mb.plan_bridge(net, curve, images, design="thin")
    for shape, layout in (((17, 96), "tokens"), ((96,), "vector"), ((32, 1, 1), "map")):
        sentence = (
            r"'plain' or 'auto' for a feature of \(.*\), which is not a map or sequence, .* got 'depthwise'; omit"
        )
        with pytest.raises(ModebridgeError, match=sentence):
            body_within(shape, layout, 10, "I", 1e5, design="depthwise")
        if len(shape) < 3:
            with pytest.raises(ModebridgeError, match=sentence):
                body_for(shape, 10, "I", design="depthwise")
    with pytest.raises(ModebridgeError, match=r"some depthwise bridge .* but got 74 .*; the smallest depthwise bridge"):
        body_within((64, 8, 8), "map", 10, "I", 74.0, design="depthwise")
    sound = Sound()
    chosen = choose_body(sound, sounds(2)[0], "I", slim=1, design="low-rank")
    assert isinstance(chosen.body.layers[0], LowRankBlock)
