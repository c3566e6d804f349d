"""Training speed of the engine on a GPU relative to plain eager fp32 in the same run.

    python benchmarks/train_speed.py            # on a CUDA device; minutes, mostly compilation
    python benchmarks/train_speed.py --tiny     # a dry run on a CPU; its times are meaningless

Random images of CIFAR-10's shape on the device, with crop and flip, batch size 128, ResNet-32x2 with filter response
norm.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F

from modebridge import Mode, TrainConfig, __version__, fit_bridges, fit_curves, fit_modes, plan_bridge, trees
from modebridge.curves import start_curve
from modebridge.data import ImageSet, Loader
from modebridge.nets import ResNet, spec_of
from modebridge.training import Engine

STEPS = 60


def clocked(fit: Callable[[Callable[[int, Mapping[str, float]], None]], object], steps: int) -> float:
    """Seconds per step: the median epoch after the first, which compiles and captures."""
    marks: list[float] = []
    fit(lambda done, losses: marks.append(time.perf_counter()))
    return statistics.median(b - a for a, b in itertools.pairwise(marks)) / steps


def eager(spec, loader: Loader, device: torch.device, epochs: int) -> float:
    """As in the authors' code: one network, fp32, no compilation, torch's SGD."""
    net = ResNet(spec, torch.Generator().manual_seed(0)).to(device).train()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    times: list[float] = []
    for _ in range(epochs):
        start = time.perf_counter()
        for images, labels in loader:
            optimiser.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimiser.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]) / len(loader)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="dry run with small sizes on any device")
    parser.add_argument("--parts", default="modes,curves,bridges", help="parts to time")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    engine = Engine() if arguments.tiny else Engine.best()
    device, batch, steps, epochs = engine.device, 128, STEPS, 4
    spec = spec_of("cifar10")
    if arguments.tiny:
        batch, steps, epochs = 4, 2, 3
        spec = replace(spec, stages=(1, 1, 3), widths=(4, 8, 8))
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True  # the authors allow it too
        torch.backends.cudnn.allow_tf32 = True
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (batch * steps, *spec.image), dtype=torch.uint8, generator=generator)
    data = ImageSet(images, torch.randint(spec.classes, (batch * steps,), generator=generator), spec.classes).to(device)

    def loader(seed: int) -> Loader:
        return Loader(data, batch, shuffle=True, seed=seed, pad=4, flip=True)

    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "cpu"
    print(f"modebridge {__version__}, torch {torch.__version__}, {name}, batch {batch}, {steps} steps per epoch\n")
    base = batch / eager(spec, loader(0), device, 3)
    print("| what | ms per step | images/s, all networks | x eager |\n|---|---:|---:|---:|")

    def row(what: str, seconds: float, count: int) -> float:
        rate = count * batch / seconds
        print(f"| {what} | {1e3 * seconds:.2f} | {rate:,.0f} | {rate / base:.2f} |", flush=True)
        return rate

    row("eager fp32, one mode", batch / base, 1)
    config = TrainConfig(epochs=epochs, weight_decay=1e-3, warmup=1, keep="last")
    nets = [ResNet(spec, torch.Generator().manual_seed(k)) for k in range(4)]
    modes = [Mode.from_module(net) for net in nets]
    pairs = list(itertools.combinations(range(4), 2))
    together: list[Mode] = []
    mode_step = float("nan")
    if "modes" in arguments.parts:
        for count in (1, 4):
            seconds = clocked(
                lambda report, count=count: together.extend(
                    fit_modes(
                        nets[:count], [loader(k) for k in range(count)], config=config, engine=engine, report=report
                    )
                ),
                steps,
            )
            row(f"{count} mode{'s' if count > 1 else ''} together", seconds, count)
            mode_step = seconds if count == 1 else mode_step
        alone, shared = together[0], together[1]
        distance = trees.norm(trees.combine([1.0, -1.0], [alone.params, shared.params]))
        moved = trees.norm(trees.combine([1.0, -1.0], [alone.params, modes[0].params]))
        print(f"\nmode 0 alone and with three others, after {epochs * steps} steps: |difference| / |distance moved| = "
              f"{float(distance / moved):.1e}\n")  # fmt: skip
    if "curves" in arguments.parts:
        for count in (1, 6):
            ends = [(modes[i], modes[j]) for i, j in pairs[:count]]
            seconds = clocked(
                lambda report, ends=ends: fit_curves(
                    nets[0], ends, [loader(k) for k in range(len(ends))], config=config, engine=engine, report=report
                ),
                steps,
            )
            row(f"{count} curve{'s' if count > 1 else ''} together", seconds, count)
            if count == 1:
                print(f"\na curve step takes {seconds / mode_step:.2f} of a mode step\n")
    if "bridges" in arguments.parts:
        curves = {(i, j): start_curve(nets[0], modes[i], modes[j]) for i, j in pairs}
        few = torch.rand(2, *spec.image)
        plans = {}
        for (i, j), curve in curves.items():
            plans[f"I-{i}-{j}"] = plan_bridge(nets[0], curve, few, kind="I")
            plans[f"I-{j}-{i}"] = plan_bridge(nets[0], curve, few, kind="I", source="end")
            plans[f"II-{i}-{j}"] = plan_bridge(nets[0], curve, few, kind="II")

        def bridges(names: list[str]) -> float:
            chosen = {name: plans[name] for name in names}
            return clocked(
                lambda report: fit_bridges(nets[0], chosen, loader(0), config=config, engine=engine, report=report),
                steps,
            )

        one, two, every = bridges(["I-0-1"]), bridges(["II-0-1"]), bridges(list(plans))
        print("\n| bridges | ms per step | bridges x images/s |\n|---|---:|---:|")
        print(f"| one type I alone | {1e3 * one:.2f} | {batch / one:,.0f} |")
        print(f"| one type II alone | {1e3 * two:.2f} | {batch / two:,.0f} |")
        print(f"| 18 (12 I, 6 II) in one pass | {1e3 * every:.2f} | {18 * batch / every:,.0f} |")
        print(f"\n18 in one pass against one at a time: {(12 * one + 6 * two) / every:.2f}x")


if __name__ == "__main__":
    main()
