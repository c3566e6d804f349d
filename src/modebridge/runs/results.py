"""The results of a run: its members' predictions, read from the folder, the main table, and whether curves are good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.members import KINDS, Member, ModeMember, PointMember, members_of, parse_member, row_plans
from modebridge.recipes import Recipe
from modebridge.runs.plan import recipe_in
from modebridge.runs.store import RECIPE, RunFolder
from modebridge.scoring import LogitTable, MemberCost, Row, accuracy, judge_curve

__all__ = ["curve_warnings", "main_rows", "missing_members", "read_answers"]


def main_rows(recipe: Recipe, answers: LogitTable) -> list[Row]:
    """The table of a run: deep ensembles first, then the rows of every kind of member whose members all exist."""
    rows = row_plans(recipe)
    existing = [row for row in rows if set(row.members) <= set(answers.test)]
    for row in rows:
        if row not in existing and (row.family == rows[0].family or row.role == "bridge"):
            raise ModebridgeError(
                f"Expected a finished run, but it has no members for {row.name}; finish it: "
                "modebridge run --out FOLDER."
            )
    return answers.score_rows(existing)


def curve_warnings(recipe: Recipe, answers: LogitTable) -> list[str]:
    """Curves that are not low-loss on the validation split, one sentence each: they are poor bridge targets."""
    warnings: list[str] = []
    labels = answers.valid_labels
    for i, j in recipe.curves():
        point = PointMember(i, j)
        if point.name not in answers.valid:
            continue
        start, end = point.ancestors
        accuracies = [accuracy(answers.probabilities([m.name], "valid"), labels) for m in (start, point, end)]
        check = judge_curve(accuracies[1], (accuracies[0] + accuracies[2]) / 2, len(labels))
        if not check.low_loss:
            warnings.append(f"Curve {i}-{j}: {check.sentence}")
    return warnings


class _Odd(Exception):  # noqa: N818 - a finding, caught here
    """A file is intact, but does not hold what it should: files can also be written by hand."""


@dataclass(frozen=True)
class _MemberLogits:
    """The logits of a member, with their metadata."""

    member: Member
    valid: Tensor
    test: Tensor
    cost: MemberCost
    id: str
    parents: Mapping[str, str]


def read_answers(folder: RunFolder) -> LogitTable:
    """The predictions of the members of a run folder.

    Members that do not belong to the present run are left out: those scored on other images, those made from modes
    that have been replaced, those of modes that the recipe no longer has, and those that it now makes from other
    members. So are damaged ones, and those that read a mode that is left out. `folder.damage` lists the damaged ones,
    `missing_members` those of the recipe that do not exist.
    """
    labels, labels_meta = folder.read("logits/labels")
    recipe = recipe_in(folder)
    if labels:
        try:
            _check_labels(labels)
        except _Odd as damage:
            folder.damage["logits/labels"] = str(damage)
    if not labels or "logits/labels" in folder.damage:
        raise _unfinished(folder, "labels")
    logits_of: dict[str, _MemberLogits] = {}
    for place in folder.places("logits"):
        name = place.partition("/")[2]
        tensors, meta = folder.read(place)
        if name == "labels" or not tensors or meta.get("scored_on") != labels_meta.get("scored_on"):
            continue
        try:
            logits_of[name] = _member_logits(name, tensors, meta, labels)
        except _Odd as damage:
            folder.damage[f"logits/{name}"] = str(damage)
    first = ModeMember(0).name
    classes = logits_of[first].test.shape[-1] if first in logits_of else 0
    for name, entry in list(logits_of.items()):
        other = [size for size in (entry.valid.shape[-1], entry.test.shape[-1]) if size != classes]
        if other:
            folder.damage[f"logits/{name}"] = f"Expected {classes} classes, like mode-0, but got {other[0]}"
            del logits_of[name]
    ids = {name: entry.id for name, entry in logits_of.items()}
    for name, entry in list(logits_of.items()):
        replaced = any(ids.get(parent) != id for parent, id in entry.parents.items())
        unread = any(read not in logits_of for read in entry.cost.reads)
        if replaced or unread or (recipe is not None and not _belongs(entry, recipe[0])):
            del logits_of[name]
    if first not in logits_of:
        raise _unfinished(folder, first)
    most = max(int(labels[split].max()) for split in ("valid", "test"))
    if most >= classes:
        folder.damage["logits/labels"] = f"there is a label {most}, but the members have classes up to {classes - 1}"
        raise _unfinished(folder, "labels")
    order = sorted(logits_of, key=lambda name: (KINDS.index(type(logits_of[name].member)), name))
    return LogitTable(
        valid={name: logits_of[name].valid for name in order},
        test={name: logits_of[name].test for name in order},
        valid_labels=labels["valid"].long(),
        test_labels=labels["test"].long(),
        costs={name: logits_of[name].cost for name in order},
    )


def _belongs(entry: _MemberLogits, recipe: Recipe) -> bool:
    """Whether a recipe can have a member made from exactly these members: heads depend on the number of modes."""
    if not entry.member.belongs(recipe):
        return False
    return not entry.parents or set(entry.parents) == {member.name for member in entry.member.made_from(recipe)}


def missing_members(folder: RunFolder, recipe: Recipe, answers: LogitTable) -> list[str]:
    """A sentence about the members of a recipe without predictions in a folder, apart from damaged ones."""
    names = [member.name for member in members_of(recipe)]
    names = [name for name in names if name not in answers.test and f"logits/{name}" not in folder.damage]
    if not names:
        return []
    return [
        f"Left out because they have no predictions for this run: {', '.join(names)}; to create them: "
        f"modebridge run --out {folder.path}"
    ]


def _member_logits(
    name: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], labels: Mapping[str, Tensor]
) -> _MemberLogits:
    """The predictions of a member, if they are valid: files can also be edited by hand."""
    try:
        member = parse_member(name)
    except ModebridgeError:
        raise _Odd("no known kind of member has such a name") from None
    for split in ("valid", "test"):
        logits, split_labels = tensors.get(split), labels[split]
        valid = logits is not None and logits.is_floating_point() and logits.ndim in (2, 3)
        if logits is None or not valid or logits.shape[-2] != len(split_labels):
            got = "none" if logits is None else f"{logits.dtype} of {tuple(logits.shape)}"
            raise _Odd(f"Expected {len(split_labels)} rows of {split} logits, one per label, but got {got}")
    flops, params, reads = meta.get("flops"), meta.get("params"), meta.get("reads")
    identity, parents = meta.get("id"), meta.get("parents", {})
    if not isinstance(flops, int | float) or not isinstance(params, int) or min(flops, params) < 0:
        raise _Odd("meta.json lacks its cost")
    if not isinstance(reads, list) or not isinstance(identity, str) or not isinstance(parents, dict):
        raise _Odd("meta.json lacks what it reads, its id or its parents")
    cost = MemberCost(flops, params, tuple(str(read) for read in reads), member.usable, member.alone)
    return _MemberLogits(member, trees.wide(tensors["valid"]), trees.wide(tensors["test"]), cost, identity, parents)


def _check_labels(labels: Mapping[str, Tensor]) -> None:
    for split in ("valid", "test"):
        numbers = labels.get(split)
        fractional = numbers is not None and (numbers.is_floating_point() or numbers.is_complex())
        if numbers is None or fractional or numbers.ndim != 1 or not len(numbers):
            got = "none" if numbers is None else f"{numbers.dtype} of {tuple(numbers.shape)}"
            raise _Odd(f"Expected integers for {split} labels, one per image, but got {got}")
        if int(numbers.min()) < 0:
            raise _Odd(f"Expected {split} labels of at least 0, but got {int(numbers.min())}")


def _unfinished(folder: RunFolder, name: str) -> ModebridgeError:
    reason = folder.damage.get(f"logits/{name}")
    file = folder.path / RECIPE
    run = f"modebridge run{' ' + str(file) if file.is_file() else ''} --out {folder.path}"
    if reason:
        return ModebridgeError(
            f"Expected '{folder.path / 'logits' / name}' to be intact, but it is damaged ({reason}); recreate it: {run}"
        )
    return ModebridgeError(
        f"Expected '{folder.path}' to hold a finished run, but it has no predictions of its members; run it first: "
        f"{run}"
    )
