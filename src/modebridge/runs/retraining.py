"""What a run will train again although its folder has it, and why: other settings, or other parents than before."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from modebridge.members import Setting
from modebridge.runs.plan import Plan, Stage, Store

__all__ = ["trained_again"]

NAMED = 6
"""How many artefacts are named for each reason."""
SHORT = 20
"""Values of more characters are not shown."""


def trained_again(plan: Plan, store: Store, setting: Setting, given: Collection[str]) -> str:
    """A sentence about existing artefacts that will be trained again; empty if there are none.

    Args:
        plan: the graph of the run.
        store: what exists.
        setting: determines what artefacts are made from now.
        given: places of modes that are passed in instead.
    """
    names: dict[str, list[str]] = {}
    again: set[str] = set()
    for stage in plan.stages.values():  # parents before their children
        meta = store.meta(stage.artefact.place)
        if not stage.artefact.trained or not meta or stage.is_in(store):
            continue
        again.add(stage.artefact.place)
        if stage.artefact.place in given:
            continue
        reason = _reason(stage, meta, store, setting, again)
        names.setdefault(reason, []).append(f"{stage.artefact.step()} {stage.artefact.name}")
    if not names:
        return ""
    groups = [
        ", ".join(group[:NAMED]) + (f" and {len(group) - NAMED} more" if group[NAMED:] else "") + f" ({reason})"
        for reason, group in names.items()
    ]
    return f"These exist, but will be trained again: {'; '.join(groups)}."


def _reason(stage: Stage, meta: Mapping[str, Any], store: Store, setting: Setting, again: Collection[str]) -> str:
    if "from" in meta:
        return "given by --modes before"
    then = meta.get("ingredients", {})
    now = json.loads(json.dumps(stage.artefact.ingredients(setting), default=str))  # as it would be read
    changes = [_change(name, then.get(name), now.get(name)) for name in sorted({*then, *now})]
    if any(changes):
        return ", ".join(filter(None, changes))
    made_from = meta.get("inputs", {})
    parents = [
        place
        for place in dict.fromkeys((*stage.parents, *made_from))
        if place in again or place not in stage.parents or made_from.get(place) != store.meta(place).get("hash")
    ]
    shown = ", ".join(parents[:NAMED]) + (" ..." if parents[NAMED:] else "")
    return f"made from another {shown}" if parents else "by an earlier version"


def _change(name: str, then: object, now: object) -> str:
    if then == now:
        return ""
    shown = ["none" if value is None else str(value) for value in (then, now)]
    return name if max(map(len, shown)) > SHORT else f"{name} {shown[0]} -> {shown[1]}"
