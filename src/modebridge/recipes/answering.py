"""Ask every member about the held-out images, once, and keep what it said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modebridge import trees
from modebridge.bridges import Bridge
from modebridge.errors import ModebridgeError
from modebridge.evaluate import Answers, MemberCost, feature_shapes, module_cost
from modebridge.modes import Mode
from modebridge.nets import Tapped, skeleton
from modebridge.recipes.folder import RunFolder, key_of
from modebridge.recipes.members import Member, mode
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
    modes = workshop.modes(sorted({member.i for member in wanted if member.kind == "mode"}))
    networks: dict[str, Mode] = {mode(k).name: found for k, found in modes.items()}
    networks |= workshop.points([member for member in wanted if member.kind == "curve"])
    bridges = workshop.bridges([member for member in wanted if member.is_bridge])
    ids = {name: found.id for name, found in networks.items()}
    ids |= {name: key_of(trees.fingerprint(found.state_dict()), found.reads) for name, found in bridges.items()}
    keys = {name: key_of("logits", name, identity, workshop.feeds.scored_on) for name, identity in ids.items()}
    found = {name: workshop.maker.find("logits", name, key) for name, key in keys.items()}
    missing = [member for member in wanted if found[member.name] is None]
    if missing:
        said = _ask(workshop, missing, networks, bridges)
        costs = _costs(workshop, networks, bridges)
        for member in missing:
            cost = costs[member.name]
            notes = {"flops": cost.flops, "params": cost.params, "reads": cost.reads, "id": ids[member.name]}
            workshop.maker.keep("logits", member.name, keys[member.name], said[member.name], notes)
        workshop.engine.processes.wait()
        found |= said
    labels = _labels(workshop)
    costs = _costs(workshop, networks, bridges)
    return Answers(
        valid={member.name: (found[member.name] or {})["valid"] for member in wanted},
        test={member.name: (found[member.name] or {})["test"] for member in wanted},
        valid_labels=labels["valid"],
        test_labels=labels["test"],
        costs={member.name: costs[member.name] for member in wanted},
    )


def read_answers(folder: RunFolder) -> Answers:
    """What the members of a run folder said, without its data set and without running anything."""
    labels, _ = folder.read("logits", "labels")
    if not labels:
        raise ModebridgeError(
            f"Expected '{folder.path}' to hold a finished run, but it has no logits; "
            f"run it first: modebridge run --out {folder.path}"
        )
    tensors: dict[str, Mapping[str, Tensor]] = {}
    costs: dict[str, MemberCost] = {}
    for name in folder.names("logits"):
        found, meta = folder.read("logits", name)
        if name == "labels" or not found:
            continue
        tensors[name] = found
        costs[name] = MemberCost(meta["flops"], meta["params"], tuple(meta["reads"]))
    # Modes first, then curves, then bridges, as tables list them.
    order = sorted(
        tensors, key=lambda name: (["mode", "curve", "I", "II", "labels"].index(Member.parse(name).kind), name)
    )
    return Answers(
        valid={name: tensors[name]["valid"].float() for name in order},
        test={name: tensors[name]["test"].float() for name in order},
        valid_labels=labels["valid"].long(),
        test_labels=labels["test"].long(),
        costs={name: costs[name] for name in order},
    )


def _labels(workshop: Workshop) -> dict[str, Tensor]:
    splits = workshop.feeds.splits
    labels = {"valid": splits.valid.labels.cpu(), "test": splits.test.labels.cpu()}
    workshop.maker.keep("logits", "labels", key_of("labels", workshop.feeds.scored_on), labels, {})
    return labels


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

    def logits(batches: Batches) -> dict[str, Tensor]:
        said: dict[str, list[Tensor]] = {name: [] for name in names}
        for images, _ in batches:
            heard = {name: tapped.run(state, images) for name, state in states.items()}
            for name in names & heard.keys():
                said[name].append(heard[name][0].float().cpu())
            for name, bridge in asked.items():
                features = [heard[by_id[source]][1][bridge.tap] for source in bridge.reads]
                said[name].append(bridge(*features).float().cpu())
        return {name: torch.cat(parts) for name, parts in said.items()}

    valid, test = logits(workshop.feeds.valid()), logits(workshop.feeds.test())
    for bridge in asked.values():
        bridge.cpu()
    return {name: {"valid": valid[name], "test": test[name]} for name in names}


def _costs(workshop: Workshop, networks: Mapping[str, Mode], bridges: Mapping[str, Bridge]) -> dict[str, MemberCost]:
    spec = workshop.net.spec
    base = module_cost(workshop.net, spec.image)
    costs = {name: MemberCost(base.flops, base.params) for name in networks}
    shapes = feature_shapes(workshop.net, spec.image, sorted({bridge.tap for bridge in bridges.values()}))
    by_id = {found.id: name for name, found in networks.items()}
    known: dict[tuple[Any, ...], tuple[float, int]] = {}
    for name, bridge in bridges.items():
        # Counting is a pass of its own: once for each size and type.
        key = (bridge.kind, tuple(tuple(p.shape) for p in bridge.parameters()))
        if key not in known:
            found = module_cost(_body(bridge), *[shapes[bridge.tap]] * len(bridge.reads))
            known[key] = (found.flops, found.params)
        costs[name] = MemberCost(*known[key], tuple(by_id[source] for source in bridge.reads))
    return costs


def _body(bridge: Bridge) -> nn.Module:
    return bridge.body
