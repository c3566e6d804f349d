"""Inspection: every tap that it lists can be read, its shares are exact, and every refusal has its reason."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import modebridge
from modebridge.bridges import build_bridge, inspect
from modebridge.errors import ModebridgeError
from modebridge.nets import SPECS, ResNet, Tapped, find_taps, last_blocks_tap, resnet
from tests.networks import BY_NAME, HuggingFaceStyle, Hybrid, Sound, made, sounds
from tests.scenarios import TINY, Vectors, tiny_net


class Hand(nn.Module):
    """Small enough to count by hand: 6912, 4608 and 40 multiply-adds."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(self.relu(self.norm(self.conv1(x))), 2)
        return self.head(self.pool(self.conv2(x).relu()).flatten(1))


def test_shares_by_hand():
    seen = find_taps(Hand(), torch.rand(2, 3, 8, 8))
    first, second, head = 64 * 4 * 27, 16 * 8 * 36, 8 * 5
    assert seen.flops == first + second + head
    assert seen.classes == 5
    assert {tap.name: tap.before for tap in seen.taps} == {
        "conv1": first / seen.flops,
        "relu": first / seen.flops,
        "conv2": (first + second) / seen.flops,
        "pool": (first + second) / seen.flops,
    }
    assert all(tap.before + tap.after == 1 for tap in seen.taps)
    assert [tap.shape for tap in seen.taps] == [(4, 8, 8), (4, 8, 8), (8, 4, 4), (8, 1, 1)]
    assert {tap.layout for tap in seen.taps} == {"map"}
    assert seen.refused == {
        "norm": "is changed in place by a later layer",
        "unused": "never runs",
        "head": "returns the logits themselves",
    }
    # The pooled map has the same share, but no room left to look at.
    assert seen.chosen.name == "conv2"


def by_hand(net, images):
    """Multiply-adds of convolutions and linear layers from their shapes, up to the end of every submodule."""
    total, until = 0, {}

    def add(name):
        def hook(module, args, output):
            nonlocal total
            if isinstance(module, nn.Conv2d):
                total += output[0].numel() * module.weight[0].numel()
            elif isinstance(module, nn.Linear):
                total += output[0].numel() * module.in_features
            until[name] = total

        return hook

    handles = [module.register_forward_hook(add(name)) for name, module in net.named_modules()]
    with torch.no_grad():
        net.eval()(images)
    for handle in handles:
        handle.remove()
    return until


CHOICES = {
    "torchvision resnet18": ("layer3.1", (256, 2, 2), "map"),
    "torchvision mobilenet": ("features.13", (24, 2, 2), "map"),
    "torchvision swin": ("features.3.0", (8, 8, 48), "map, channels last"),
    "timm resnet18": ("layer3.1", (256, 2, 2), "map"),
    "timm convnext_atto": ("stages.2.blocks.1", (160, 2, 4), "map"),
    "timm vit_tiny": ("blocks.1", (17, 192), "tokens"),
    "timm efficientnet": ("blocks.5.2", (192, 1, 1), "map"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_taps_of_others_networks_can_be_read_and_have_the_shares_of_their_layers(name):
    net, images = made(name), torch.rand(3, 3, 32, 64 if "convnext" in name else 32)
    seen, until = find_taps(net, images), by_hand(net, images)
    with torch.no_grad():
        logits, features = Tapped(net, [tap.name for tap in seen.taps])(images)
    assert {tap.name: (3, *tap.shape) for tap in seen.taps} == {tap: tuple(f.shape) for tap, f in features.items()}
    assert seen.classes == logits.shape[1] == 3
    shares = [tap.before for tap in seen.taps]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1
    assert len(seen.taps) + len(seen.refused) == len(list(net.modules())) - 1
    chosen = seen.chosen
    assert (chosen.name, chosen.shape, chosen.layout) == CHOICES[name]
    assert chosen.block
    assert abs(chosen.before - 0.8) < 0.13
    if "vit" not in name and "swin" not in name:
        # Attention multiplies activations with each other, which the count by layers does not know.
        assert seen.flops == until[""]
        assert shares == [until[tap.name] / until[""] for tap in seen.taps]


@pytest.mark.parametrize("name", SPECS)
def test_the_paper_s_networks_keep_the_paper_s_tap(name):
    with torch.device("meta"):
        net = resnet(name)
    seen = find_taps(net, torch.empty(1, *SPECS[name].image, device="meta"))
    assert seen.chosen.name == last_blocks_tap(SPECS[name])
    # The rule for any network finds the same place in the four networks that it was made from.
    same = replace(seen, preferred=None).chosen.name == last_blocks_tap(SPECS[name])
    assert same == (name != "digits")


def test_a_network_with_fewer_blocks_than_the_paper_s_bridge():
    net = ResNet(replace(TINY, stages=(1, 1)))
    assert net.paper_tap is None
    assert find_taps(net, torch.rand(1, 1, 8, 8)).chosen.block


def test_a_perceptron_and_a_wrapped_network():
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 3))
    seen = find_taps(mlp, torch.rand(2, 3, 2, 2))
    # 360, 240 and 24 multiply-adds: 58 %, 96 %, 100 %; of equals the last, which is the activation.
    assert (seen.chosen.name, seen.chosen.layout) == ("4", "vector")
    wrapped = nn.Sequential(nn.BatchNorm2d(3), made("torchvision resnet18"))
    assert find_taps(wrapped, torch.rand(1, 3, 64, 64)).chosen.name == "1.layer3.1"
    assert find_taps(Vectors(), torch.rand(1, 4)).chosen.name == "second"


