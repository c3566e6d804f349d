"""Several heads on one trunk, several taps, and the targets beyond the paper's."""

import pytest
import torch
from torch import nn

from modebridge import trees
from modebridge.bridges import Bridge, Heads, ensemble_target, heads_target, mode_target, plan_bridge
from modebridge.bridges.bodies import Join
from modebridge.curves import start_curve
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import Tapped
from modebridge.scoring import cost
from modebridge.training import fit_bridge
from tests.scenarios import EXACT, Vectors, blobs, loader, modes, quick, tiny_net

IMAGE = (1, 8, 8)


def scene(norm="frn", dtype=torch.float32):
    return tiny_net(0, norm, dtype), modes(3, norm, dtype), blobs(6, dtype=dtype).images


def test_one_head_is_a_plain_bridge():
    net, ends, _ = scene()
    plain = fit_bridge(net, ends[0], loader(), target=mode_target(ends[1]), config=quick(1))
    listed = fit_bridge(net, ends[0], loader(), target=[mode_target(ends[1])], config=quick(1))
    assert plain.heads == listed.heads == 1
    assert trees.fingerprint(plain.state_dict()) == trees.fingerprint(listed.state_dict())


def test_heads_are_members_of_the_mean_and_cost_their_last_layer():
    net, ends, images = scene(dtype=EXACT)
    curve = start_curve(net, ends[0], ends[1])
    one = plan_bridge(net, curve, images)
    three = plan_bridge(net, curve, images, target=["curve", mode_target(ends[1]), mode_target(ends[2])])
    width = three.body.body.head.in_features
    costs = [cost(Ensemble(net, ends[:1], [bridge]), IMAGE) for bridge in (one, three)]
    assert costs[1].flops - costs[0].flops == 2 * 3 * width  # two more heads of three classes
    assert costs[1].params - costs[0].params == 2 * 3 * (width + 1)
    ensemble = Ensemble(net, ends[:2], [one, three])
    assert len(ensemble) == len(ensemble.members(images)) == 6
    tap = one.tap
    logits, features = Tapped(ends[0].load(net), [tap])(images)
    with torch.no_grad():
        heads = three.eval()(features[tap])
        assert heads.shape == (6, 3, 3)
        head_logits = [logits, ends[1].load(net)(images), one.eval()(features[tap]), *heads.unbind(1)]
        expected = sum(voice.softmax(-1) for voice in head_logits) / 6
        torch.testing.assert_close(ensemble(images), expected, rtol=0, atol=1e-12)
    assert "3 heads" in repr(three)


def test_several_taps_are_pooled_to_the_smallest_and_joined():
    net, ends, images = scene(dtype=EXACT)
    taps = ["layers.0", "layers.4"]
    bridge = plan_bridge(net, ends[0], images, target="labels", tap=taps, budget=0.2)
    assert bridge.share <= 0.2
    assert bridge.places == [(0, "layers.0"), (0, "layers.4")]
    _, features = Tapped(ends[0].load(net), taps)(images)
    small = features["layers.4"].shape[-1]
    factor = features["layers.0"].shape[-1] // small
    assert factor > 1
    large = features["layers.0"].unflatten(2, (small, factor)).unflatten(4, (small, factor)).mean(dim=(3, 5))
    joined = Join("map")(*(features[tap] for tap in taps))
    torch.testing.assert_close(joined, torch.cat([large, features["layers.4"]], 1), rtol=0, atol=1e-12)
    last = Join("map, channels last")(*(features[tap].permute(0, 2, 3, 1) for tap in taps))
    torch.testing.assert_close(last, joined, rtol=0, atol=1e-12)
    ensemble = Ensemble(net, ends[:1], [bridge])
    with torch.no_grad():
        expected = bridge.eval()(*(features[tap] for tap in taps)).softmax(-1)
        torch.testing.assert_close(ensemble.members(images)[1], expected, rtol=0, atol=1e-12)
    two = plan_bridge(net, start_curve(net, ends[0], ends[1]), images, kind="II", tap=taps)
    assert [source for source, _ in two.places] == [0, 0, 1, 1]
    assert Ensemble(net, ends[:2], [two])(images).shape == (6, 3)


def test_modes_instead_of_a_curve_give_a_head_for_each_other_one():
    net, ends, images = scene()
    given = plan_bridge(net, ends, images)
    assert given.target == heads_target([mode_target(ends[1]), mode_target(ends[2])])
    assert given.modes == (ends[0],)
    two = plan_bridge(net, ends, images, kind="II")
    assert (two.modes, two.heads) == (tuple(ends[:2]), 1)
    assert fit_bridge(net, ends, loader(), config=quick(1)).heads == 2


