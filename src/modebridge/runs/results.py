"""The results of a run: its members' predictions, read from the folder, the main table, and whether curves are good."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.members import KINDS, Member, ModeMember, PointMember, members_of, parse_member, row_plans
from modebridge.recipes import Recipe
from modebridge.runs.plan import recipe_in
from modebridge.runs.store import RECIPE, RunFolder
from modebridge.scoring import LogitTable, MemberCost, Row, accuracy, check_curve

__all__ = ["belongs", "cost_in", "curve_warnings", "main_rows", "missing_members", "read_answers"]


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
        start, end = point.made_from(recipe)
        accuracies = [accuracy(answers.probabilities([m.name], "valid"), labels) for m in (start, point, end)]
        check = check_curve(accuracies[1], (accuracies[0] + accuracies[2]) / 2, len(labels))
        if not check.low_loss:
            warnings.append(f"Curve {i}-{j}: {check.sentence}")
    return warnings


def read_answers(folder: RunFolder) -> LogitTable:
    """The predictions of the members of a run folder.

    Members that do not belong to the present run are left out: those scored on other images, those made from modes
    that have been replaced, those of modes that the recipe no longer has, and those that it now makes from other
    members. So are damaged ones, and those that read a mode that is left out. `folder.damage` lists the damaged ones,
    `missing_members` those of the recipe that do not exist.
    """
    labels, labels_meta = folder.read("logits/labels")
    recipe = recipe_in(folder)
    if not labels:
        raise _unfinished(folder, "labels")
    found: dict[Member, tuple[Mapping[str, Tensor], Mapping[str, Any]]] = {}
    for place in folder.places("logits"):
        tensors, meta = folder.read(place)
        if tensors and "id" in meta and meta["scored_on"] == labels_meta["scored_on"]:
            with suppress(ModebridgeError):  # of a kind that this program does not know
                found[parse_member(place.partition("/")[2])] = tensors, meta
    ids = {member.name: meta["id"] for member, (_, meta) in found.items()}
    for member, (_, meta) in list(found.items()):
        replaced = any(ids.get(parent) != id for parent, id in meta["parents"].items())
        unread = any(read not in ids for read in meta["reads"])
        if replaced or unread or (recipe is not None and not belongs(member, meta["parents"], recipe[0])):
            del found[member]
    if ModeMember(0) not in found:
        raise _unfinished(folder, ModeMember(0).name)
    order = sorted(found, key=lambda member: (KINDS.index(type(member)), member.name))
    return LogitTable(
        valid={member.name: found[member][0]["valid"] for member in order},
        test={member.name: found[member][0]["test"] for member in order},
        valid_labels=labels["valid"],
        test_labels=labels["test"],
        costs={member.name: cost_in(member, found[member][1]) for member in order},
    )


def belongs(member: Member, parents: Collection[str], recipe: Recipe) -> bool:
    """Whether a recipe can have a member made from exactly these members: heads depend on the number of modes."""
    if not member.belongs(recipe):
        return False
    return not parents or set(parents) == {parent.name for parent in member.made_from(recipe)}


def cost_in(member: Member, meta: Mapping[str, Any]) -> MemberCost:
    """The cost of a member, from the metadata of its logits."""
    return MemberCost(meta["flops"], meta["params"], tuple(meta["reads"]), member.usable, member.alone)


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
