"""What `fit_bridge` chooses by itself: the paper's way on a curve, the best one measured on modes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from modebridge import trees
from modebridge.bridges import Bridge, body_within, label_target, mode_target, plan_bridge
from modebridge.curves import start_curve
from modebridge.data import ImageSet, Loader
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import run
from modebridge.training import Engine, bridging, distill, fit_bridge
from modebridge.training.bridging import training_accuracy
from tests.scenarios import Vectors, blobs, fit_bridges, fit_mode, loader, modes, quick, tiny_net

ONE_EPOCH = quick(1)


def blocks_of(bridge: Bridge):
    return [module for module in bridge.modules() if hasattr(module, "conv1")]


def same(ours: Bridge, theirs: Bridge) -> bool:
    return trees.fingerprint(ours.state_dict()) == trees.fingerprint(theirs.state_dict())


def learnt(net, mode: Mode, wrong: int = 0) -> Loader:
    """Training data on which a mode is right except for some of the 24 images."""
    images = blobs(24).images
    with torch.no_grad():
        labels = run(net.eval(), mode.params, mode.buffers, images).argmax(dim=1)
    labels[:wrong] = (labels[:wrong] + 1) % 3
    return Loader(ImageSet(images, labels, 3), 8, shuffle=True, seed=0)


def by_hand(net, curve, data=None, target="curve", **choices) -> Bridge:
    """In two steps, with the mixing given or chosen by the second one."""
    plan = plan_bridge(net, curve, blobs(6).images, budget=0.3, target=target, seed=ONE_EPOCH.seed)
    return fit_bridges(net, {"bridge": plan}, data or loader(), config=ONE_EPOCH, **choices)["bridge"]


@pytest.mark.parametrize("wrong", [0, 1])
def test_heads_on_modes_are_one_wide_block_trained_with_cutmix(wrong):
    net, ends = tiny_net(0), modes(3)
    data = learnt(net, ends[0], wrong)
    bridge = fit_bridge(net, ends, data, budget=0.3, config=ONE_EPOCH)
    assert (bridge.heads, len(blocks_of(bridge))) == (2, 1)
    assert same(bridge, by_hand(net, ends, data, cutmix=1.0))
    assert not same(bridge, by_hand(net, ends, data, mixup=0.4))


@pytest.mark.parametrize(
    ("wrong", "mixing"), [(2, {"cutmix": 1.0}), (4, {"cutmix": 1.0}), (5, {"mixup": 0.4}), (8, {"mixup": 0.4})]
)
def test_modes_that_do_not_fit_get_a_head_on_labels_and_mixup(wrong, mixing):
    """The first mode is right on less than 95 % of the 24 training images; on 4 fewer, still on 80 %."""
    net, ends = tiny_net(0), modes(3)
    with torch.no_grad():  # new networks say one label for all images, which is no better than chance
        ends[0].params["head.bias"] -= run(net.eval(), ends[0].params, ends[0].buffers, blobs(24).images).mean(0)
    data, targets = learnt(net, ends[0], wrong), [mode_target(ends[1]), mode_target(ends[2]), label_target()]
    with pytest.warns(UserWarning, match=f"is right on only {(24 - wrong) / 24:.0%} of its training data"):
        bridge = fit_bridge(net, ends, data, budget=0.3, config=ONE_EPOCH)
    assert (bridge.heads, len(blocks_of(bridge))) == (3, 1)
    assert same(bridge, by_hand(net, ends, data, targets, **mixing))
    own = fit_bridge(net, ends, data, target=mode_target(ends[1]), budget=0.3, config=ONE_EPOCH)
    assert own.heads == 1


def test_only_the_first_images_are_looked_at():
    net, (mode,) = tiny_net(0), modes(1)
    right = [batch for _ in range(42) for batch in learnt(net, mode)]  # 1,008 images
    wrong = [batch for _ in range(5) for batch in learnt(net, mode, 24)]  # 120
    for data, wanted in (([*right, *wrong], 1.0), ([*wrong, *right], 880 / 1000)):
        assert training_accuracy(net, [mode], data, Engine())[0] == [wanted]


def test_labels_at_the_level_of_chance_are_not_used():
    """Imitation needs no labels, and batches may carry dummies."""
    net, ends = tiny_net(0), modes(3)
    for data in (learnt(net, ends[0], 24), learnt(net, ends[0], 16), [(blobs(24).images, torch.zeros(24).long())]):
        bridge = fit_bridge(net, ends, data, budget=0.3, config=ONE_EPOCH)
        assert bridge.heads == 2
        assert same(bridge, by_hand(net, ends, data, mixup=0.4))


def test_the_epoch_of_the_loader_does_not_matter_and_each_accuracy_is_its_own():
    net, ends = tiny_net(0), modes(2)
    data = learnt(net, ends[0], 2)
    first = training_accuracy(net, ends[:1], data, Engine())
    for _ in data:
        pass
    assert training_accuracy(net, ends[:1], data, Engine()) == first
    both, other = (training_accuracy(net, some, data, Engine()) for some in (ends, ends[1:]))
    assert both == (first[0] + other[0], first[1])
    assert other[0][0] < 0.8


def test_probabilities_are_no_logits():
    """A softmax at the end is a usual mistake, and calibration would hide most of it."""
    nets = [torch.nn.Sequential(tiny_net(k), torch.nn.Softmax(-1)) for k in range(2)]
    fast = Ensemble(nets[0], nets)
    for use in (lambda: fit_bridge(nets[0], nets, loader()), lambda: fast.calibrate(loader())):
        with pytest.raises(ModebridgeError, match="Expected Sequential to return logits, but its outputs are probab"):
            use()


@pytest.mark.parametrize("given", [{"mixup": 0.2}, {"cutmix": 0.5}, {"mixup": 0.0}, {"mixup": 0.2, "cutmix": 0.5}])
def test_one_kind_of_mixing_turns_the_other_off(given):
    net, ends = tiny_net(0), modes(3)
    data = learnt(net, ends[0])
    bridge = fit_bridge(net, ends, data, budget=0.3, config=replace(ONE_EPOCH, **given))
    assert same(bridge, by_hand(net, ends, data, **{"mixup": 0.0, "cutmix": 0.0} | given))


def test_a_curve_keeps_the_papers_blocks_and_mixup():
    net, ends = tiny_net(0, "frn"), modes(2, "frn")
    curve = start_curve(net, *ends)
    bridge = fit_bridge(net, curve, loader(), budget=0.3, config=ONE_EPOCH)
    assert len(blocks_of(bridge)) == 3
    assert same(bridge, by_hand(net, curve, mixup=0.4, cutmix=0.0))
    for target, blocks in ((mode_target(ends[1]), 1), ("labels", 3)):
        assert len(blocks_of(plan_bridge(net, ends[0], blobs(6).images, target=target, budget=0.3))) == blocks


def test_many_bridges_and_vectors_are_mixed_up():
    net, ends, images = tiny_net(0), modes(3), blobs(6).images
    plans = {"heads": plan_bridge(net, ends, images), "other": plan_bridge(net, ends[0], images, target="labels")}
    mixed = fit_bridges(net, plans, loader(), mixup=0.4, config=ONE_EPOCH)
    chosen = fit_bridges(net, plans, loader(), config=ONE_EPOCH)
    assert all(same(chosen[name], mixed[name]) for name in plans)
    net = Vectors()
    torch.manual_seed(1)
    ends = [Mode.from_module(net), Mode.from_module(Vectors())]
    data = [(vectors, net(vectors).argmax(dim=1)) for vectors in (torch.rand(4, 4), torch.rand(4, 4))]
    bridge = fit_bridge(net, ends, data, config=ONE_EPOCH)
    plan = plan_bridge(net, ends, data[0][0], seed=ONE_EPOCH.seed)
    assert same(bridge, fit_bridges(net, {"bridge": plan}, data, mixup=0.4, config=ONE_EPOCH)["bridge"])


def test_one_block_halves_the_map_rather_than_be_narrow():
    """At full size 16 channels, half of the feature's, take 32*16*9*64 + 16*16*9*64 + 32*16*64 + 160 multiply-adds."""
    half = 32 * 16 * 9 * 64 + 16 * 16 * 9 * 64 + 32 * 16 * 64 + 160
    for flops, stride in ((half, 1), (half - 1, 2)):
        body, counted = body_within((32, 8, 8), "map", 10, "I", flops, wide=True)
        (block,) = body.layers
        assert counted <= flops
        assert block.conv1.stride == (stride, stride)
        assert block.conv1.out_channels >= 16
    tiny, _ = body_within((32, 2, 2), "map", 10, "I", 20_000, wide=True)
    assert tiny.layers[0].conv1.stride == (1, 1)


