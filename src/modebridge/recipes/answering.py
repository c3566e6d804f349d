"""Ask every member about the held-out images, once, and keep what it said."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from modebridge import trees
from modebridge.bridges import Bridge
from modebridge.errors import ModebridgeError
from modebridge.evaluate import Answers, MemberCost, accuracy, nll
from modebridge.modes import Mode
from modebridge.nets import Tapped, skeleton
from modebridge.recipes.costs import kind_of_body, part_cost
from modebridge.recipes.folder import RunFolder, key_of
from modebridge.recipes.members import Member, mode
from modebridge.recipes.settings import read_toml
from modebridge.recipes.workshop import Workshop
from modebridge.types import Batches

__all__ = ["answers_of", "read_answers"]


def answers_of(workshop: Workshop, members: Sequence[Member]) -> Answers:
    """The logits of members on the validation and test splits: from the folder, or asked now.

    Args:
        workshop: makes the members.
        members: which; the modes that bridges read are added.
    """
    wanted = list(dict.fromkeys([*members, *(mode(k) for member in members for k in member.reads)]))
    modes = workshop.modes(sorted({k for member in wanted for k in (member.i, member.j) if k >= 0}))
    networks: dict[str, Mode] = {mode(k).name: found for k, found in modes.items()}
    networks |= workshop.points([member for member in wanted if member.kind == "curve"])
    bridges = workshop.bridges([member for member in wanted if member.is_bridge])
    ids = {name: found.id for name, found in networks.items()}
    ids |= {name: key_of(trees.fingerprint(found.state_dict()), found.reads) for name, found in bridges.items()}
    scored_on = workshop.feeds.scored_on
    keys = {name: key_of("logits", name, identity, scored_on) for name, identity in ids.items()}
    workshop.engine.processes.wait()
    found = {name: workshop.maker.find("logits", name, key) for name, key in keys.items()}
    missing = [member for member in wanted if found[member.name] is None]
    # All processes have looked before the first of them writes.
    workshop.engine.processes.wait()
    costs = _costs(workshop, wanted)
    splits = workshop.feeds.splits
    labels = {"valid": splits.valid.labels.cpu(), "test": splits.test.labels.cpu()}
    said = _ask(workshop, missing, networks, bridges) if missing else {}
    for member in missing:
        cost = costs[member.name]
        notes: dict[str, Any] = {
            "flops": cost.flops,
            "params": cost.params,
            "reads": cost.reads,
            "id": ids[member.name],
            "scored_on": scored_on,
            # What it was made from, so that a reader can tell when a mode has been replaced since.
            "parents": {mode(k).name: modes[k].id for k in (member.i, member.j) if k >= 0 and member.kind != "mode"},
            "scores": _scores(said[member.name], labels),
        }
        workshop.maker.keep("logits", member.name, keys[member.name], said[member.name], notes)
    # Last, so that labels are there only where answers are.
    workshop.maker.keep("logits", "labels", key_of("labels", scored_on), labels, {"scored_on": scored_on})
    workshop.engine.processes.wait()
    found |= said
    return Answers(
        valid={member.name: (found[member.name] or {})["valid"] for member in wanted},
        test={member.name: (found[member.name] or {})["test"] for member in wanted},
        valid_labels=labels["valid"],
        test_labels=labels["test"],
        costs=costs,
    )


def _scores(said: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> dict[str, float]:
    """A member alone, before calibration: for whoever looks into its meta.json."""
    found: dict[str, float] = {}
    for split, logits in said.items():
        table = logits.double().softmax(dim=-1)
        found |= {f"{split}_accuracy": accuracy(table, labels[split]), f"{split}_nll": nll(table, labels[split])}
    return found


def read_answers(folder: RunFolder) -> Answers:
    """What the members of a run folder said, without its data set and without running anything.

    Members that do not belong to the present run are left out: damaged ones, those asked about other images, those made
    from modes that have been replaced, and those of modes that the recipe no longer has.
    """
    labels, noted = folder.read("logits", "labels")
    found: dict[str, tuple[Mapping[str, Tensor], Mapping[str, Any]]] = {}
    for name in folder.names("logits"):
        tensors, meta = folder.read("logits", name)
        whole = tensors and meta.get("hash", "") == trees.fingerprint(tensors)
        if whole and name != "labels" and meta.get("scored_on") == noted.get("scored_on"):
            found[name] = (tensors, meta)
    ids = {name: meta["id"] for name, (_, meta) in found.items()}
    file = folder.path / "recipe.toml"
    modes = read_toml(file)[0].modes if file.is_file() else sys.maxsize
    for name in list(found):
        member, parents = Member.parse(name), found[name][1].get("parents", {})
        if max(member.i, member.j) >= modes or any(ids.get(parent) != own for parent, own in parents.items()):
            del found[name]
    if not labels or mode(0).name not in found:
        raise ModebridgeError(
            f"Expected '{folder.path}' to hold a finished run, but it has no answers of its members; run it first: "
            f"modebridge run{' ' + str(file) if file.is_file() else ''} --out {folder.path}"
        )
    # Modes first, then curves, then bridges, as tables list them.
    kinds = ("mode", "curve", "I", "II", "labels")
    order = sorted(found, key=lambda name: (kinds.index(Member.parse(name).kind), name))
    return Answers(
        valid={name: trees.wide(found[name][0]["valid"]) for name in order},
        test={name: trees.wide(found[name][0]["test"]) for name in order},
        valid_labels=labels["valid"].long(),
        test_labels=labels["test"].long(),
        costs={
            name: MemberCost(found[name][1]["flops"], found[name][1]["params"], tuple(found[name][1]["reads"]))
            for name in order
        },
    )


@torch.no_grad()
def _ask(
    workshop: Workshop, members: Sequence[Member], networks: Mapping[str, Mode], bridges: Mapping[str, Bridge]
) -> dict[str, dict[str, Tensor]]:
    """One pass over each split; a network runs once a batch, however many bridges read it."""
    device = workshop.engine.device
    names = {member.name for member in members}
    asked = {name: bridge.to(device) for name, bridge in bridges.items() if name in names}
    readers = {mode(k).name for member in members for k in member.reads}
    tapped = Tapped(skeleton(workshop.net).to(device), sorted({bridge.tap for bridge in asked.values()}))
    states = {
        name: tapped.state_of(found.to(device).state)
        for name, found in networks.items()
        if name in names or name in readers
    }
    by_id = {found.id: name for name, found in networks.items()}

    total = len(workshop.feeds.valid()) + len(workshop.feeds.test())
    batches_done: list[int] = []
    begin = time.perf_counter()

    def logits(batches: Batches) -> dict[str, Tensor]:
        said: dict[str, list[Tensor]] = {name: [] for name in names}
        for images, _ in batches:
            heard = {name: tapped.run(state, images) for name, state in states.items()}
            for name in names & heard.keys():
                said[name].append(trees.wide(heard[name][0]).cpu())
            batches_done.append(len(images))
            rate = sum(batches_done) / max(time.perf_counter() - begin, 1e-9)
            workshop.maker.tell("scores", len(batches_done), total, rate)
            for name, bridge in asked.items():
                features = [heard[by_id[source]][1][bridge.tap] for source in bridge.reads]
                said[name].append(trees.wide(bridge(*features)).cpu())
        return {name: torch.cat(parts) for name, parts in said.items()}

    valid, test = logits(workshop.feeds.valid()), logits(workshop.feeds.test())
    for bridge in asked.values():
        bridge.cpu()
    return {name: {"valid": valid[name], "test": test[name]} for name in names}


def _costs(workshop: Workshop, members: Sequence[Member]) -> dict[str, MemberCost]:
    spec, recipe = workshop.net.spec, workshop.recipe
    costs: dict[str, MemberCost] = {}
    for member in members:
        bridge = (kind_of_body(member), recipe.slim(member.size)) if member.is_bridge else ()
        part = part_cost(spec, *bridge)
        costs[member.name] = MemberCost(part.flops, part.params, tuple(mode(k).name for k in member.reads))
    return costs
