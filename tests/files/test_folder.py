"""Everything that is saved comes back to the last bit: numbers, order, types, memory order, predictions."""

import json
from dataclasses import replace

import pytest
import timm
import torch
import torchvision
from torch import nn

import modebridge as mb
from modebridge import trees
from modebridge.bridges import Bridge
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.recipes import Network
from tests.files.objects import BODIES, FEATURES, Own, batch, bridge, ensemble
from tests.networks import Plain
from tests.scenarios import Vectors, modes, tiny_net


def same_tree(a, b):
    assert list(a) == list(b), "names, in their order"
    for name, tensor in a.items():
        assert (tensor.dtype, tensor.shape, tensor.stride()) == (b[name].dtype, b[name].shape, b[name].stride()), name
        assert torch.equal(tensor, b[name]), name


TENSORS = {
    "float64": torch.tensor([1 / 3, -0.0, 5e-324], dtype=torch.float64),
    "bfloat16": torch.tensor([[1.5, -2.25]], dtype=torch.bfloat16),
    "half": torch.tensor(0.1, dtype=torch.float16),
    "float8": torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn),
    "int64": torch.tensor([2**62, -1]),
    "uint8": torch.arange(3, dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
    "one": torch.zeros(1, 1, 1, 1),
    "infinite": torch.tensor([float("inf"), -float("inf")]),
    "channels last": torch.rand(4, 3, 1, 1).to(memory_format=torch.channels_last),
    "transposed": torch.rand(3, 5).t(),
    "part": torch.rand(6, 4)[::2, 1:3],
    "expanded": torch.rand(1, 3).expand(4, 3),
    "negated view": torch.view_as_complex(torch.rand(3, 2)).conj().imag,
    "__metadata__": torch.ones(1),
    "": torch.ones(2),
    "sch\u00f6n.\U0001f600/..": torch.ones(1),
}


def test_tensors_of_any_kind(tmp_path):
    shared = torch.rand(4)
    params = {**TENSORS, "shared": shared, "again": shared, "part of it": shared[1:]}
    mode = Mode(params, {})
    mode.save(tmp_path / "odd")
    again = mb.load(tmp_path / "odd")
    (tmp_path / "odd" / "model.safetensors").write_bytes(b"")  # what is loaded does not depend on the file
    assert list(again.params) == list(params)
    assert again.id == mode.id, "names, types, shapes and bits"
    for name in ("channels last", "transposed"):
        assert again.params[name].stride() == TENSORS[name].stride()
    again.params["shared"].zero_()
    assert again.params["again"].sum() > 0, "each has memory of its own"


