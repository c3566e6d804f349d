"""The whole way with networks that users have: torchvision, timm, their own; tensors and dicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import modebridge as mb
from modebridge.batches import check_batch
from modebridge.curves import start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import refresh_statistics
from tests.networks import NETWORKS, HuggingFaceStyle, Plain, made
from tests.plans import fit_mode

QUICK = mb.TrainConfig(epochs=1, lr=0.01, warmup=1, keep="last")


def pairs(n: int = 24, batch: int = 12, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    images, labels = torch.rand(n, 3, 32, 32, generator=generator), torch.arange(n) % 3
    return [(images[k : k + batch], labels[k : k + batch]) for k in range(0, n, batch)]


def dicts(n: int = 24) -> list[dict[str, object]]:
    return [
        {"pixel_values": x, "mask": torch.ones(len(x), 16).long(), "labels": y, "names": ["a file"] * len(x)}
        for x, y in pairs(n)
    ]


CASES = [*((name, "I") for name in NETWORKS), ("plain module", "II"), ("timm vit_tiny", "II")]


MORE = [("timm resnet18", "I"), ("torchvision resnet18", "I"), ("timm vit_tiny", "II")]
"""These take long, or have been there with another bridge: they are in `make test-slow`."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case in MORE)) for case in CASES],
)
def test_from_two_checkpoints_to_scores(name, kind):
    net, train = made(name), pairs()
    modes = [mb.Mode.from_module(made(name, seed)) for seed in (0, 1)]
    curve = mb.fit_curve(net, modes[0], modes[1], train, config=QUICK)
    bridge = mb.fit_bridge(net, curve, train, kind=kind, budget=0.1, config=QUICK)
    assert 0 < bridge.share <= 0.1
    members = modes[:1] if kind == "I" else modes
    fast = mb.Ensemble(net, members, [bridge]).calibrate(train)
    images = train[0][0]
    with torch.no_grad():
        said = fast(images)
        first = made(name)(images).softmax(-1)
    assert torch.allclose(said.sum(-1), torch.ones(12), atol=1e-5)
    # The first member is the very network that was given: the same operations on the same numbers.
    assert torch.allclose(fast.members(images)[0], first, atol=1e-5)
    scores = mb.evaluate(fast, train)
    assert scores.n == 24
    assert scores.cost.relative_flops == pytest.approx(len(members) + bridge.share)
    assert scores.cnll is not None


def test_dict_batches_all_the_way():
    net, train = HuggingFaceStyle(), dicts()
    modes = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        modes.append(fit_mode(HuggingFaceStyle(), train, config=QUICK))
    curve = mb.fit_curve(net, modes[0], modes[1], train, config=QUICK)
    bridge = mb.fit_bridge(net, curve, train, budget=0.2, config=replace(QUICK, mixup=0))
    assert bridge.tap.startswith("layers.")
    fast = mb.Ensemble(net, modes[:1], [bridge]).calibrate(train)
    scores = mb.evaluate(fast, train)
    assert scores.cost.relative_flops == pytest.approx(1 + bridge.share)
    inputs, _ = check_batch(train[0], "train")
    assert torch.equal(fast(inputs), fast(**inputs))
    # A mask that hides everything but the first patch is heard.
    mask = torch.zeros(12, 16).long()
    mask[:, 0] = 1
    assert not torch.allclose(fast(inputs), fast({**inputs, "mask": mask}))
    with pytest.raises(ModebridgeError, match="mixup to be 0 for integers such as tokens and masks, but got"):
        mb.fit_bridge(net, curve, train, budget=0.2, config=QUICK)


def test_dicts_of_images_alone_are_what_pairs_are():
    torch.manual_seed(0)
    net = HuggingFaceStyle()
    by_name = [{"pixel_values": x, "label": y} for x, y in pairs()]
    one, other = (fit_mode(net, data, config=QUICK) for data in (pairs(), by_name))
    assert one.id == other.id


# Batch norm


