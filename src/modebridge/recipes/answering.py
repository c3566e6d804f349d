"""Ask every member about the held-out images, once, and keep what it said."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from modebridge import trees
from modebridge.bridges import Bridge, choose_body
from modebridge.evaluate import Answers, Cost, MemberCost, accuracy, module_cost, nll
from modebridge.modes import Mode
from modebridge.nets import Tapped, skeleton
from modebridge.recipes.costs import kind_of_body, part_cost
from modebridge.recipes.folder import key_of
from modebridge.recipes.members import Member, mode
from modebridge.recipes.workshop import Workshop
from modebridge.types import Batches

__all__ = ["answers_of"]


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
    labels = {split: workshop.feeds.labels(split) for split in ("valid", "test")}
    said = _ask(workshop, missing, networks, bridges) if missing else {}
    found |= said
    for member in wanted:
        cost, tensors = costs[member.name], found[member.name] or {}
        notes: dict[str, Any] = {
            "flops": cost.flops,
            "params": cost.params,
            "reads": cost.reads,
            "id": ids[member.name],
            "scored_on": scored_on,
            # What it was made from, so that a reader can tell when a mode has been replaced since.
            "parents": {mode(k).name: modes[k].id for k in member.parents},
        }
        if member.name in said:
            notes["scores"] = _scores(tensors, labels)
        # Of answers that were there the notes are written again where they are not these.
        workshop.maker.keep("logits", member.name, keys[member.name], tensors, notes)
    # Last, so that labels are there only where answers are.
    workshop.maker.keep("logits", "labels", key_of("labels", scored_on), labels, {"scored_on": scored_on})
    workshop.engine.processes.wait()
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
    costs: dict[str, MemberCost] = {}
    for member in members:
        part = _cost(workshop, member)
        costs[member.name] = MemberCost(part.flops, part.params, tuple(mode(k).name for k in member.reads))
    return costs


def _cost(workshop: Workshop, member: Member) -> Cost:
    spec, images = workshop.network.spec, workshop.feeds.few()
    bridge = (kind_of_body(member), workshop.recipe.slim(member.size)) if member.is_bridge else ()
    if spec is not None:
        return part_cost(spec, *bridge)
    if not bridge:
        return module_cost(workshop.net, images)
    chosen = choose_body(workshop.net, images, bridge[0], slim=bridge[1])
    return Cost(chosen.flops, chosen.params, 1.0, 1.0)