def test_modes(tmp_path):
    for mode in (*modes(1, "bn"), Mode({}, {}), Mode({"w": torch.zeros(())}, {}), Mode({}, {"n": torch.tensor(3)})):
        mode.save(tmp_path / "mode")
        again = mb.load(tmp_path / "mode")
        same_tree(mode.params, again.params)
        same_tree(mode.buffers, again.buffers)
        assert sorted(file.name for file in (tmp_path / "mode").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("pins", [0, 1, 3])
def test_a_curve(tmp_path, pins):
    start, end = modes(2, "bn")
    curve = mb.Curve.line(start, end, pins)
    curve = replace(curve, statistics={0.1 + 0.2: dict(start.buffers), 0.5: dict(end.buffers)})
    curve.save(tmp_path / "curve")
    again = mb.load(tmp_path / "curve")
    assert type(again) is mb.Curve
    assert (again.start.id, again.end.id) == (start.id, end.id)
    for ours, theirs in zip(curve.pins, again.pins, strict=True):
        same_tree(ours, theirs)
    assert list(again.statistics) == [0.1 + 0.2, 0.5]
    same_tree(curve.at(0.1 + 0.2).state, again.at(0.1 + 0.2).state)
    with pytest.raises(ModebridgeError, match=r"statistics to be known at r = 0.7"):
        again.at(0.7)


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_all_designs(tmp_path, name):
    one = Bridge(BODIES[name](), modes(1), "layers.1", 0.3, name, 0.125, heads=2 if name == "heads" else 1).eval()
    if name == "residual":
        one.body.head.bias.requires_grad_(False)
    one.save(tmp_path / "bridge")
    again = mb.load(tmp_path / "bridge")
    assert type(again) is Bridge
    assert repr(again) == repr(one)
    assert vars(again).keys() == vars(one).keys()
    for attribute in ("reads", "taps", "r", "name", "share", "heads", "_base", "training"):
        assert getattr(again, attribute) == getattr(one, attribute)
    assert trees.fingerprint(one.state_dict()) == trees.fingerprint(again.state_dict())
    assert [p.requires_grad for p in one.parameters()] == [p.requires_grad for p in again.parameters()]
    feature = torch.rand(FEATURES.get(name, (2, 8, 8, 8)))
    assert torch.equal(one(feature), again(feature))
    again.save(tmp_path / "twice")
    assert (tmp_path / "twice" / "config.json").read_text() == (tmp_path / "bridge" / "config.json").read_text()


@torch.no_grad()
@pytest.mark.parametrize(
    ("norm", "mean", "dtype"),
    [("frn", "probability", "float64"), ("bn", "logarithmic", "float32"), ("bn", "probability", "bfloat16")],
)
def test_an_ensemble(tmp_path, norm, mean, dtype):
    dtype = getattr(torch, dtype)
    whole = ensemble(norm, mean).to(dtype)
    whole.save(tmp_path / "fast")
    before = torch.get_rng_state()
    again = mb.load(tmp_path / "fast")
    assert torch.equal(before, torch.get_rng_state()), "no random number of the caller's is drawn"
    assert type(again) is mb.Ensemble
    images = batch(dtype)
    assert torch.equal(again.members(images), whole.members(images))
    assert torch.equal(again(images), whole(images))
    assert (again.calibrated, again.mean, len(again), repr(again)) == (True, mean, 5, repr(whole))
    assert again.temperature.dtype == whole.temperature.dtype
    assert trees.fingerprint(whole.state_dict()) == trees.fingerprint(again.state_dict())
    assert [one.reads for one in again.bridges] == [one.reads for one in whole.bridges]
    assert not again.training
    assert not any(parameter.requires_grad for parameter in again.parameters())
    alone = mb.Ensemble(tiny_net(), modes(1))
    alone.save(tmp_path / "alone")
    assert not mb.load(tmp_path / "alone").calibrated


@torch.no_grad()
@pytest.mark.parametrize("known", [True, False])
def test_networks_of_timm_are_found_out(tmp_path, known):
    torch.manual_seed(0)
    net = timm.create_model("test_resnet", num_classes=3, in_chans=1, **({} if known else {"drop_rate": 0.25})).eval()
    whole = mb.Ensemble(net.to(memory_format=torch.channels_last), [Mode.from_module(net)])
    whole.save(tmp_path / "fast")
    stored = json.loads((tmp_path / "fast" / "config.json").read_text())["object"]["net"]
    if known:
        assert stored == {"name": "timm:test_resnet.r160_in1k(num_classes=3, in_chans=1)"}
    else:
        assert stored is None, "an option that its name does not tell"
        with pytest.raises(ModebridgeError, match="Expected net, because how to build ResNet is not stored"):
            mb.load(tmp_path / "fast")
        whole.save(tmp_path / "fast", net="timm:test_resnet.r160_in1k(num_classes=3, in_chans=1, drop_rate=0.25)")
    images = torch.rand(2, 1, 32, 32)
    assert torch.equal(mb.load(tmp_path / "fast")(images), whole(images))


@torch.no_grad()
def test_networks_of_recipes(tmp_path):
    """What a run's network is called, with the options that the recipe and its data fill in."""
    network = Network("timm:test_resnet(drop_rate=0.5, pretrained=False)", "bn", 3, (1, 32, 32))
    assert network.shared_name == "timm:test_resnet(num_classes=3, in_chans=1, drop_rate=0.5)"
    net = network.build(torch.Generator().manual_seed(0)).eval()
    mb.Ensemble(net, [Mode.from_module(net)]).save(tmp_path / "fast", net=network.shared_name)
    assert len(mb.load(tmp_path / "fast")) == 1
    assert Network("digits", "bn", 10, (1, 8, 8)).shared_name is None, "known by its spec"
    assert Network("/some/file.py:make", "bn", 10, (1, 8, 8)).shared_name is None


@torch.no_grad()
def test_networks_of_torchvision_by_name(tmp_path):
    torch.manual_seed(0)
    net = torchvision.models.shufflenet_v2_x0_5(num_classes=3).eval()
    whole = mb.Ensemble(net, [Mode.from_module(net)])
    whole.save(tmp_path / "fast", net="torchvision:shufflenet_v2_x0_5(num_classes=3, weights=None)")
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(mb.load(tmp_path / "fast")(images), whole(images))
    for name, words in (
        ("torchvision:shufflenet_v2_x0_5(num_classes=4)", "to build the ShuffleNetV2 of this ensemble, but it builds"),
        ("torchvision:shufflenet", "Expected a model of torchvision, but got 'shufflenet'"),
        ("torchvision:alexnet(open('x'))", "options of net to be keywords with plain values"),
        ("torchvision:alexnet(**{})", "options of net to be keywords with plain values"),
        ("shufflenet", "Expected net to be a known network, timm:MODEL"),
    ):
        with pytest.raises(ModebridgeError, match=words.replace("(", r"\(")):
            whole.save(tmp_path / "other", net=name)
    assert not (tmp_path / "other").exists()


@torch.no_grad()
@pytest.mark.parametrize("net", [Plain(), Vectors()], ids=["plain", "tied"])
def test_a_network_of_the_users_own_is_given_again(tmp_path, net):
    net = net.eval()
    whole = mb.Ensemble(net, [Mode.from_module(net)])
    whole.save(tmp_path / "fast")
    with pytest.raises(ModebridgeError, match=r"is not stored with its weights, .*pass net="):
        mb.load(tmp_path / "fast")
    images = torch.rand(2, 3, 8, 8) if isinstance(net, Plain) else torch.rand(2, 4)
    given = type(net)()
    before = [parameter.clone() for parameter in given.parameters()]
    assert torch.equal(mb.load(tmp_path / "fast", net=given)(images), whole(images))
    assert all(map(torch.equal, before, given.parameters())), "the user's module is not touched"
    with pytest.raises(ModebridgeError, match=rf"to be of class {type(net).__name__}, as was saved, but got Linear"):
        mb.load(tmp_path / "fast", net=nn.Linear(4, 3))


@torch.no_grad()
def test_constants_of_a_network_that_was_converted(tmp_path):
    """Mean and std are no part of a checkpoint; in bf16 and back they are other numbers."""
    whole = ensemble().to(torch.bfloat16).float()
    whole.save(tmp_path / "fast")
    assert torch.equal(mb.load(tmp_path / "fast")(batch()), whole(batch()))
    assert torch.equal(mb.load(tmp_path / "fast", net=tiny_net(7))(batch()), whole(batch()))


@torch.no_grad()
def test_a_body_of_the_users_own_is_given_again(tmp_path):
    torch.manual_seed(1)
    one = Bridge(Own(), modes(1), "layers.2", None, "mine").eval()
    one.save(tmp_path / "bridge")
    feature = torch.rand(2, 16, 4, 4)
    again = mb.load(tmp_path / "bridge", bodies=[Own()])
    assert torch.equal(again(feature), one(feature))
    assert again.body.first.weight is again.body.second.weight
    whole = mb.Ensemble(tiny_net(), modes(1), [bridge(), one])
    whole.save(tmp_path / "fast")
    assert torch.equal(mb.load(tmp_path / "fast", bodies=[Own()])(batch()), whole(batch()))


def test_what_was_changed_after_it_was_built_is_a_users_own(tmp_path):
    one = bridge()
    one.body.head = nn.Sequential(one.body.head, nn.Tanh())
    one.save(tmp_path / "bridge")
    with pytest.raises(ModebridgeError, match="is a custom module"):
        mb.load(tmp_path / "bridge")

    class Bent(mb.Curve):
        def weights(self, r):
            return super().weights(r * r)

    with pytest.raises(ModebridgeError, match="but got Bent; save its modes"):
        Bent(*modes(2), ()).save(tmp_path / "bent")
    assert not (tmp_path / "bent").exists()