def test_a_sequence_in_a_sequence_is_no_block():
    """As `Sequential(Normalize(), net)`: the layers of a flat network inside can be read."""
    flat = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    bare, wrapped = (find_taps(net, torch.rand(1, 1, 8, 8)) for net in (flat, nn.Sequential(nn.Identity(), flat)))
    assert wrapped.chosen.name == f"1.{bare.chosen.name}"


def test_a_perceptron_reads_the_last_map():
    """Of a network without blocks, if nothing else fits: the mean of an early map says little."""
    layers = [
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, 2, 1),
    ]
    net, image = (
        nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3)),
        torch.rand(1, 1, 8, 8),
    )
    assert find_taps(net, image).chosen.name == "3"
    for budget, name in ((0.05, "5"), (0.5, "3")):
        assert inspect(net, image, budget=budget).chosen.name == name
        assert build_bridge(net, image, "I", budget=budget, wide=True).taps == (name,)


def test_inputs_by_name_and_layers_that_return_tuples():
    seen = find_taps(HuggingFaceStyle(), BY_NAME)
    # Of 16 patches: the embedding; in three layers four projections, a perceptron, two products of attention; a head.
    assert seen.flops == 16 * 16 * 192 + 3 * (16 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 16 * 16 * 16) + 48
    assert (seen.chosen.name, seen.chosen.shape, seen.chosen.layout) == ("layers.1", (16, 16), "tokens")
    assert (seen.refused["layers"], seen.refused["layers.0.norm"]) == ("never runs", "runs 2 times")


class Odd(nn.Module):
    """Outputs that no bridge can read."""

    def __init__(self):
        super().__init__()
        self.time_first, self.scalar, self.whole, self.video, self.none, self.two = (nn.Identity() for _ in range(6))
        self.fine, self.doubled = nn.Linear(4, 4), nn.Identity()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        self.time_first(x.view(-1, 2, 2).transpose(0, 1))
        self.scalar(x.sum())
        self.whole(x.long())
        self.video(x[:, None, None, None, None])
        self.none(None)
        self.two({"none": None, "x": x})
        self.doubled(torch.cat([x, x]))
        return self.head(self.fine(x)).view(-1, 2)


