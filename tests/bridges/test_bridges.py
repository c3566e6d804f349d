"""Bridges: their build, their loss, and that training together equals training alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modebridge import trees
from modebridge.bridges import (
    Bridge,
    body_for,
    body_like,
    curve_target,
    ensemble_target,
    last_blocks_tap,
    mode_target,
    plan_bridge,
)
from modebridge.curves import start_curve
from modebridge.data import Loader
from modebridge.errors import ModebridgeError
from modebridge.matching import kl_divergence, mix
from modebridge.modes import Mode
from modebridge.nets import SPECS, Tapped, resnet
from modebridge.objectives import BridgeObjective
from modebridge.training import fit_bridge
from tests.plans import fit_bridges
from tests.scenarios import EXACT, Vectors, blobs, loader, modes, quick, tiny_net

# (data set, kind, slim) -> parameters, from the facts table; the 32-to-128-channel rows have no projection.
PAPER_BRIDGES = {
    ("tin200", "I", 2, True): 3_661_256,
    ("tin200", "I", 1, True): 13_220_552,
    ("tin200", "II", 2, True): 4_316_616,
    ("tin200", "II", 1, True): 14_531_272,
    ("in1k", "I", 2, True): 5_432_808,
    ("in1k", "I", 1, True): 17_025_000,
    ("in1k", "II", 2, True): 6_743_528,
    ("in1k", "II", 1, True): 19_646_440,
    ("cifar100", "II", 8, False): 197_604,
    ("cifar100", "II", 4, False): 487_268,
    ("cifar100", "II", 2, False): 1_343_076,
    ("cifar100", "II", 1, True): 4_292_708,
}


@pytest.mark.parametrize("key", PAPER_BRIDGES)
def test_parameter_counts(key):
    name, kind, slim, projection = key
    with torch.device("meta"):
        body = body_like(SPECS[name], kind, slim, projection=projection)
    assert sum(p.numel() for p in body.parameters()) == PAPER_BRIDGES[key]


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tin200", "in1k", "digits"])
@pytest.mark.parametrize("kind", ["I", "II"])
def test_reads_the_tap_of_its_base(name, kind):
    spec = SPECS[name]
    net = resnet(name).to("meta").eval()
    body = body_like(spec, kind, 2).to("meta").eval()
    _, features = Tapped(net, [last_blocks_tap(spec)])(torch.empty(2, *spec.image, device="meta"))
    feature = features[last_blocks_tap(spec)]
    assert body(*[feature] * (1 if kind == "I" else 2)).shape == (2, spec.classes)


def test_building_twice_gives_the_same_width():
    first, second = (sum(p.numel() for p in body_like(SPECS["digits"], "I", 2).parameters()) for _ in range(2))
    assert first == second


def test_medium_type_one_bridge_is_the_base_itself():
    """With slim 1 and the base's own last weights, the bridge says what the base says."""
    net = tiny_net().eval()
    body = body_like(net.spec, "I", 1)
    state = net.state_dict()
    body.load_state_dict(
        {
            **{f"layers.{k}.{n}": t for k in range(3) for n, t in net.layers[k + 2].state_dict().items()},
            "head.weight": state["head.weight"],
            "head.bias": state["head.bias"],
        }
    )
    net, body = net.double(), body.double()
    images = torch.rand(3, 1, 8, 8, dtype=EXACT)
    tap = last_blocks_tap(net.spec)
    logits, features = Tapped(net, [tap])(images)
    torch.testing.assert_close(body(features[tap]), logits, rtol=0, atol=1e-12)


def test_kl_against_torch_and_zero_targets():
    torch.manual_seed(0)
    target, logits = torch.rand(5, 4, dtype=EXACT).softmax(-1), torch.randn(5, 4, dtype=EXACT)
    reference = F.kl_div(logits.log_softmax(-1), target, reduction="none").sum(-1)
    torch.testing.assert_close(kl_divergence(target, logits), reference, rtol=0, atol=1e-12)
    hard = torch.eye(4, dtype=EXACT)[:2]
    expected = F.cross_entropy(logits[:2], hard, reduction="none")
    torch.testing.assert_close(kl_divergence(hard, logits[:2]), expected, rtol=0, atol=1e-12)
    assert float(kl_divergence(target, target.log()).abs().max()) < 1e-12