def test_own_bodies_and_vectors():
    torch.manual_seed(0)
    net = Vectors()
    mode, other = (Mode.from_module(Vectors()) for _ in range(2))
    data = [(torch.rand(6, 4), torch.arange(6) % 3) for _ in range(2)]
    targets = [mode_target(other), "labels"]
    own = fit_bridge(net, mode, data, tap="first", body=Heads(nn.Linear(4, 6), 2), target=targets, config=quick(1))
    assert own.heads == 2
    assert isinstance(own.body.body, nn.Linear)
    curve = start_curve(net, mode, other)
    assert fit_bridge(net, curve, data, tap="first", kind="II", config=quick(1)).kind == "II"
    assert fit_bridge(net, curve, data, config=quick(1)).tap == "second"
    assert fit_bridge(net, mode, data, tap=["first", "second"], target="labels", config=quick(1)).heads == 1
    with pytest.raises(ModebridgeError, match=r"logits of \(batch, 2, 3\), but got \(1, 3\)"):
        fit_bridge(net, mode, data, tap="first", body=nn.Linear(4, 3), target=targets, config=quick(1))


def test_what_makes_no_bridge():
    net, ends, images = scene()
    a, b, _ = ends
    curve = start_curve(net, a, b)
    wrong = [
        (curve, {"kind": "III"}, "'I' or 'II'"),
        (curve, {"tap": "layers.99"}, "did you mean"),
        (curve, {"tap": ["layers.0", "layers.9"]}, r"'layers\.9'"),
        (curve, {"slim": 100}, "at least one channel"),
        (curve, {"slim": 0}, "at least one channel"),
        (curve, {"slim": -1, "tap": "layers.2"}, "at least one channel"),
        (curve, {"body": nn.Linear(3, 3)}, "to take features of"),
        (curve, {"body": nn.Sequential(nn.Flatten(), nn.Linear(512, 1))}, r"logits of \(batch, 3\), but got \(1, 1\)"),
        (curve, {"target": "teacher"}, "'labels' or a Target, but got 'teacher'"),
        (curve, {"target": []}, "at least one head"),
        ([a, b, b], {}, "to differ, but got one of them twice"),
        ([a, a], {}, "to differ"),
        ([a, b], {"kind": "II"}, "another network to imitate beside the 2 that a type II bridge reads"),
        (a, {}, "another network to imitate beside the 1 that a type I bridge reads"),
        (a, {"kind": "II", "target": "labels"}, "at least 2 modes, but got 1"),
        ([], {}, "at least 1 mode"),
        (ends, {"target": ["curve", "labels"]}, r"'curve' \(for a bridge with a curve\)"),
        ((mode for mode in (a, b)), {}, "or pass a list of modes"),
        ([a, b], {"tap": ["layers.0", "layers.0"]}, "a list of different names"),
        ([a, b], {"tap": (name for name in ["layers.0"])}, "a list of different names"),
        ([a, b], {"tap": 2}, "a list of different names"),
        (a, {"target": mode_target(Mode.from_module(nn.Linear(2, 2)))}, "the same tensors"),
    ]
    for given, choices, sentence in wrong:
        with pytest.raises(ModebridgeError, match=sentence):
            plan_bridge(net, given, images, **choices)
    with pytest.raises(ModebridgeError, match="heads to consist of plain targets"):
        heads_target([heads_target([mode_target(mode) for mode in ends[:2]])])
    with pytest.raises(ModebridgeError, match="to have modes, but got none"):
        ensemble_target([])
    with pytest.raises(ModebridgeError, match=r"one mode \(type I\) or two"):
        Bridge(nn.Identity(), ends, "layers.1")
    with pytest.raises(ModebridgeError, match="to get 1 features, but got 2"):
        plan_bridge(net, curve, images)(images, images)


class _TwoPrecisions(nn.Module):
    def __init__(self):
        super().__init__()
        self.early, self.late = nn.Conv2d(1, 4, 3).bfloat16(), nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, images):
        return self.head(self.late(self.early(images.bfloat16()).float()).mean(dim=(2, 3)))


def test_taps_of_two_precisions_in_any_order():
    """Joined they have the wider one, and so has the body."""
    net = _TwoPrecisions().eval()
    mode = Mode.from_module(net)
    for taps in (["early", "late"], ["late", "early"]):
        plan = plan_bridge(net, mode, torch.rand(2, *IMAGE), tap=taps, target="labels")
        assert {weight.dtype for weight in plan.parameters()} == {torch.float32}
