"""The heads of results/cifar10-frn and cifar10-parts, which benchmarks/frontier.py trained: names, bodies and files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from modebridge import Mode
from modebridge.bridges import Bridge
from modebridge.nets import ResNet

sys.path.append(str(Path(__file__).parents[1]))
from frontier.scene import Scene
from frontier.variants import VARIANTS, Part, plan_part

__all__ = ["HEADS", "PARTS", "files_of", "planned"]

HEADS = {
    "heads-0-others-small": "3 heads: others (shallow + cutmix 1)",
    "heads-others-cutmix-budget": "3 heads: others (budget + cutmix 1)",
}
"""Variants of the comparison by their names in results/.

The first is what recipes train by that name, one wide block with CutMix at the FLOPs of a small bridge, except for the
biases of its convolutions and the number of epochs.
"""
PARTS = {
    "other-small-118": "1 head: other mode",
    "heads-others-mixup-budget": "3 heads: others (budget)",
    "heads-others-mixup-shallow": "3 heads: others (shallow)",
    "heads-others-labels-mixup": "4 heads: others + labels",
}
"""Variants with mixup 0.4 in results/cifar10-parts, trained for as many epochs."""


def _part(name: str) -> Part:
    (part,) = VARIANTS[{**HEADS, **PARTS}[name]].parts
    return part


def planned(name: str, net: ResNet, modes: Sequence[Mode]) -> Bridge:
    """The untrained bridge on the first of four modes, with a head for each of the others."""
    return plan_part(_part(name), Scene(net, modes, {}, torch.rand(2, *net.spec.image))).bridge


def files_of(hold: Path, seed: int) -> dict[str, str]:
    """The heads in a folder of frontier.py: logits are in FILE.safetensors, weights in weights-FILE.safetensors."""
    files = {member: file for file, member in json.loads((hold / f"{seed}-members.json").read_text()).items()}
    return {name: files[str(_part(name))] for name in (*HEADS, *PARTS) if str(_part(name)) in files}
