"""The whole way with networks that users have: torchvision, timm, their own; tensors and dicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import modebridge as mb
from modebridge.batches import check_batch
from modebridge.errors import ModebridgeError
from tests.networks import NETWORKS, HuggingFaceStyle, made
from tests.scenarios import fit_mode

QUICK = mb.TrainConfig(epochs=1, warmup=1, keep="last")


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
SLOW = [("timm resnet18", "I"), ("torchvision resnet18", "I"), ("timm vit_tiny", "II")]


@pytest.mark.parametrize(
    ("name", "kind"), [pytest.param(*case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES]
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
    assert scores.temperature is not None


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
    with pytest.raises(ModebridgeError, match=r"beside 'mask' .*, but got 'pixel_values' of .*set mixup=0"):
        mb.fit_bridge(net, curve, train, budget=0.2, config=QUICK)


def test_dicts_of_images_alone_are_what_pairs_are():
    torch.manual_seed(0)
    net = HuggingFaceStyle()
    by_name = [{"pixel_values": x, "label": y} for x, y in pairs()]
    one, other = (fit_mode(net, data, config=QUICK) for data in (pairs(), by_name))
    assert one.id == other.id
