"""Bodies for any feature, built to a budget: never above it, and the next wider one would be."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from modebridge.bridges import body_within, inspect, last_blocks_tap, plan_bridge
from modebridge.bridges.bodies import ResidualBody, TokenBody, VectorBody, body_for, body_like
from modebridge.curves import start_curve
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import BasicBlock, BottleneckBlock, FilterResponseNorm, Tapped
from modebridge.scoring import evaluate, module_cost
from modebridge.training import fit_bridge
from tests.networks import BY_NAME, HuggingFaceStyle, Sound, sounds
from tests.scenarios import EXACT, blobs, loader, modes, quick, tiny_net

SHAPES = [
    ((64, 8, 8), "map", "I"),
    ((64, 28, 28), "map", "II"),
    ((512, 7, 7), "map", "I"),
    ((7, 7, 96), "map, channels last", "II"),
    ((32, 1, 1), "map", "II"),
    ((96, 17), "sequence", "I"),
    ((96, 9), "sequence", "II"),
    ((17, 96), "tokens", "I"),
    ((17, 96), "tokens", "II"),
    ((1, 96), "tokens", "I"),
    ((96,), "vector", "II"),
    ((1,), "vector", "I"),
]
BASE = 20e6


def width_of(body):
    if isinstance(body, ResidualBody):
        return body.layers[0].conv1.out_channels
    return body.hidden.out_features if isinstance(body, VectorBody) else body.entry.out_features


def wider(body, shape, layout, classes, kind):
    """The next body of the same family, built without the code under test."""
    width = width_of(body)
    width = width + 1 if width < 8 else width + 8
    inputs = (shape[0] if layout in ("map", "sequence") else shape[-1]) * (1 if kind == "I" else 2)
    if isinstance(body, ResidualBody):
        strides = [layer.conv1.stride[0] * layer.conv2.stride[0] for layer in body.layers]
        block = type(body.layers[0])
        return ResidualBody(inputs, [(width, stride) for stride in strides], classes, block=block, layout=layout)
    if isinstance(body, TokenBody):
        return TokenBody(inputs, width, classes, blocks=len(body.layers))
    return VectorBody(inputs, width, classes, layout=layout)


@pytest.mark.parametrize(("shape", "layout", "kind"), SHAPES)
@pytest.mark.parametrize("budget", [0.01, 0.05, 0.2])
def test_within_the_budget_and_the_next_one_is_not(shape, layout, kind, budget):
    body, counted = body_within(shape, layout, 10, kind, budget * BASE, seed=0)
    features = [shape] * (1 if kind == "I" else 2)
    assert counted == module_cost(body, *features).flops <= budget * BASE
    assert module_cost(wider(body, shape, layout, 10, kind), *features).flops > budget * BASE
    width = width_of(body)
    assert width < 8 or width % 8 == 0
    assert body.eval()(*[torch.rand(2, *shape) for _ in features]).shape == (2, 10)


def test_closed_forms():
    body, counted = body_within((96,), "vector", 10, "II", 1e6)
    assert width_of(body) == 8 * math.floor(1e6 / (2 * 96 + 10) / 8)
    assert counted == width_of(body) * (2 * 96 + 10)
    for shape, layout, most, places in (
        # The way in, two layers of two products, scores and sum of the attention; then the head.
        ((17, 96), "tokens", 1e6, lambda w: 17 * (96 * w + 2 * 2 * w * w + 2 * w)),
        # The way in and its shortcut, five more convolutions; then the head.
        ((16, 6, 6), "map", 3e5, lambda w: 36 * (9 * 16 * w + 16 * w + 5 * 9 * w * w)),
        ((16, 6), "sequence", 2e4, lambda w: 6 * (3 * 16 * w + 16 * w + 5 * 3 * w * w)),
    ):
        body, counted = body_within(shape, layout, 10, "I", most)
        assert counted == places(width_of(body)) + 10 * width_of(body)


def test_strides_blocks_and_norm():
    large, small = (body_within((32, size, size), "map", 10, "I", 1e7, norm="frn")[0] for size in (14, 13))
    assert [body.layers[0].conv1.stride for body in (large, small)] == [(2, 2), (1, 1)]
    assert any(isinstance(module, FilterResponseNorm) for module in large.modules())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in large.modules())
    kinds = [type(body_within((c, 7, 7), "map", 10, "I", 1e8)[0].layers[0]) for c in (511, 512)]
    assert kinds == [BasicBlock, BottleneckBlock]


def test_nothing_fits():
    build = partial(body_within, (64, 8, 8), "map", 10, "I")
    assert width_of(build(74.0)[0]) == 1
    with pytest.raises(ModebridgeError, match=r"got 73 multiply-adds; the smallest bridge there takes 74\."):
        build(73.0)
    # The share is rounded up, so that it works as a budget.
    with pytest.raises(ModebridgeError, match=r"got 0\.001 of the base's FLOPs; the smallest .* takes 0\.0106"):
        build(7.0, base=7000.0)
    assert build(0.0106 * 7000)[1] == 74


@pytest.mark.parametrize(("shape", "layout"), [((8, 5, 5), "map"), ((5, 8), "tokens"), ((8,), "vector")])
def test_the_same_seed_gives_the_same_weights(shape, layout):
    one, two, other = (body_within(shape, layout, 3, "I", 5e4, seed=seed)[0] for seed in (1, 1, 2))
    pairs = list(zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(one.head.weight, other.head.weight)


def test_tokens_are_pooled_by_one_query():
    torch.manual_seed(0)
    body = body_for((7, 6), 3, "I", 2, seed=0).eval()
    assert isinstance(body, TokenBody)
    x = torch.rand(2, 7, 6)
    torch.testing.assert_close(body(x[:, torch.randperm(7)]), body(x))  # no order among tokens
    torch.testing.assert_close(body(x.repeat(1, 3, 1)), body(x))
    # At the start the query is zero: the plain mean of the tokens, each on its own.
    each = torch.stack([body(x[:, t : t + 1]) for t in range(7)])
    torch.testing.assert_close(each.mean(dim=0), body(x))
    # A query of great length picks one token alone.
    with torch.no_grad():
        body.pool.query.copy_(1e4 * torch.randn(3, 1))
    each = torch.stack([body(x[:, t : t + 1]) for t in range(7)])
    assert torch.isclose(each, body(x), atol=1e-4).all(-1).any(0).all()


def test_channels_last_is_the_same_body_on_the_other_order():
    last = body_for((4, 5, 6), 3, "II", 2, layout="map, channels last", seed=0).eval()
    first = body_for((6, 4, 5), 3, "II", 2, seed=0).eval()
    a, b = torch.rand(2, 6, 4, 5), torch.rand(2, 6, 4, 5)
    turned = [x.permute(0, 2, 3, 1) for x in (a, b)]
    torch.testing.assert_close(last(*turned), first(a, b))
    assert not torch.allclose(last(*turned[::-1]), first(a, b))
    # One program serves bridges that print alike: these two do not.
    assert repr(last) != repr(first)


def test_a_perceptron_reads_the_mean_over_places():
    body = VectorBody(6, 4, 3, torch.Generator().manual_seed(0))
    x = torch.rand(2, 6, 4, 5)
    tokens = x.flatten(2).transpose(1, 2)
    for layout, feature in {"map": x, "map, channels last": x.permute(0, 2, 3, 1), "tokens": tokens}.items():
        pooled = VectorBody(6, 4, 3, torch.Generator().manual_seed(0), layout=layout)
        # Tokens are normalized, since those inside transformers are not.
        mean = nn.functional.layer_norm(tokens, (6,)).mean(dim=1) if layout == "tokens" else x.mean(dim=(2, 3))
        torch.testing.assert_close(pooled(feature), body(mean))


def test_tokens_are_pooled_first_where_layers_would_be_narrow():
    shape, most = (24, 64), module_cost(TokenBody(64, 32, 30), (24, 64)).flops
    assert isinstance(body_within(shape, "tokens", 30, "I", most)[0], TokenBody)
    pooled, flops = body_within(shape, "tokens", 30, "I", most / 2)
    assert isinstance(pooled, VectorBody)
    assert flops <= most / 2
    assert pooled.hidden.out_features > 64


def test_a_bridge_says_what_it_reached():
    net, (a, b) = tiny_net(), modes(2)
    curve = start_curve(net, a, b)
    bridge = fit_bridge(net, curve, loader(), budget=0.1, config=quick(1))
    assert bridge.tap == net.paper_tap
    assert 0 < bridge.share <= 0.1
    assert f"share={bridge.share:.2%}" in repr(bridge)
    assert copy.deepcopy(bridge).share == bridge.share
    scores = evaluate(Ensemble(net, [a], [bridge]), loader())
    assert scores.cost.relative_flops == pytest.approx(1 + bridge.share, abs=1e-12)
    # Without a budget it is counted too, and is the paper's body as before.
    paper = plan_bridge(net, curve, blobs(2).images)
    shape = (8, 8, 8)
    assert paper.share == module_cost(paper.body, shape).flops / module_cost(net, (1, 8, 8)).flops
    assert paper.body.layers[0].conv1.bias is not None


def test_norm_follows_the_base():
    for norm in ("frn", "bn"):
        net, (a, b) = tiny_net(0, norm), modes(2, norm)
        curve = start_curve(net, a, b)
        for options in ({"budget": 0.3}, {"slim": 2}):
            body = plan_bridge(net, curve, blobs(2).images, tap="layers.2", target="labels", **options).body
            assert any(isinstance(module, FilterResponseNorm) for module in body.modules()) == (norm == "frn")


def test_bad_budgets():
    net, (a, b) = tiny_net(), modes(2)
    curve = start_curve(net, a, b)
    images = blobs(2).images
    for budget in (0, -0.1, 1.1, math.nan):
        with pytest.raises(ModebridgeError, match=r"in \(0, 1\], but got .*; 0\.05 is 5 %"):
            plan_bridge(net, curve, images, budget=budget)
    with pytest.raises(ModebridgeError, match="got 1e-06 of the base's FLOPs; the smallest bridge there takes"):
        plan_bridge(net, curve, images, budget=1e-6)
    own = nn.Sequential(nn.Flatten(), nn.Linear(512, 3))
    assert plan_bridge(net, curve, images, body=own, budget=1.0).share == 1536 / module_cost(net, (1, 8, 8)).flops
    with pytest.raises(ModebridgeError, match=r"at most 0\.001 of the base's .* but got 1,536; use a smaller body"):
        plan_bridge(net, curve, images, body=own, budget=0.001)


def test_a_budget_limits_the_parameters_too():
    """Deep in a network of large maps parameters are cheap in FLOPs: 5 % of those buy many times the base's."""
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 4))
    mode, images = Mode.from_module(net), torch.rand(1, 3, 128, 128)
    plan = partial(plan_bridge, net, mode, images, tap="4", target="labels")
    bridge = plan(budget=0.05)
    assert 0.4 < bridge.parameter_share <= 0.5
    assert bridge.share < 0.01
    assert [tap.bridge[1] <= 0.5 for tap in inspect(net, images, budget=0.05).taps] == [True] * 6
    with pytest.raises(ModebridgeError, match=r"at most 2,836 parameters; .* takes 4,017: pass your own"):
        plan(budget=0.5, target=["labels"] * 500)