def averages(net: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The mean over images of every batch's own mean and unbiased variance, by hand, for the stem of `Plain`."""
    total = sum(len(y) for _, y in batches)
    with torch.no_grad():
        outs = [net.stem(x) for x, _ in batches]
    mean = sum(len(out) * out.mean((0, 2, 3)) for out in outs) / total
    var = sum(len(out) * out.var((0, 2, 3), unbiased=True) for out in outs) / total
    return {"norm.running_mean": mean, "norm.running_var": var}


@pytest.mark.parametrize("batch", [24, 12, 10, 5])
def test_statistics_are_means_over_images_whatever_the_momentum(batch):
    torch.manual_seed(0)
    net, train = Plain().double(), [(x.double(), y) for x, y in pairs(24, batch)]
    mode = mb.Mode.from_module(net)
    fresh = refresh_statistics(net, mode.params, mode.buffers, train)
    for name, expected in averages(net, train).items():
        torch.testing.assert_close(fresh[name], expected, rtol=0, atol=1e-12)
    if 24 % batch == 0:
        # torch's own, which gives every batch the same weight, where batches are of one size.
        reference = made("plain module").double()
        reference.load_state_dict(mode.state)
        update_bn([x for x, _ in train], reference)
        for name, tensor in reference.named_buffers():
            if tensor.is_floating_point():
                torch.testing.assert_close(fresh[name], tensor, rtol=0, atol=1e-12)


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
    torch.testing.assert_close(
        fresh["norm.running_mean"], (x[:, :2].mean(0) + x[:, 2:].mean(0)) / 2, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", [pytest.param("torchvision resnet18", marks=pytest.mark.slow), "plain module"])
def test_the_ends_keep_their_own_statistics(name):
    net, train = made(name), pairs()
    modes = [mb.Mode.from_module(made(name, seed)) for seed in (0, 1)]
    curve = mb.fit_curve(net, modes[0], modes[1], train, config=QUICK)
    for r, mode in ((0.0, modes[0]), (1.0, modes[1])):
        assert all(torch.equal(curve.point(r)[key], mode.params[key]) for key in mode.params)
        assert curve.at(r).id == mode.id
        assert curve.with_statistics(net, r, train).at(r).id == mode.id
        x = train[0][0]
        assert torch.equal(curve.at(r).load(net)(x), mode.load(net)(x))
    # Estimated once a point.
    known = curve.with_statistics(net, 0.3, train)
    assert known.with_statistics(net, 0.3, []).statistics[0.3] is known.statistics[0.3]


class Renorm(nn.Module):
    """A layer with running statistics of its own making."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spread", torch.ones(4))

    def forward(self, x):
        return x / self.spread


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: nn.BatchNorm1d(4, track_running_stats=False), "'1' has track_running_stats=False: its output"),
        (Renorm, "'1.spread' of Renorm differs, and how it depends on the parameters is unknown"),
        (lambda: nn.utils.spectral_norm(nn.Linear(4, 4)), "'1.weight_u' of Linear differs"),
    ],
)
def test_layers_that_statistics_cannot_serve_are_refused(layer, reason):
    def net(seed):
        torch.manual_seed(seed)
        built = nn.Sequential(nn.Linear(4, 4), layer(), nn.Linear(4, 2))
        for name, buffer in built.named_buffers():
            if name == "1.spread":
                buffer.uniform_(0.5, 1.5)
        return built

    a, b = (mb.Mode.from_module(net(seed)) for seed in (0, 1))
    with pytest.raises(ModebridgeError, match=reason):
        start_curve(net(0), a, b)


def test_constants_and_layers_without_a_batch_are_no_hindrance():
    def net(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), Renorm(), nn.Linear(4, 2))

    a, b = (mb.Mode.from_module(net(seed)) for seed in (0, 1))
    assert torch.equal(start_curve(net(0), a, b).at(0.5).buffers["2.spread"], torch.ones(4))


def test_a_batch_of_one_is_a_sentence():
    net, train = Plain(), pairs(13, 12)
    modes = [mb.Mode.from_module(made("plain module", seed)) for seed in (0, 1)]
    curve = start_curve(net, *modes)
    with pytest.raises(ModebridgeError, match="more than one value per channel for batch norm, but got 1 image"):
        curve.with_statistics(net, 0.5, train)
