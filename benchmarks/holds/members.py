"""Members of a hold by name: their costs, their place in a results folder, and how to read them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import torch
from cifar10_bn_plans import IN_RECIPES, OTHERS, plans_of
from heads_frn import HEADS, PARTS, files_of, planned
from safetensors.torch import load_file
from tin200_heads import plans_of as plans_of_tin200
from torch import Tensor

from modebridge import Mode
from modebridge.bridges import choose_body
from modebridge.curves import BezierCurve
from modebridge.errors import ModebridgeError
from modebridge.members import parse_member
from modebridge.nets import ResNet, ResNetSpec, spec_of
from modebridge.runs import RunFolder, read_answers
from modebridge.scoring import LogitTable, MemberCost, module_cost

__all__ = [
    "CONTROLS",
    "cost_of",
    "kept_name",
    "kind_of",
    "part_cost",
    "read_all",
    "read_frontier",
    "read_hold",
    "splits_of",
]

CONTROLS = "controls"
"""Folder of members whose names recipes do not know, with the same layout as logits/."""


@cache
def part_cost(spec: ResNetSpec, kind: str = "", slim: float = 2.0) -> MemberCost:
    """The cost of a network, or of a bridge of type I or II on it."""
    net = ResNet(spec)
    if not kind:
        whole = module_cost(net, spec.image)
        return MemberCost(whole.flops, whole.params)
    body = choose_body(net, torch.rand(1, *spec.image), "II" if kind == "II" else "I", slim=slim)
    return MemberCost(body.flops, body.params)


def cost_of(name: str, spec: ResNetSpec) -> MemberCost:
    """The cost of a member of a hold, by name."""
    if name.startswith(("mode", "curve", "distilled", "student")):
        part, reads = part_cost(spec), ()
    elif name.startswith("heads") and (spec.norm == "bn" or spec == spec_of("tin200")):
        part, reads = _headed(spec)[name], ("mode-0",)
    elif name in HEADS or name in PARTS:
        part, reads = _headed_frn(name, spec), ("mode-0",)
    else:
        two = name.startswith("II")
        part = part_cost(spec, "II" if two else "I", 1 if "medium" in name else 2)
        reads = ("mode-0", "mode-1") if two else ("mode-1",) if name.startswith("I-1") else ("mode-0",)
    return MemberCost(part.flops, part.params, reads)


@cache
def _headed(spec: ResNetSpec) -> dict[str, MemberCost]:
    """The cost of each bridge with heads of the batch norm hold or of Tiny ImageNet; takes a minute."""
    net, images = ResNet(spec), torch.rand(2, *spec.image)
    mode, whole = Mode.from_module(net), part_cost(spec)
    if spec == spec_of("tin200"):
        others = [Mode.from_module(ResNet(spec, torch.Generator().manual_seed(k))) for k in (1, 2)]
        plans = {
            k: plan for stage in plans_of_tin200(net, [mode, *others], images).values() for k, plan in stage.items()
        }
    else:
        curves = {j: BezierCurve(mode, mode, (mode.params,), {0.5: mode.buffers}) for j in OTHERS}
        plans = plans_of(net, curves, images)
    return {
        kept_name(name, spec.norm): MemberCost(
            (plan.bridge.share or 0) * whole.flops, sum(p.numel() for p in plan.bridge.parameters())
        )
        for name, plan in plans.items()
    }


def _headed_frn(name: str, spec: ResNetSpec) -> MemberCost:
    net = ResNet(spec)
    bridge = planned(name, net, [Mode.from_module(net)] * 4)
    return MemberCost((bridge.share or 0) * part_cost(spec).flops, sum(p.numel() for p in bridge.parameters()))


def kept_name(name: str, norm: str = "frn") -> str:
    """The name of a member in results/, which is the name in recipes if they know it.

    >>> kept_name("labels-0-small-b"), kept_name("other-0-1-small"), kept_name("student-3-mixup-1")
    ('labels-0-1-small-b', 'other-0-1-small', 'distilled-0')
    >>> kept_name("heads-both", "bn"), kept_name("heads-others-taps", "bn")
    ('heads-0-midpoints+others-small', 'heads-others-taps')
    """
    if norm == "bn" and name in IN_RECIPES:
        return IN_RECIPES[name]
    if name.startswith("labels-0-"):
        return name.replace("labels-0-", "labels-0-1-")
    if re.fullmatch(r"student-\d-mixup-1", name):
        return "distilled-0"
    return "student-labels" if name == "student-labels-mixup-1" else name


def kind_of(name: str) -> str:
    """The subfolder of a results folder for the logits of a member."""
    try:
        parse_member(name)
    except ModebridgeError:
        return CONTROLS
    return "logits"


def splits_of(hold: Path) -> dict[str, dict[str, Tensor]]:
    """Logits by member (as named in the hold) and split; (H, N, K) for several heads (NAME-h0, NAME-h1 ...)."""
    parts: dict[str, list[dict[str, Tensor]]] = {}
    for file in sorted(hold.glob("*.safetensors")):
        if not file.stem.startswith("weights-") and file.stem != "labels":
            parts.setdefault(re.sub(r"-h\d+$", "", file.stem), []).append(load_file(file))
    return {
        name: {
            split: torch.stack([head[split] for head in heads]) if heads[1:] else heads[0][split] for split in heads[0]
        }
        for name, heads in parts.items()
    }


def read_hold(hold: Path, spec: ResNetSpec) -> LogitTable:
    """The logits of all members of a hold, by their names in results folders."""
    logits, labels = splits_of(hold), load_file(hold / "labels.safetensors")
    valid, test = (
        {kept_name(name, spec.norm): both[split].float() for name, both in logits.items()}
        for split in ("valid", "test")
    )
    return LogitTable(valid, test, labels["valid"], labels["test"], {name: cost_of(name, spec) for name in test})


def read_all(folder: RunFolder) -> LogitTable:
    """The logits of all members of a results folder, including controls."""
    known = read_answers(folder)
    valid, test, costs = dict(known.valid), dict(known.test), dict(known.costs)
    for place in folder.places(CONTROLS):
        name = place.partition("/")[2]
        tensors, meta = folder.read(place)
        valid[name], test[name] = tensors["valid"].float(), tensors["test"].float()
        costs[name] = MemberCost(meta["flops"], meta["params"], tuple(meta["reads"]))
    return LogitTable(valid, test, known.valid_labels, known.test_labels, costs)


def read_frontier(hold: Path, beside: Path, seed: int = 0) -> LogitTable:
    """The logits of benchmarks/frontier.py on CIFAR-10 with FRN, and those of the results folder with its modes."""
    known, spec = read_all(RunFolder(beside, writes=False)), spec_of("cifar10", "frn")
    logits = {name: load_file(hold / f"{file}.safetensors") for name, file in files_of(hold, seed).items()}
    valid, test = ({name: both[split].float() for name, both in logits.items()} for split in ("valid", "test"))
    costs = {name: cost_of(name, spec) for name in logits}
    return LogitTable(
        {**known.valid, **valid},
        {**known.test, **test},
        known.valid_labels,
        known.test_labels,
        {**known.costs, **costs},
    )
