"""Members of a hold by name: what they cost, where a results folder keeps them, and how they are read again."""

from __future__ import annotations

from modebridge.errors import ModebridgeError
from modebridge.evaluate import Answers, MemberCost
from modebridge.nets import ResNetSpec
from modebridge.recipes.costs import part_cost
from modebridge.recipes.folder import RunFolder
from modebridge.recipes.members import Member
from modebridge.recipes.reading import read_answers

__all__ = ["CONTROLS", "cost_of", "kept_name", "kind_of", "read_all"]

CONTROLS = "controls"
"""Where members lie whose names recipes do not know, laid out as those in logits/."""


def cost_of(name: str, spec: ResNetSpec) -> MemberCost:
    """What a member of a hold costs, by its name."""
    if name.startswith(("mode", "curve")):
        part, reads = part_cost(spec), ()
    else:
        two = name.startswith("II")
        part = part_cost(spec, "II" if two else "I", 1 if "medium" in name else 2)
        reads = ("mode-0", "mode-1") if two else ("mode-1",) if name.startswith("I-1") else ("mode-0",)
    return MemberCost(part.flops, part.params, reads)


def kept_name(name: str) -> str:
    """The name of a member in results/: label controls are called after a pair, as those of recipes are.

    >>> kept_name("labels-0-small-b"), kept_name("other-0-1-small")
    ('labels-0-1-small-b', 'other-0-1-small')
    """
    return name.replace("labels-0-", "labels-0-1-") if name.startswith("labels-0-") else name


def kind_of(name: str) -> str:
    """Under what a results folder keeps the logits of a member."""
    try:
        Member.parse(name)
    except ModebridgeError:
        return CONTROLS
    return "logits"


def read_all(folder: RunFolder) -> Answers:
    """What all members of a results folder said, controls too."""
    known = read_answers(folder)
    valid, test, costs = dict(known.valid), dict(known.test), dict(known.costs)
    for name in folder.names(CONTROLS):
        tensors, meta = folder.read(CONTROLS, name)
        valid[name], test[name] = tensors["valid"].float(), tensors["test"].float()
        costs[name] = MemberCost(meta["flops"], meta["params"], tuple(meta["reads"]))
    return Answers(valid, test, known.valid_labels, known.test_labels, costs)
