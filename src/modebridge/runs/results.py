"""The results of a run folder, read without data or network: its members' predictions, the main table, the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.members import (
    KINDS,
    ArtefactData,
    HeadsMember,
    Member,
    ModeMember,
    PointMember,
    base_epochs,
    members_of,
    nodes_behind,
    nodes_of,
    parse_member,
    row_plans,
)
from modebridge.recipes import Recipe
from modebridge.report import Agreement, PageData, Samples, StudyPart, StudyTable, page
from modebridge.runs.logits import SampleImages
from modebridge.runs.plan import GIVEN, doubts, find_recipe_of, recipe_in, setting_for
from modebridge.runs.store import RECIPE, RESULTS, RunFolder
from modebridge.scoring import CurvePoint, LogitTable, MemberCost, Row, accuracy, check_curve
from modebridge.training import Epoch


def main_rows(recipe: Recipe, answers: LogitTable, folder: Path | str = "FOLDER") -> list[Row]:
    """The table of a run: one network, then all rows whose members exist, in the order of their cost."""
    rows = row_plans(recipe)
    existing = [row for row in rows if set(row.members) <= set(answers.test)]
    for row in rows:
        if row not in existing and (row.family == rows[0].family or row.role in ("heads", "bridge")):
            raise ModebridgeError(
                f"Expected a finished run, but it has no members for {row.name}; finish it: "
                f"modebridge run --out {folder}."
            )
    scored = answers.score_rows(existing)
    return sorted(scored, key=lambda row: (row.role != "one", round(row.scores.cost.relative_flops, 2)))


def curve_warnings(recipe: Recipe, answers: LogitTable) -> list[str]:
    """Curves that are not low-loss on the validation split, one sentence each: they are poor bridge targets."""
    warnings: list[str] = []
    labels = answers.valid_labels
    for i, j in recipe.curves() if recipe.paper else ():
        point = PointMember(i, j)
        if point.name not in answers.valid:
            continue
        start, end = point.made_from(recipe)
        accuracies = [accuracy(answers.probabilities([m.name], "valid"), labels) for m in (start, point, end)]
        if warning := check_curve(accuracies[1], (accuracies[0] + accuracies[2]) / 2, len(labels)):
            warnings.append(f"Curve {i}-{j}: {warning}")
    return warnings


def read_answers(folder: RunFolder, *, planned: bool = False) -> LogitTable:
    """The predictions of the members of a run folder; if `planned`, without those that only studies have made.

    Members that do not belong to the present run are left out: those scored on other images, those made from modes
    that have been replaced, those of modes that the recipe no longer has, and those that it now makes from other
    members. So are damaged ones, and those that read a mode that is left out. `folder.damage` lists the damaged ones,
    `missing_members` those of the recipe that do not exist.
    """
    labels, labels_meta = folder.read("logits/labels")
    recipe = recipe_in(folder)
    if not labels:
        raise _unfinished(folder, "labels")
    found: dict[Member, ArtefactData] = {}
    for place in folder.places("logits"):
        kept = folder.read(place)
        if kept.tensors and "id" in kept.metadata and kept.metadata["scored_on"] == labels_meta["scored_on"]:
            with suppress(ModebridgeError):  # of a kind that this program does not know
                found[parse_member(place.partition("/")[2])] = kept
    ids = {member.name: meta["id"] for member, (_, meta) in found.items()}
    for member, (_, meta) in list(found.items()):
        replaced = any(ids.get(parent) != id for parent, id in meta["parents"].items())
        unread = any(read not in ids for read in meta["reads"])
        # Heads depend on the number of modes.
        needed = {one.name for one in member.made_from(recipe[0])} if recipe else set()
        foreign = recipe and (not member.belongs(recipe[0]) or meta["parents"].keys() not in (set(), needed))
        if replaced or unread or foreign or (planned and recipe and member not in members_of(recipe[0])):
            del found[member]
    if ModeMember(0) not in found:
        raise _unfinished(folder, ModeMember(0).name)
    order = sorted(found, key=lambda member: (KINDS.index(type(member)), member.name))
    return table_of({member: found[member] for member in order}, labels)


def table_of(found: Mapping[Member, ArtefactData], labels: Mapping[str, Tensor]) -> LogitTable:
    """The predictions and costs of members, from the artifacts of their logits."""
    return LogitTable(
        valid={member.name: logits["valid"] for member, (logits, _) in found.items()},
        test={member.name: logits["test"] for member, (logits, _) in found.items()},
        valid_labels=labels["valid"],
        test_labels=labels["test"],
        costs={
            member.name: MemberCost(meta["flops"], meta["params"], tuple(meta["reads"]), member.usable, member.alone)
            for member, (_, meta) in found.items()
        },
    )


def missing_members(folder: RunFolder, recipe: Recipe, answers: LogitTable) -> list[str]:
    """A sentence about the members of a recipe without predictions in a folder, apart from damaged ones."""
    names = [member.name for member in members_of(recipe)]
    names = [name for name in names if name not in answers.test and f"logits/{name}" not in folder.damage]
    said = "Left out because they have no predictions for this run"
    return [f"{said}: {', '.join(names)}; to create them: modebridge run --out {folder.path}"] if names else []


def _unfinished(folder: RunFolder, name: str) -> ModebridgeError:
    path, reason = folder.path, folder.damage.get(f"logits/{name}")
    recipe = f" {path / RECIPE}" if (path / RECIPE).is_file() else ""
    expected = f"'{path}' to hold a finished run, but it has no predictions of its members; run it first"
    if reason:
        expected = f"'{path / 'logits' / name}' to be intact, but it is damaged ({reason}); recreate it"
    return ModebridgeError(f"Expected {expected}: modebridge run{recipe} --out {path}")


def gather(folder: RunFolder, answers: LogitTable | None = None, rows: Sequence[Row] | None = None) -> PageData:
    """All content of the page of a finished run; predictions and table are made here unless the run has them."""
    recipe, seed = find_recipe_of(folder)
    answers = read_answers(folder) if answers is None else answers
    try:
        rows = main_rows(recipe, answers, folder.path) if rows is None else rows
    except ModebridgeError as error:
        raise ModebridgeError(" ".join([str(error), *folder.left_out()])) from error
    results = folder.record(RESULTS)
    existing = [member for member in members_of(recipe) if member.name in answers.test]
    trained = _trained(folder, recipe)
    kept = {f"{i}-{j}": folder.read(f"profiles/{i}-{j}")[0] for i, j in recipe.curves()}
    profiles = {name: tensors["points"] for name, tensors in kept.items() if tensors}
    return PageData(
        title=f"{recipe.name}, seed {seed}",
        rows=rows,
        answers=answers,
        classes=setting_for(recipe, seed, folder).facts.class_names,
        profiles={name: [CurvePoint(*row) for row in points.tolist()] for name, points in profiles.items()},
        samples=Samples(**shown) if (shown := folder.read(SampleImages(*recipe.curves()[0]).place).tensors) else None,
        heads=_of_heads(existing, recipe, answers),
        bridges=_of_bridges(existing, answers),
        training=training_of(folder, rows),
        metrics={kind: series for kind, some in trained.items() if (series := _epochs(some))},
        studies=_studies(folder),
        provenance=_provenance(recipe, seed, results, trained),
        recipe=(folder.path / RECIPE).read_text(encoding="utf-8"),
        # Last, after everything has been read.
        warnings=[
            *curve_warnings(recipe, answers),
            *doubts(folder),
            *missing_members(folder, recipe, answers),
            *folder.left_out(),
        ],
    )


def write_page(folder: RunFolder, data: PageData | None = None) -> Path:
    """Write RUN/report.html, with its content if that is already gathered, and return its path."""
    data = gather(folder) if data is None else data
    folder.write("report.html", page(data))
    return folder.path / "report.html"


def training_of(folder: RunFolder, rows: Sequence[Row]) -> dict[str, float]:
    """The work of training each row with all that it depends on, in epochs of one network."""
    recipe, seed = find_recipe_of(folder)
    if folder.record(GIVEN):
        return {}
    setting = setting_for(recipe, seed, folder)
    return {row.name: base_epochs([parse_member(name) for name in row.members], setting) for row in rows}


def _of_heads(members: Sequence[Member], recipe: Recipe, answers: LogitTable) -> Agreement:
    """The heads of the first member with several, each beside all modes."""
    first = next((one for one in members if isinstance(one, HeadsMember) and one.parts == ("others",)), None)
    if first is None:
        return Agreement({}, {})
    others = [k for k in range(recipe.modes) if k != first.i]
    heads = dict(zip(others, answers.heads(first.name), strict=True))
    targets = {f"mode {k}": answers.probabilities([ModeMember(k).name]) for k in range(recipe.modes)}
    return Agreement({f"head {k}": head.double().softmax(dim=-1) for k, head in heads.items()}, targets)


def _of_bridges(members: Sequence[Member], answers: LogitTable) -> Agreement:
    """Bridges beside the networks on curves that they imitate."""
    known = {one.name: one.imitates.name for one in members if one.imitates is not None}
    known = {name: target for name, target in known.items() if target in answers.test}
    targets = {name: answers.probabilities([name]) for name in dict.fromkeys(known.values())}
    return Agreement({name: answers.probabilities([name]) for name in known}, targets)


def _trained(folder: RunFolder, recipe: Recipe) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The metadata of every trained artifact by folder and name, in the order of training."""
    nodes = nodes_behind(nodes_of(members_of(recipe), recipe), recipe)
    kinds = dict.fromkeys(node.folder for node in nodes if node.trained)
    metas = {kind: {place.partition("/")[2]: folder.meta(place) for place in folder.places(kind)} for kind in kinds}
    return {kind: {name: meta for name, meta in some.items() if meta} for kind, some in metas.items()}


