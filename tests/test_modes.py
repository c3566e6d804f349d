"""Modes in and out of modules, and batch norm's statistics: the ends of a curve keep theirs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import modebridge as mb
from modebridge.curves import start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_statistics, has_statistics, refresh_statistics, to_mode
from modebridge.nets import resnet, run
from tests.journeys.test_own_models import QUICK, pairs
from tests.networks import Plain, made
from tests.scenarios import EXACT, Vectors, blobs, loader, tiny_net


@pytest.mark.parametrize("norm", ["frn", "bn"])
def test_round_trip(norm):
    net = tiny_net(1, norm)
    mode = Mode.from_module(net)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(mode.load(tiny_net(0, norm))(images), net.eval()(images))
    assert mode.id == Mode.from_state_dict(net, net.state_dict()).id
    assert mode.id != Mode.from_module(tiny_net(2, norm)).id


def test_a_mode_is_a_copy():
    net = tiny_net()
    mode = Mode.from_module(net)
    with torch.no_grad():
        net.head.weight.zero_()
    assert float(mode.params["head.weight"].abs().sum()) > 0


def test_tied_weights_are_carried_once():
    net = Vectors()
    mode = Mode.from_module(net)
    assert set(mode.params) == {"first.weight", "head.weight", "head.bias"}
    x = torch.rand(3, 4)
    assert torch.equal(mode.load(Vectors())(x), net(x))


def test_two_values_for_one_tied_weight_are_refused(tmp_path):
    state = Vectors().state_dict()
    state["second.weight"] = state["second.weight"] + 1
    torch.save(state, tmp_path / "untied.pth")
    for load in (lambda: Mode.from_state_dict(Vectors(), state), lambda: to_mode(Vectors(), tmp_path / "untied.pth")):
        with pytest.raises(ModebridgeError, match=r"'second.weight' (and 'first.weight' to be equal|is tied to)"):
            load()


def test_a_module_that_is_another_network_is_said():
    def built(activation, scale=1.0):
        net = nn.Sequential(nn.Linear(2, 3), activation)
        net.register_buffer("scale", torch.tensor(scale), persistent=False)
        return net

    for other, what in ((built(nn.GELU()), r"\(1\): ReLU\(\) / \(1\): GELU"), (built(nn.ReLU(), 2.0), "scale")):
        with pytest.warns(UserWarning, match=f"differs from net in more than weights .{what}"):
            to_mode(built(nn.ReLU()), other)
    to_mode(built(nn.ReLU()), built(nn.ReLU()))


def test_a_module_under_two_names_is_carried_once():
    norm = nn.BatchNorm1d(3)
    net = nn.Sequential(norm, norm).eval()
    mode = Mode.from_module(net)
    assert all(name.startswith("0.") for name in mode.state)
    x = torch.rand(4, 3)
    assert torch.equal(run(net, mode.params, mode.buffers, x), net(x))


def test_frozen_batch_norm_is_a_constant_and_tracking_instance_norm_is_not():
    def frozen():
        layer = nn.Linear(64, 3)
        layer.register_buffer("running_mean", torch.zeros(1))
        return layer

    a, b = (Mode.from_module(frozen()) for _ in range(2))
    assert start_curve(frozen(), a, b).at(0.5).buffers.keys() == {"running_mean"}
    net = nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(64, 3))
    a, b = (Mode.from_module(net), Mode.from_module(copy.deepcopy(net)))
    b = Mode({k: t + 1 for k, t in b.params.items()}, b.buffers)
    curve = start_curve(net, a, b).with_statistics(net, 0.5, loader())
    assert not torch.equal(curve.at(0.5).buffers["0.running_mean"], a.buffers["0.running_mean"])


def test_missing_extra_and_other_architectures_are_named():
    net = tiny_net()
    state = net.state_dict()
    missing = {k: v for k, v in state.items() if k != "head.bias"}
    with pytest.raises(ModebridgeError, match=r"missing 'head\.bias'"):
        Mode.from_state_dict(net, missing)
    with pytest.raises(ModebridgeError, match=r"extra 'ema\.head'"):
        Mode.from_state_dict(net, {**state, "ema.head": torch.zeros(1)})
    with pytest.raises(ModebridgeError, match="number of classes"):
        Mode.from_module(resnet("digits")).check(resnet("digits", classes=11))
    with pytest.raises(ModebridgeError, match="the same architecture"):
        Mode.from_module(resnet("digits")).load(tiny_net())


class Scaled(nn.Linear):
    """Keeps what is no tensor in its state dict."""

    def __init__(self, scale=2.0):
        super().__init__(4, 3)
        self.scale = scale

    def get_extra_state(self):
        return {"scale": self.scale}

    def set_extra_state(self, state):
        self.scale = state["scale"]

    def forward(self, x):
        return super().forward(x) * self.scale


def test_state_that_is_no_tensor_is_kept_and_must_not_differ(tmp_path):
    net, data = Scaled(), [(torch.rand(6, 4), torch.arange(6) % 3)]
    modes = mb.fit_modes([net, Scaled()], data, QUICK)
    assert modes[0].extra == {"_extra_state": '{"scale": 2.0}'}
    torch.save({"model": Scaled(7.0).state_dict()}, tmp_path / "other.pt")
    other = mb.load_checkpoint(net, tmp_path / "other.pt")
    for name, thing in (("mode", other), ("curve", start_curve(net, *modes)), ("both", mb.Ensemble(net, modes))):
        thing.save(tmp_path / name)
        with pytest.raises(ModebridgeError, match=r"'_extra_state' of a mode to be .*, as in the network, but got"):
            mb.load(tmp_path / name, net=Scaled(3.0))
    assert mb.load(tmp_path / "mode").load(Scaled(7.0)).scale == 7.0
    assert mb.load(tmp_path / "curve").at(0.5).extra == modes[0].extra
    images = torch.rand(2, 4)
    torch.testing.assert_close(mb.load(tmp_path / "both", net=Scaled())(images), mb.Ensemble(net, modes)(images))
    for make in (lambda: mb.Ensemble(net, [*modes, other]), lambda: start_curve(net, modes[0], other)):
        with pytest.raises(ModebridgeError, match=r'be {"scale": 2.0}, as in the network, but got {"scale": 7.0};'):
            make()
    with pytest.raises(ModebridgeError, match="extra state of a network to be plain data, but got"):
        Mode.from_module(Scaled(torch.ones(())))


def test_statistics_weigh_images_not_batches_and_leave_dropout_off():
    net = nn.Sequential(nn.Dropout(0.9), nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)).double()
    mode = Mode.from_module(net)
    data = blobs(24, dtype=EXACT)
    uneven = [(data.images[:20], data.labels[:20]), (data.images[20:], data.labels[20:])]
    fresh = refresh_statistics(net, mode.params, mode.buffers, uneven)
    torch.testing.assert_close(fresh["2.running_mean"], data.images.flatten(1).mean(dim=0), rtol=0, atol=1e-12)


def test_refresh_against_torch_update_bn():
    net = tiny_net(0, "bn", EXACT)
    mode = Mode.from_module(net)
    batches = list(loader(24, 8, dtype=EXACT))
    fresh = refresh_statistics(net, mode.params, mode.buffers, batches)
    reference = copy.deepcopy(net)
    torch.optim.swa_utils.update_bn(batches, reference)
    for name, tensor in reference.state_dict().items():
        if "running" in name:
            torch.testing.assert_close(fresh[name], tensor, rtol=0, atol=1e-12)


def test_no_statistics_no_work_and_no_data_is_an_error():
    assert not has_statistics(tiny_net())
    bn = tiny_net(0, "bn")
    mode = Mode.from_module(bn)
    assert has_statistics(bn)
    norm = nn.BatchNorm1d(3)  # may be the whole network
    check_statistics(norm, dict(norm.named_buffers()), {**dict(norm.named_buffers()), "running_mean": torch.ones(3)})
    with pytest.raises(ModebridgeError, match="but got none"):
        refresh_statistics(bn, mode.params, mode.buffers, [])


def test_a_layer_that_runs_twice_averages_both():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.norm(x[:, :2]) + self.norm(input=x[:, 2:]))

    net, x = Twice().double(), torch.rand(10, 4, dtype=torch.float64)
    mode = mb.Mode.from_module(net)
    batches = [(x[:4], torch.zeros(4).long()), (x[4:], torch.zeros(6).long())]
    fresh = refresh_statistics(net, mode.params, mode.buffers, batches)
    both = (x[:, :2].mean(0) + x[:, 2:].mean(0)) / 2
    torch.testing.assert_close(fresh["norm.running_mean"], both, rtol=0, atol=1e-12)


class Tracked(nn.BatchNorm1d):
    """Batch norm with another buffer than its statistics."""

    def __init__(self) -> None:
        super().__init__(4)
        self.register_buffer("spread", torch.rand(4))


class Renorm(nn.Module):
    """A layer with a buffer of its own making."""

    def __init__(self, spread) -> None:
        super().__init__()
        self.register_buffer("spread", spread)

    def forward(self, x):
        return x / self.spread


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: nn.BatchNorm1d(4, track_running_stats=False), "'1' has track_running_stats=False: its output"),
        (lambda: Renorm(torch.rand(4)), "'1.spread' of Renorm differs, and how it depends on the parameters is unk"),
        (Tracked, "'1.spread' of Tracked differs"),
        (lambda: nn.utils.spectral_norm(nn.Linear(4, 4)), "'1.weight_u' of Linear differs"),
        (lambda: Renorm(torch.randperm(4)), "'1.spread' of Renorm differs"),
        (lambda: Renorm(torch.rand(4) > 0.5), "'1.spread' of Renorm differs"),
        (lambda: Renorm(torch.randn(4, dtype=torch.complex64)), "'1.spread' of Renorm differs"),
    ],
)
def test_layers_that_statistics_cannot_serve_are_refused(layer, reason):
    def net(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4), layer(), nn.Linear(4, 2))

    a, b = (mb.Mode.from_module(net(seed)) for seed in (0, 1))
    with pytest.raises(ModebridgeError, match=reason):
        start_curve(net(0), a, b)


def test_a_batch_of_one_is_a_sentence():
    net, train = Plain(), pairs(13, 12)
    modes = [mb.Mode.from_module(made("plain module", seed)) for seed in (0, 1)]
    curve = start_curve(net, *modes)
    with pytest.raises(ModebridgeError, match="more than one value per channel for batch norm, but got 1 image"):
        curve.with_statistics(net, 0.5, train)
