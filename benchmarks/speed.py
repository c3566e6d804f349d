"""Training speed on random images: modes, curves and bridges, alone and together.

    python benchmarks/speed.py [--net cifar10] [--steps 60] [--batch 128] [--device auto] [--eager]

Prints milliseconds per step and images per second of the fastest epoch after the first, which compiles.
"""

from __future__ import annotations

import argparse

import torch

from modebridge import Mode, TrainConfig, fit_modes
from modebridge.bridges import build_bridge, mode_target
from modebridge.data import ImageSet, Loader
from modebridge.nets import ResNet, spec_of
from modebridge.training import Epoch, fit_curves, fit_many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="cifar10")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--eager", action="store_true", help="fp32 without compilation, as the authors train")
    given = parser.parse_args()
    spec = spec_of(given.net)
    images = torch.randint(256, (given.steps * given.batch, *spec.image), dtype=torch.uint8)
    data = ImageSet(images, torch.arange(len(images)) % spec.classes, spec.classes)
    epochs: list[Epoch] = []
    how = {"precision": "fp32", "compile": False} if given.eager else {}
    config = TrainConfig(epochs=3, device=given.device, callbacks=(epochs.append,), progress=False, **how)
    print(
        f"{'what':24} {'ms/step':>9} {'images/s, all networks':>24}   {given.net}, batch {given.batch}, {given.device}"
    )

    def fed(seed: int) -> Loader:
        return Loader(data, given.batch, shuffle=True, seed=seed, pad=4, flip=True)

    def report(what: str, networks: int) -> None:
        seconds = min(epoch.seconds for epoch in epochs[1:])
        print(f"{what:24} {1000 * seconds / given.steps:9.2f} {networks * len(images) / seconds:24,.0f}", flush=True)
        epochs.clear()

    nets = [ResNet(spec, torch.Generator().manual_seed(k)) for k in range(4)]
    modes = [Mode.from_module(net) for net in nets]
    for count in (1, 4):
        fit_modes(nets[:count], [fed(k) for k in range(count)], config)
        report(f"{count} mode{'s' if count > 1 else ''}", count)
    for count in (1, 3):
        fit_curves(nets[0], [(modes[0], modes[k + 1]) for k in range(count)], [fed(k) for k in range(count)], config)
        report(f"{count} curve{'s' if count > 1 else ''}", count)
    for count in (1, 12):
        bridges = {
            f"{k}": build_bridge(
                nets[0], images[:2].float() / 255, modes[:1], mode_target(modes[1 + k % 3]), name=f"{k}"
            )
            for k in range(count)
        }
        fit_many(nets[0], bridges, fed(0), config)
        report(f"{count} bridge{'s' if count > 1 else ''}", count)


if __name__ == "__main__":
    main()
