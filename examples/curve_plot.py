"""Plot the loss between any two checkpoints: the straight line, the line after alignment, and a trained curve.

    python examples/curve_plot.py --out curve.png
    python examples/curve_plot.py --net torchvision.models:resnet18 --a one.pt --b two.pt --data my_module:loaders

`--data` names a function that returns (train, test), each an iterable of (images, labels).
"""

import argparse
import importlib

import matplotlib
import torch

import modebridge as mb
from modebridge.data import Loader, noisy_digits
from modebridge.nets import resnet
from modebridge.scoring import barrier, curve_profile

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", help="module:function that builds the network; a small ResNet for digits by default")
    parser.add_argument("--a", help="first checkpoint; trained now if not given")
    parser.add_argument("--b", help="second checkpoint")
    parser.add_argument("--data", help="module:function that returns (train, test); noisy digits by default")
    parser.add_argument("--epochs", type=int, default=30, help="epochs of the curve")
    parser.add_argument("--out", default="curve.png")
    arguments = parser.parse_args()

    build = named(arguments.net) if arguments.net else lambda: resnet("digits", norm="bn")
    train, test = named(arguments.data)() if arguments.data else digits()
    net = build()
    a, b = (mode(build, train, file, seed) for seed, file in enumerate((arguments.a, arguments.b)))

    aligned = mb.align(net, a, b, train)
    print(aligned)
    curve = mb.fit_curve(net, a, b, train, config=mb.TrainConfig(epochs=arguments.epochs, lr=0.05))
    lines = {
        "straight line": mb.Curve.line(a, b),
        "straight line, aligned": mb.Curve.line(a, aligned.mode),
        "trained curve": curve,
    }
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for label, line in lines.items():
        profile = curve_profile(net, line, test, 11, train)
        axes.plot([p.r for p in profile], [p.nll for p in profile], marker=".", label=label)
        print(f"{label}: barrier {barrier(profile):.3f}, midpoint accuracy {profile[5].accuracy:.1%}")
    axes.set(xlabel="r, from one checkpoint to the other", ylabel="test NLL", title="The loss between two checkpoints")
    axes.legend(frameon=False)
    figure.savefig(arguments.out, dpi=150)
    print(f"wrote {arguments.out}")


def named(text: str):
    """The function at module:name."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def mode(build, train, file: str | None, seed: int) -> mb.Mode:
    if file:
        return mb.load_checkpoint(build(), file)
    torch.manual_seed(seed)
    return mb.fit_modes([build()], train, mb.TrainConfig(epochs=20, lr=0.05, weight_decay=5e-4))[0]


def digits() -> tuple[Loader, Loader]:
    data = noisy_digits(0.7)
    return Loader(data.part(0, 800), 80, shuffle=True), Loader(data.part(800, 1797), 250)


if __name__ == "__main__":
    main()
