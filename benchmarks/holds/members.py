"""Members of a hold by name: what they cost, where a results folder keeps them, and how they are read again."""

from __future__ import annotations

from functools import cache

import torch

from modebridge.bridges import choose_body
from modebridge.errors import ModebridgeError
from modebridge.evaluate import Answers, MemberCost, module_cost
from modebridge.members import parse_member
from modebridge.nets import ResNet, ResNetSpec
from modebridge.runs import RunFolder, read_answers

__all__ = ["CONTROLS", "cost_of", "kept_name", "kind_of", "part_cost", "read_all"]

CONTROLS = "controls"
"""Where members lie whose names recipes do not know, laid out as those in logits/."""


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
    """What a member of a hold costs, by its name."""
    if name.startswith(("mode", "curve", "distilled", "student")):
        part, reads = part_cost(spec), ()
    else:
        two = name.startswith("II")
        part = part_cost(spec, "II" if two else "I", 1 if "medium" in name else 2)
        reads = ("mode-0", "mode-1") if two else ("mode-1",) if name.startswith("I-1") else ("mode-0",)
    return MemberCost(part.flops, part.params, reads)


def kept_name(name: str) -> str:
    """The name of a member in results/: those that recipes know too are called as there.

    >>> kept_name("labels-0-small-b"), kept_name("other-0-1-small"), kept_name("student-4-mixup-1")
    ('labels-0-1-small-b', 'other-0-1-small', 'distilled-0')
    """
    students = {"student-4-mixup-1": "distilled-0", "student-labels-mixup-1": "student-labels"}
    return name.replace("labels-0-", "labels-0-1-") if name.startswith("labels-0-") else students.get(name, name)


def kind_of(name: str) -> str:
    """Under what a results folder keeps the logits of a member."""
    try:
        parse_member(name)
    except ModebridgeError:
        return CONTROLS
    return "logits"


def read_all(folder: RunFolder) -> Answers:
    """What all members of a results folder said, controls too."""
    known = read_answers(folder)
    valid, test, costs = dict(known.valid), dict(known.test), dict(known.costs)
    for place in folder.places(CONTROLS):
        name = place.partition("/")[2]
        tensors, meta = folder.read(place)
        valid[name], test[name] = tensors["valid"].float(), tensors["test"].float()
        costs[name] = MemberCost(meta["flops"], meta["params"], tuple(meta["reads"]))
    return Answers(valid, test, known.valid_labels, known.test_labels, costs)
