"""Mixup or CutMix, three blocks or one, when everything is trained briefly: a small timm network on enlarged digits.

    python benchmarks/short_training.py --seeds 0-5     # about 4 minutes per seed on one core

Two modes of 10 epochs, so that bridges have one head; bridges of 20 and of 60 epochs (200 and 600 steps) with
`budget=0.05`, all on the same modes. Prints calibrated NLL on 797 test images per seed, and the mean.
"""

from __future__ import annotations

import argparse
from itertools import product

import timm
import torch
from torch import nn

import modebridge as mb
from modebridge.bridges import Design, mode_target
from modebridge.data import ImageSet, Loader, noisy_digits
from seed_ranges import seeds_in

DESIGNS: tuple[Design, ...] = ("plain", "auto")
MIXING = {"mixup 0.4": {"mixup": 0.4}, "CutMix 1": {"cutmix": 1.0}}


def network() -> nn.Module:
    return timm.create_model("resnet10t", in_chans=1, num_classes=10, channels=(16, 32, 64, 128), stem_width=16)


def losses(seed: int) -> dict[str, float]:
    """Calibrated NLL by row."""
    digits = noisy_digits(0.7)
    images = nn.functional.interpolate(digits.images, size=32, mode="bilinear")
    data = ImageSet(images, digits.labels, classes=10)
    train = Loader(data.part(0, 600), 60, shuffle=True, seed=seed)
    valid, test = Loader(data.part(600, 1000), 200), Loader(data.part(1000, 1797), 200)
    modes = []
    for k in range(2):
        torch.manual_seed(100 * seed + k)
        config = mb.TrainConfig(epochs=10, lr=0.05, weight_decay=5e-4, seed=10 * seed + k)
        modes.append(mb.fit_mode(network(), train, config=config))
    net = network()

    def nll(members: list[mb.Mode], bridges: list[mb.Bridge]) -> float:
        return mb.evaluate(mb.BridgedEnsemble(net, members, bridges).calibrate(valid), test).nll

    rows = {"DE-1": nll(modes[:1], []), "DE-2": nll(modes, [])}
    for epochs, design, (title, mixing) in product((20, 60), DESIGNS, MIXING.items()):
        config = mb.TrainConfig(epochs=epochs, lr=0.05)
        target = mode_target(modes[1])
        bridge = mb.fit_bridge(net, modes[0], train, target=target, budget=0.05, design=design, config=config, **mixing)
        rows[f"{epochs} epochs, {design}, {title}"] = nll(modes[:1], [bridge])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-5")
    given = parser.parse_args()
    torch.set_num_threads(1)
    every: list[dict[str, float]] = []
    for seed in seeds_in(given.seeds):
        every.append(losses(seed))
        print(seed, {row: round(loss, 3) for row, loss in every[-1].items()}, flush=True)
    for row in every[0]:
        print(f"{row:30} {sum(rows[row] for rows in every) / len(every):.4f}")


if __name__ == "__main__":
    main()