def test_a_base_without_products_has_no_shares():
    net = nn.Sequential(nn.LayerNorm(3), nn.ReLU(), nn.LayerNorm(3))
    a = Mode.from_module(net)
    nn.init.constant_(net[2].weight, 2.0)
    curve = start_curve(net, a, Mode.from_module(net))
    assert plan_bridge(net, curve, torch.rand(1, 3)).share is None


def test_inputs_by_name():
    nets = [HuggingFaceStyle(), HuggingFaceStyle()]
    ends = [Mode.from_module(net) for net in nets]
    bridge = plan_bridge(nets[0], start_curve(nets[0], *ends), BY_NAME, budget=0.1, kind="II")
    assert (bridge.tap, type(bridge.body)) == ("layers.1", TokenBody)
    assert 0.02 < bridge.share <= 0.1
    with torch.no_grad():
        assert Ensemble(nets[0], ends, [bridge])(BY_NAME).shape == (2, 3)


@pytest.mark.parametrize("options", [{"budget": 0.9}, {"budget": 0.05}, {"kind": "II"}])
def test_bridges_of_sequences_take_any_length(options):
    net, ends, train = Sound(), [Mode.from_module(Sound(seed)) for seed in (1, 2)], [sounds()]
    curve = start_curve(net, *ends).with_statistics(net, 0.5, train)
    bridge = fit_bridge(net, curve, train, config=quick(1), **options)
    assert isinstance(bridge.body, VectorBody if options.get("budget") == 0.05 else ResidualBody)
    fast = Ensemble(net, ends if bridge.kind == "II" else ends[:1], [bridge])
    for length in (24, 31, 200):
        assert fast(sounds(2, length)[0]).shape == (2, 3)
    # Channels are (B, C, L)'s second axis: what is constant in time stays what it is at any length.
    feature = torch.rand(2, 6, 1)
    bodies = [VectorBody(6, 8, 3, torch.Generator().manual_seed(0), layout="sequence")]
    torch.testing.assert_close(bodies[0](feature.repeat(1, 1, 5)), bodies[0](feature))


