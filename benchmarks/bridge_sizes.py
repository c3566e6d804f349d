r"""FLOPs and parameters of bridges with three heads at the FLOPs of the paper's small bridge, per design.

    python benchmarks/bridge_sizes.py [cifar10 tin200]

Counted on untrained networks, in percent of one network, in seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import get_args

import torch

from modebridge import Mode, plan_bridge
from modebridge.bridges import Design, mode_target
from modebridge.nets import ResNet, spec_of
from modebridge.recipes import find_recipe


def sizes(recipe: str) -> list[tuple[str, float, float]]:
    """Rows of title, share of FLOPs and share of parameters."""
    spec = spec_of(find_recipe(recipe).net)
    net = ResNet(spec)
    modes = [Mode.from_module(ResNet(spec, torch.Generator().manual_seed(k))) for k in range(4)]
    images = torch.rand(2, *spec.image)
    paper = plan_bridge(net, modes[0], images, target=mode_target(modes[1]), slim=find_recipe(recipe).small)
    plans = {"the paper's small bridge (1 head)": paper}
    plans["the default"] = plan_bridge(net, modes, images, budget=paper.bridge.share)
    for design in get_args(Design):
        if design != "auto":
            plans[design] = plan_bridge(net, modes, images, budget=paper.bridge.share, design=design)
    whole = sum(parameter.numel() for parameter in net.parameters())
    return [
        (title, plan.bridge.share or 0.0, sum(parameter.numel() for parameter in plan.bridge.parameters()) / whole)
        for title, plan in plans.items()
    ]


def main(arguments: Sequence[str]) -> None:
    for recipe in arguments or ("cifar10", "tin200"):
        print(f"### {recipe}\n\n| bridge | FLOPs | parameters |\n|---|---:|---:|")
        for title, flops, params in sizes(recipe):
            print(f"| {title} | {100 * flops:.1f} % | {100 * params:.1f} % |")
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