def _epochs(metas: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Epoch]]:
    return {name: [Epoch(**one) for one in meta["epochs"]] for name, meta in metas.items() if meta.get("epochs")}


def _studies(folder: RunFolder) -> list[StudyPart]:
    places = [file.relative_to(folder.path).as_posix() for file in sorted(folder.path.glob("studies/*/table.json"))]
    return [
        StudyPart(data["name"], data["about"], tuple(map(StudyTable.from_dict, data["tables"])), data["figure"])
        for place in places
        if (data := folder.record(place))
    ]


def _provenance(
    recipe: Recipe, seed: int, results: Mapping[str, Any], trained: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> dict[str, str]:
    facts = {"recipe": recipe.title, "seed": str(seed)}
    facts |= {key: str(results[key]) for key in ("made", "machine", "modebridge", "torch", "python") if key in results}
    if results.get("seconds"):
        facts["seconds"] = ", ".join(f"{stage} {taken:.0f}" for stage, taken in results["seconds"].items())
    for kind, some in trained.items():
        summaries = {name: f" ({meta['summary']})" if "summary" in meta else "" for name, meta in some.items()}
        if some:
            facts[f"{kind}, hashes"] = ", ".join(
                f"{name} {meta['bits'][:12]}{summaries[name]}" for name, meta in some.items()
            )
    return facts