def test_refusals_say_why():
    seen = find_taps(Odd(), torch.rand(1, 4))
    assert [tap.name for tap in seen.taps] == ["fine"]
    keeps = "does not keep the batch on its first axis"
    assert seen.refused == {
        "time_first": keeps,
        "scalar": keeps,
        "doubled": keeps,
        "whole": "gives torch.int64, not floats",
        "video": "returns a feature of shape (1, 1, 1, 1, 4), for which there is no bridge",
        "none": "returns NoneType, not a tensor",
        "two": "returns dict, not a tensor",
        "head": "returns the logits themselves",
    }
    with pytest.raises(ModebridgeError, match=r"a bridge can read, but it gives torch\.int64, not floats; use fine"):
        seen.tap("whole")
    with pytest.raises(ModebridgeError, match="submodule of Odd, but got 'fin'; did you mean fine"):
        seen.tap("fin")
    assert seen.tap("fine").shape == (4,)


def test_networks_without_a_tap_or_without_products():
    seen = find_taps(nn.Linear(3, 2), torch.rand(1, 3))
    assert seen.taps == ()
    assert str(seen) == "Linear: 6 multiply-adds, 2 classes\n  tap  feature  layout  before  after"
    with pytest.raises(ModebridgeError, match="Expected Linear to have a submodule to tap, but got none"):
        _ = seen.chosen
    plain = find_taps(nn.Sequential(nn.ReLU(), nn.Softmax(dim=1)), torch.rand(1, 3))
    assert plain.flops == 0
    assert math.isnan(plain.chosen.before)


def test_bad_examples():
    for example, message in [
        ((3, 8, 8), "a batch or a dict of tensors, but got tuple"),
        (torch.rand(0, 1, 8, 8), "to hold at least one image"),
        ({}, "to hold at least one image"),
        (torch.rand(1, 3, 8, 8), r"ResNet to run on an example of shape \(1, 3, 8, 8\), but got"),
        ({"pictures": torch.rand(1, 1, 8, 8)}, "unexpected keyword argument 'pictures'"),
        ({"texts": ["a"]}, "the example to hold at least one image"),
        ({"labels": torch.tensor([0])}, "the example to hold at least one image"),
        ((torch.rand(2, 3), torch.rand(2, 3)), "labels of the example to be integers"),
        (["a", "b"], "a batch or a dict of tensors, but got list"),
    ]:
        with pytest.raises(ModebridgeError, match=message):
            find_taps(tiny_net(), example)
    with pytest.raises(ModebridgeError, match=r"logits of \(batch, classes\), but got \(2,\)"):
        find_taps(nn.Sequential(nn.Flatten(0)), torch.rand(1, 2))


def test_the_network_and_the_example_stay_as_they_were():
    class Greedy(nn.Module):
        """Changes its input in place, and looks at its values."""

        def __init__(self):
            super().__init__()
            self.net = tiny_net(norm="bn")
            self.net.train()

        def forward(self, x):
            x.mul_(2)
            return self.net(x) if float(x.sum()) > 0 else -self.net(x)

    net, images = Greedy(), torch.rand(2, 1, 8, 8)
    before, seed = images.clone(), torch.random.get_rng_state()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with torch.inference_mode():  # in which torch keeps no versions
        seen = find_taps(net, images)
    assert seen.flops == find_taps(net.net, images).flops
    assert torch.equal(images, before)
    assert torch.equal(seed, torch.random.get_rng_state())
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())
    assert all(module.training for module in net.net.modules())
    assert not any(module._forward_hooks for module in net.modules())


def test_the_table_marks_the_choice_and_hides_the_inside_of_blocks():
    seen = modebridge.inspect(tiny_net(), torch.rand(1, 1, 8, 8))
    lines = str(seen).splitlines()
    assert lines[0] == f"ResNet: {seen.flops:,.0f} multiply-adds, 3 classes"
    assert [line.split()[1] for line in lines if line.startswith("->")] == ["layers.1"]
    assert "8 x 8 x 8" in next(line for line in lines if "layers.1" in line)
    assert not any("conv1" in line for line in lines)
    hidden = sum(tap.inner for tap in seen.taps)
    assert lines[-1] == f"{hidden} more inside blocks: table(every=True); 1 cannot be tapped: see .refused"
    every = seen.table(every=True)
    assert all(f" {tap.name} " in every for tap in seen.taps)
    assert "more inside" not in every