def test_mixup_is_per_sample_on_pixels():
    values = torch.arange(6.0).view(3, 2)
    mixed = mix(values, torch.tensor([1.0, 0.0, 0.25]), torch.tensor([2, 0, 1]))
    assert mixed.tolist() == [[0.0, 1.0], [0.0, 1.0], [2.5, 3.5]]


def test_draws_follow_the_beta_distribution_and_their_seed():
    objective = joint()[0]
    shares = torch.cat([objective.draw(500, torch.Generator().manual_seed(s))["share"] for s in range(8)])
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(shares.var()) == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.01)
    one, two = (objective.draw(9, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one["share"], two["share"])
    assert torch.equal(one["partner"], two["partner"])
    assert sorted(one["partner"].tolist()) == list(range(9))


def joint(norm="frn", mixup=0.4, dtype=torch.float32):
    """Three modes, their three curves, bridges of both kinds and all targets."""
    net, ends, plans = planned(norm, dtype)
    return BridgeObjective(net, plans, mixup), net, ends, plans


@cache  # nothing that is trained changes a plan, as these tests show
def planned(norm, dtype):
    net = tiny_net(0, norm, dtype)
    ends = modes(3, norm, dtype)
    images = blobs(4, dtype=dtype).images
    curves = {
        (i, j): start_curve(net, ends[i], ends[j]).with_statistics(net, 0.5, loader(dtype=dtype))
        for i, j in [(0, 1), (0, 2), (1, 2)]
    }
    plans = {}
    for (i, j), curve in curves.items():
        plans[f"I-{i}-{j}"] = plan_bridge(net, curve, images, kind="I", seed=i + j)
        plans[f"I-{j}-{i}"] = plan_bridge(net, curve, images, kind="I", source="end", seed=10 + i + j)
        plans[f"II-{i}-{j}"] = plan_bridge(net, curve, images, kind="II", seed=20 + i + j)
    curve = curves[0, 1]
    plans["labels"] = plan_bridge(net, curve, images, target="labels")
    plans["mode"] = plan_bridge(net, curve, images, target=mode_target(ends[2]))
    plans["mean"] = plan_bridge(net, curve, images, target=ensemble_target(ends))
    return net, ends, plans


@pytest.mark.parametrize("norm", [pytest.param("frn", marks=pytest.mark.slow), "bn"])
def test_joint_training_equals_training_alone_to_the_last_bit(norm):
    _, net, _, plans = joint(norm)
    together = fit_bridges(net, plans, loader(), config=quick(2))
    for name in ("I-0-1", "I-1-0", "II-0-2", "labels", "mode", "mean"):
        alone = fit_bridges(net, {name: plans[name]}, loader(), config=quick(2))[name]
        assert trees.fingerprint(alone.state_dict()) == trees.fingerprint(together[name].state_dict()), name


def test_every_frozen_network_runs_once_a_step():
    objective, *_ = joint()
    calls = []
    run = objective.bases.run
    objective.bases.run = lambda *given: calls.append(1) or run(*given)
    batch = next(iter(loader()))
    objective.prepare(batch, objective.draw(8, torch.Generator().manual_seed(0)))
    assert len(calls) == 6  # three modes and three midpoints


def test_unread_modes_are_not_run():
    _, net, _, plans = joint()
    ran = []
    objective = BridgeObjective(net, {"b": plans["I-0-1"]})
    objective.bases.fan_out = lambda jobs: ran.append(len(jobs)) or [job() for job in jobs]
    objective.prepare(next(iter(loader())), {})
    assert ran == [2]


@pytest.mark.parametrize("name", ["I-1-0", "II-0-1", "labels", "mode", "mean"])
def test_losses_by_hand(name):
    objective, net, ends, plans = joint(mixup=0.4, dtype=EXACT)
    images, labels = next(iter(loader(dtype=EXACT)))
    draw = objective.draw(len(images), torch.Generator().manual_seed(1))
    mixed = mix(images, draw["share"].double(), draw["partner"])
    tap = last_blocks_tap(net.spec)
    outputs = [Tapped(mode.load(net), [tap])(mixed) for mode in ends]
    plan = plans[name]
    sources = {"I-1-0": [1], "II-0-1": [0, 1]}.get(name, [0])
    out = plan(*[outputs[k][1][tap] for k in sources])
    hard = F.one_hot(labels, 3).double()
    target = {
        "labels": lambda: mix(hard, draw["share"].double(), draw["partner"]),
        "mode": lambda: outputs[2][0].softmax(-1),
        "mean": lambda: sum(o[0].softmax(-1) for o in outputs) / 3,
    }.get(name, lambda: plan.target.modes[0].load(net)(mixed).softmax(-1))()
    expected = F.kl_div(out.log_softmax(-1), target, reduction="batchmean")
    prepared = objective.prepare((images, labels), draw)[name]
    got = objective.program(name)(objective.start()[name], prepared)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_targets_and_losses_are_float32_at_least(dtype, wide):
    """In sixteen bits rows of mixed-up labels would sum to 0.998; float64 is not rounded on the way."""
    objective, *_ = joint()
    images, labels = next(iter(loader()))
    draw = objective.draw(len(images), torch.Generator().manual_seed(1))
    if dtype == torch.float64:
        objective, *_ = joint(dtype=dtype)
        prepared = objective.prepare((images.to(dtype), labels), draw)
    else:
        with torch.autocast("cpu", dtype=dtype):
            prepared = objective.prepare((images, labels), draw)
            # The logits are sixteen bits wide here, or nothing would be shown.
            assert all(logits.dtype == dtype for logits, _ in objective.bases(images).values())
    for name, given in prepared.items():
        assert given["target"].dtype == wide, name
        torch.testing.assert_close(given["target"].sum(-1), torch.ones(8, dtype=wide), rtol=0, atol=1e-6)
        loss = objective.program(name)(objective.start()[name], {key: t.to(wide) for key, t in given.items()})
        assert loss.dtype == wide, name


@pytest.mark.slow
def test_a_bridge_learns_its_target():
    """With the base's own last blocks as body and its own mode as target there is an exact answer: KL falls far."""
    _, net, ends, _ = joint()
    curve = start_curve(net, ends[0], ends[1])
    plan = plan_bridge(net, curve, blobs(4).images, slim=1, target=mode_target(ends[0]))
    before = BridgeObjective(net, {"b": plan}, {"b": plan.target}, ends)
    trained = fit_bridges(net, {"b": plan}, loader(48), mixup=0.0, config=quick(25))["b"]
    after = BridgeObjective(net, {"b": trained}, {"b": plan.target}, ends)
    valid = loader(48)
    assert after.validate(after.start(), valid)["b"] < 0.2 * before.validate(before.start(), valid)["b"]


@pytest.mark.parametrize("norm", ["frn", "bn"])
def test_validation_is_the_plain_kl_of_the_bridges_in_use(norm):
    """Un-mixed images, evaluation mode, weighted by images: by hand, with an uneven last batch."""
    objective, net, ends, plans = joint(norm, dtype=EXACT)
    data = blobs(20, seed=1, dtype=EXACT)
    scores = objective.validate(objective.start(), Loader(data, 8))
    tap = last_blocks_tap(net.spec)
    for name, source in (("I-0-1", 0), ("I-2-1", 2), ("mean", 0)):
        plan = plans[name]
        with torch.no_grad():
            feature = Tapped(ends[source].load(net), [tap])(data.images)[1][tap]
            target = sum(mode.load(net)(data.images).softmax(-1) for mode in plan.target.modes) / len(plan.target.modes)
            out = plan.eval()(feature)
        expected = F.kl_div(out.log_softmax(-1), target, reduction="batchmean")
        assert scores[name] == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.slow
def test_best_epoch_of_each_bridge():
    _, net, ends, every = joint()
    plans = {name: every[name] for name in list(every)[::6]}
    valid = loader(seed=1)
    last = fit_bridges(net, plans, loader(), config=replace(quick(8), lr=0.3))
    best = fit_bridges(net, plans, loader(), config=replace(quick(8), lr=0.3, keep="best"), valid=valid)

    def scores(bridges):
        targets = {name: plan.target for name, plan in plans.items()}
        measured = BridgeObjective(net, bridges, targets, ends)
        return measured.validate(measured.start(), valid)

    kept, final = scores(best), scores(last)
    assert all(kept[name] <= final[name] + 1e-6 for name in plans)
    assert any(kept[name] < final[name] - 1e-6 for name in plans)


def test_other_positions_and_the_batch_norm_curve():
    net, (a, b) = tiny_net(0, "bn"), modes(2, "bn")
    curve = start_curve(net, a, b)
    curve = curve.with_statistics(net, 0.3, loader())
    bridge = fit_bridge(net, curve, loader(), target=curve_target(curve, 0.3), config=quick(1))
    assert bridge.r == 0.3
    assert bridge.kind == "I"


def test_any_module_any_body():
    torch.manual_seed(0)
    net = Vectors()
    a, b = (Mode.from_module(Vectors()) for _ in range(2))
    data = [(torch.rand(6, 4), torch.arange(6) % 3) for _ in range(2)]
    curve = start_curve(net, a, b)
    assert fit_bridge(net, curve, data, tap="first", kind="II", config=quick(1)).kind == "II"
    own = nn.Linear(4, 3)
    assert isinstance(fit_bridge(net, curve, data, tap="first", body=own, config=quick(1)).body, nn.Linear)
    assert fit_bridge(net, curve, data, config=quick(1)).tap == "second"


def test_a_default_bridge_on_a_wide_map_is_small():
    """ResNet-50's last stage: bottlenecks keep the bridge far below the base."""
    from modebridge.scoring import combination_cost

    spec = SPECS["in1k"]
    with torch.device("meta"):
        base, body = resnet("in1k", "bn"), body_for((2048, 7, 7), 1000, "I", 2)
    cost = combination_cost(base, spec.image, 1, [(body, [(2048, 7, 7)])])
    assert cost.relative_flops < 1.1


def test_bodies_for_other_features():
    assert body_for((6, 4, 4), 3, "II", 2)(torch.rand(2, 6, 4, 4), torch.rand(2, 6, 4, 4)).shape == (2, 3)
    assert body_for((6,), 3, "I", 2)(torch.rand(2, 6)).shape == (2, 3)
    with pytest.raises(ModebridgeError, match=r"\(C, H, W\), \(C, L\), \(T, C\) or \(C,\)"):
        body_for((6, 4, 2, 2), 3, "I")
    with pytest.raises(ModebridgeError, match="to be 'tokens' or 'sequence', but got 'map'"):
        body_for((6, 4), 3, "I", layout="map")


def test_bad_bridges():
    _, net, ends, plans = joint()
    curve = start_curve(net, ends[0], ends[1])
    images = blobs(4).images
    for kwargs, message in [
        ({"kind": "III"}, "'I' or 'II'"),
        ({"r": 1.5}, r"r to be in \[0, 1\]"),
        ({"tap": "layers.99"}, "did you mean"),
        ({"slim": 100}, "at least one channel"),
        ({"slim": 0}, "at least one channel"),
        ({"slim": -1, "tap": "layers.2"}, "at least one channel"),
        ({"source": "begin"}, "'start' or 'end', but got 'begin'"),
        ({"body": nn.Linear(3, 3)}, "to take features of"),
        ({"body": nn.Sequential(nn.Flatten(), nn.Linear(512, 1))}, r"logits of \(batch, 3\), but got \(1, 1\)"),
        ({"target": "teacher"}, "'labels' or a Target, but got 'teacher'"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            plan_bridge(net, curve, images, **kwargs)
    with pytest.raises(ModebridgeError, match="have a target, or more modes than the 1 that it reads"):
        plan_bridge(net, ends[0], images)
    with pytest.raises(ModebridgeError, match="at least one bridge"):
        fit_bridges(net, {}, loader())
    with pytest.raises(ModebridgeError, match="'a' to have a target to learn, but it has none"):
        BridgeObjective(net, {"a": Bridge(nn.Identity(), ends[:1], "layers.1")})
    with pytest.raises(ModebridgeError, match="mixup to be at least 0"):
        BridgeObjective(net, {"a": plans["labels"]}, -1.0)
    with pytest.raises(ModebridgeError, match="the 3 blocks that bridges copy, but got 2"):
        last_blocks_tap(replace(net.spec, stages=(1, 1)))
    with pytest.raises(ModebridgeError, match=r"one mode \(type I\) or two"):
        Bridge(nn.Identity(), ends, "layers.1")
    with pytest.raises(ModebridgeError, match="to get 1 features, but got 2"):
        plans["I-0-1"](images, images)
    with pytest.raises(ModebridgeError, match="to have modes, but got none"):
        ensemble_target([])
    with pytest.raises(ModebridgeError, match=r"r to be in"):
        curve_target(curve, 2.0)