def test_networks_at_chance_and_results_that_do_not_help_are_said():
    data, guess = loader(40, 8), [Mode.from_module(tiny_net(seed)) for seed in range(2)]
    with pytest.warns(UserWarning, match=r"Network 1 of 2 is right on only \d+% of the training data, no better"):
        fit_bridge(tiny_net(), guess, [(x, torch.randint(3, y.shape)) for x, y in data], config=quick(0))
    # Always the most frequent label is no skill either.
    one, net = Mode.from_module(tiny_net()), tiny_net()
    one.params["head.bias"][0] = 99.0
    often = [(x, torch.arange(len(x)).remainder(4) // 3) for x, _ in data]
    for teacher in (one, Ensemble(net, [one, guess[1]])):
        with pytest.warns(UserWarning, match="Teacher 1 of 1 is right on only 75% .* most frequent label is 75% of it"):
            distill(net, teacher, often, config=quick(0))
    trained = [fit_mode(tiny_net(seed), data, config=quick(20)) for seed in range(2)]
    for use in (fit_bridge, distill):  # also a later one, such as a file with another order of classes
        with pytest.warns(UserWarning, match="(Network|Teacher) 2 of 2 is right on only"):
            use(tiny_net(), [trained[0], guess[0]], data, quick(0))
    bad = replace(quick(1), lr=1e-9)
    with pytest.warns(UserWarning, match="With the bridge, the NLL on valid is"):
        fit_bridge(tiny_net(), trained, data, valid=loader(40, 8, seed=3), config=bad)
    with pytest.warns(UserWarning, match="With the student, the NLL on valid is"):
        distill(tiny_net(), Ensemble(tiny_net(), trained), data, valid=loader(40, 8, seed=3), config=bad)


@pytest.mark.parametrize("use", [fit_bridge, distill])
def test_held_out_data_is_checked_first_and_costs_no_result(use):
    data, nets = loader(40, 8), [Mode.from_module(tiny_net(seed)) for seed in range(2)]
    epochs: list[object] = []
    config = replace(quick(1), callbacks=(epochs.append,))
    (x, y), *_ = data
    for wrong in ([], "valid", [(x, y.float())], [(x, y + 3)], [(x[:, :0], y)]):
        with pytest.raises(ModebridgeError, match="valid"):
            use(tiny_net(), nets, data, config, valid=wrong)
    assert epochs == []

    class Late:
        def __iter__(self):
            yield from [(x, y), (x, y + 3)]

    with pytest.warns(UserWarning, match="the NLL on valid is not known: Expected .* valid"):
        assert use(tiny_net(), nets, data, config, valid=Late()) is not None


def test_the_best_network_should_be_the_first():
    data = loader(40, 8)
    good, bad = (fit_mode(tiny_net(seed), data, config=quick(epochs)) for seed, epochs in ((0, 20), (1, 3)))
    with pytest.warns(UserWarning, match="Network 2 of 2 alone has a lower NLL on valid"):
        fit_bridge(tiny_net(), [bad, good], data, quick(1), valid=data)


@torch.no_grad()
def test_training_needs_no_gradients_of_the_caller():
    assert fit_bridge(tiny_net(), modes(2), loader(8, 8), quick(1), target="labels").heads == 1


def test_a_network_far_behind_others_is_said(monkeypatch):
    """Such as one whose file has the classes in another order."""
    monkeypatch.setattr(bridging, "training_accuracy", lambda *_: ([0.9, 0.3, 0.46], [100] * 10))
    with pytest.warns(
        UserWarning, match="Network 2 of 3 is right on only 30% of the training data, another one on 90%"
    ):
        bridging.check_chance(tiny_net(), modes(3), [], Engine())


def test_a_bridge_that_costs_more_than_its_network_is_said():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    train = [(torch.rand(6, 1, 8, 8), torch.arange(6) % 3)]
    with pytest.warns(UserWarning, match=r"The bridge costs \d+% of the network, .*; pass budget=0\.05"):
        fit_bridge(net, [Mode.from_module(net)], train, ONE_EPOCH, target="labels")