def test_filter_response_norm_of_sequences_is_that_of_maps_one_pixel_high():
    norm, x = FilterResponseNorm(3), torch.rand(2, 3, 5)
    torch.testing.assert_close(norm(x), norm(x[:, :, None])[:, :, 0])
    body = body_for((8, 9), 3, "I", 2, layout="sequence", norm="frn", seed=0)
    assert body(torch.rand(2, 8, 4)).shape == (2, 3)


def test_a_small_map_is_halved_before_blocks_are_given_up():
    """One strided block of width 8 has 32*8*9*16 + 8*8*9*16 + 32*8*16 + 80 = 50,256 multiply-adds, each more 18,432."""
    one, more = 50_256, 18_432
    strides = {one - 1: None, one: [2], one + more: [2, 1], one + 2 * more: [2, 1, 1], 1_000_000: [1, 1, 1]}
    for flops, expected in strides.items():
        body, counted = body_within((32, 8, 8), "map", 10, "I", flops)
        assert counted <= flops
        blocks = getattr(body, "layers", None)
        assert (blocks and [block.conv1.stride[0] for block in blocks]) == expected
    tiny, _ = body_within((32, 2, 2), "map", 10, "I", 20_000)
    assert tiny.layers[0].conv1.stride == (1, 1)


def test_medium_type_one_bridge_is_the_base_itself():
    """With slim 1 and the base's own last weights, the bridge says what the base says."""
    net = tiny_net().eval()
    body = body_like(net.spec, "I", 1)
    for mine, theirs in zip((*body.layers, body.head), (*net.layers[2:], net.head), strict=True):
        mine.load_state_dict(theirs.state_dict())
    net, body = net.double(), body.double()
    images = torch.rand(3, 1, 8, 8, dtype=EXACT)
    tap = last_blocks_tap(net.spec)
    logits, features = Tapped(net, [tap])(images)
    torch.testing.assert_close(body(features[tap]), logits, rtol=0, atol=1e-12)


def test_bodies_for_other_features():
    assert body_for((6, 4, 4), 3, "II", 2)(torch.rand(2, 6, 4, 4), torch.rand(2, 6, 4, 4)).shape == (2, 3)
    assert body_for((6,), 3, "I", 2)(torch.rand(2, 6)).shape == (2, 3)
    assert isinstance(body_for((512, 1, 1), 3, "I").layers[0], BottleneckBlock), "small on wide maps"
    with pytest.raises(ModebridgeError, match=r"\(C, H, W\), \(C, L\), \(T, C\) or \(C,\)"):
        body_for((6, 4, 2, 2, 2), 3, "I")
    assert body_for((6, 4, 2, 2), 3, "I")(torch.rand(2, 6, 4, 2, 2)).shape == (2, 3)
    with pytest.raises(ModebridgeError, match="to be 'tokens' or 'sequence', but got 'map'"):
        body_for((6, 4), 3, "I", layout="map")