def test_a_batch_with_its_labels_is_an_example_too():
    """As loaders yield them: pairs, and dicts with labels and with what is not a tensor."""
    images, labels = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
    plain = find_taps(Hand(), images)
    assert find_taps(Hand(), (images, labels)) == plain
    assert find_taps(Hand(), [images, labels]) == plain
    net, batch = HuggingFaceStyle(), {**BY_NAME, "labels": labels, "texts": ["a", "b"], "count": 2, "none": None}
    assert find_taps(net, batch) == find_taps(net, BY_NAME)
    assert find_taps(net, ({**BY_NAME, "texts": ["a", "b"]}, labels)) == find_taps(net, batch)


def test_convolutions_along_one_axis_give_sequences_not_tokens():
    taps = find_taps(Sound(), sounds()[0]).taps
    assert {tap.layout for tap in taps} == {"sequence"}
    assert next(tap.shape for tap in taps if tap.name == "stem") == (4, 12)


def test_tokens_and_sequences_in_one_network():
    """By the layers that make or take features of such a shape."""
    layouts = {tap.name: tap.layout for tap in find_taps(Hybrid(), torch.rand(1, 1, 20)).taps}
    assert {name for name, layout in layouts.items() if layout == "sequence"} == {"conv", "back", "last", "act"}
    assert {layouts[name] for name in ("turn", "drop", "mix", "mix.linear1", "mix.norm2")} == {"tokens"}


def test_what_a_bridge_at_each_tap_would_cost():
    """As bridges that are planned there: counted, in shares of the network."""
    net, images = tiny_net(), torch.rand(1, 1, 8, 8)
    mode = modebridge.Mode.from_module(net)
    for options in ({"heads": 3}, {"budget": 0.2}, {"budget": 0.2, "heads": 2}):
        seen = modebridge.inspect(net, images, **options)
        blocks = [tap for tap in seen.taps if tap.block][1::3]
        for tap in blocks:
            target = options.get("heads", 1)
            same = {"budget": options.get("budget"), "wide": True, "tap": tap.name}
            bridge = build_bridge(net, images, [mode], target, **same)
            assert tap.bridge == pytest.approx((bridge.share, bridge.parameter_share))
        assert f"{blocks[0].bridge[0]:+.1%}" in str(seen)
    none = modebridge.inspect(net, images, budget=1e-9)
    assert none.taps[0].bridge is None
    assert "  -  " in str(none)


@pytest.mark.parametrize("wrong", [{"heads": 0}, {"slim": 0}, {"budget": 5}, {"budget": 0}])
def test_bridges_that_cannot_be_priced(wrong):
    with pytest.raises(ModebridgeError, match=r"heads of at least 1|budget to be a share"):
        modebridge.inspect(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.rand(1, 4), **wrong)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.conv(x).relu()


class Stage(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.blocks, self.others = (nn.Sequential(*[Layer() for _ in range(count)]) for _ in range(2))

    def forward(self, x):
        return self.blocks(x)


class Added(Stage):
    """Looks like a stage, but adds its shortcut in place: it is a block."""

    def forward(self, x):
        y = self.blocks(x)
        y += x
        return y


class Branches(Stage):
    """A block of two branches that are lists themselves, as GoogLeNet's."""

    def forward(self, x):
        return self.blocks(x) + self.others(x)


@pytest.mark.parametrize(
    ("parts", "blocks"),
    [
        ([Stage(2), Stage(1)], ["0.blocks.0", "0.blocks.1", "1.blocks.0"]),
        ([Added(2), Added(2)], ["0", "1"]),
        ([Branches(2), Branches(2)], ["0", "1"]),
        ([Layer()], []),
        ([nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())], ["0", "1"]),
    ],
)
def test_blocks_are_what_is_repeated(parts, blocks):
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    seen = find_taps(net, torch.rand(1, 4, 6, 6))
    assert [tap.name for tap in seen.taps if tap.block] == blocks
    assert all(not tap.inner for tap in seen.taps if tap.block)
    inside = [tap for tap in seen.taps if any(tap.name.startswith(f"{block}.") for block in blocks)]
    assert all(tap.inner for tap in inside)
