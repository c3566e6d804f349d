"""Objectives of bridges: their losses, and that training together equals training alone."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modebridge import trees
from modebridge.bridges import Bridge, build_bridge, last_blocks_tap, plan_bridge
from modebridge.bridges.bridge import curve_target, ensemble_target, heads_target, label_target, mode_target
from modebridge.curves import start_curve
from modebridge.data import Loader
from modebridge.errors import ModebridgeError
from modebridge.matching import kl_divergence, mixed, mixed_labels
from modebridge.nets import Tapped
from modebridge.objectives import BridgeObjective
from modebridge.training import fit_bridge
from tests.scenarios import EXACT, blobs, fit_bridges, loader, modes, quick, tiny_net


def test_kl_against_torch_and_zero_targets():
    torch.manual_seed(0)
    target, logits = torch.rand(5, 4, dtype=EXACT).softmax(-1), torch.randn(5, 4, dtype=EXACT)
    reference = F.kl_div(logits.log_softmax(-1), target, reduction="none").sum(-1)
    torch.testing.assert_close(kl_divergence(target, logits), reference, rtol=0, atol=1e-12)
    hard = torch.eye(4, dtype=EXACT)[:2]
    expected = F.cross_entropy(logits[:2], hard, reduction="none")
    torch.testing.assert_close(kl_divergence(hard, logits[:2]), expected, rtol=0, atol=1e-12)
    assert float(kl_divergence(target, target.log()).abs().max()) < 1e-12


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
        plans[f"I-{j}-{i}"] = build_bridge(net, images, [curve.end], curve_target(curve), seed=10 + i + j)
        plans[f"II-{i}-{j}"] = plan_bridge(net, curve, images, kind="II", seed=20 + i + j)
    curve = curves[0, 1]
    plans["labels"] = plan_bridge(net, curve, images, target="labels")
    plans["mode"] = plan_bridge(net, curve, images, target=mode_target(ends[2]))
    plans["mean"] = plan_bridge(net, curve, images, target=ensemble_target(ends))
    plans["heads"] = plan_bridge(net, curve, images, target=["curve", mode_target(ends[2]), "labels"])
    plans["taps"] = plan_bridge(net, ends[0], images, target=mode_target(ends[1]), tap=["layers.0", "layers.2"])
    return net, ends, plans


@pytest.mark.parametrize("norm", [pytest.param("frn", marks=pytest.mark.slow), "bn"])
def test_joint_training_equals_training_alone_to_the_last_bit(norm):
    _, net, _, plans = joint(norm)
    together = fit_bridges(net, plans, loader(), config=quick(2))
    for name in ("I-0-1", "I-1-0", "II-0-2", "labels", "mean", "heads", "taps"):
        alone = fit_bridges(net, {name: plans[name]}, loader(), config=quick(2))[name]
        assert trees.fingerprint(alone.state_dict()) == trees.fingerprint(together[name].state_dict()), name


def test_every_frozen_network_runs_once_a_step():
    objective, net, _, plans = joint()
    calls = []
    run = objective.bases.run
    objective.bases.run = lambda *given: calls.append(1) or run(*given)
    batch = next(iter(loader()))
    objective.prepare(batch, objective.draw(8, torch.Generator().manual_seed(0)))
    assert len(calls) == 6  # three modes and three midpoints
    alone = BridgeObjective(net, {"b": plans["I-0-1"]})
    assert len(alone.bases(batch[0])) == 2  # none that it does not need


@pytest.mark.parametrize("mixing", [(0.4, 0.0), (0.0, 1.0)], ids=["mixup", "cutmix"])
@pytest.mark.parametrize("name", ["I-1-0", "II-0-1", "labels", "mode", "mean", "heads"])
def test_losses_and_gradients_by_hand(name, mixing):
    net, ends, plans = planned("frn", EXACT)
    plan, objective = plans[name], BridgeObjective(net, {name: plans[name]}, *mixing)
    images, labels = next(iter(loader(dtype=EXACT)))
    draw = objective.draw(len(images), torch.Generator().manual_seed(1))
    shown = mixed(images, draw)
    assert not torch.equal(shown, images)
    tap = last_blocks_tap(net.spec)
    with torch.no_grad():
        outputs = [Tapped(mode.load(net), [tap])(shown) for mode in ends]
        said = [logits.softmax(-1) for logits, _ in outputs]
        hard = mixed_labels(labels, 3, EXACT, draw, images)
        middle = plans["I-0-1"].target.modes[0].load(net)(shown).softmax(-1)
    target = {"labels": hard, "mode": said[2], "mean": sum(said) / 3, "heads": torch.stack([middle, said[2], hard], 1)}
    sources = {"I-1-0": [1], "II-0-1": [0, 1]}.get(name, [0])
    logits = plan.train()(*[outputs[k][1][tap] for k in sources])
    expected = F.kl_div(logits.log_softmax(-1), target.get(name, middle), reduction="none").sum() / len(images)
    state = objective.start()[name]
    params = {key: tensor.clone().requires_grad_() for key, tensor in state.params.items()}
    got = objective.program(name)(type(state)(params, state.buffers), objective.prepare((images, labels), draw)[name])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    wanted = torch.autograd.grad(expected, list(plan.parameters()))
    for ours, theirs in zip(torch.autograd.grad(got, list(params.values())), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


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
        assert float((given["target"].sum(-1) - 1).abs().max()) < 1e-6
        loss = objective.program(name)(objective.start()[name], {key: t.to(wide) for key, t in given.items()})
        assert loss.dtype == wide, name


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


def test_other_positions_and_the_batch_norm_curve():
    net, (a, b) = tiny_net(0, "bn"), modes(2, "bn")
    curve = start_curve(net, a, b)
    curve = curve.with_statistics(net, 0.3, loader())
    bridge = fit_bridge(net, curve, loader(), target=curve_target(curve, 0.3), config=quick(1))
    assert bridge.r == 0.3
    assert bridge.kind == "I"


def test_bad_objectives():
    net, ends, _ = planned("frn", torch.float32)
    assert Bridge(nn.Identity(), ends[:1], "layers.1", target=heads_target([label_target()] * 2)).heads == 2
    with pytest.raises(ModebridgeError, match="'a' to have a target to learn, but it has none"):
        BridgeObjective(net, {"a": Bridge(nn.Identity(), ends[:1], "layers.1")})
    with pytest.raises(ModebridgeError, match="bridges by name to train, but got none"):
        fit_bridges(net, {}, loader())
