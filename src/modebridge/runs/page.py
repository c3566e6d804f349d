"""The content of the page, read from a run folder; needs neither the data set nor a network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modebridge.errors import ModebridgeError
from modebridge.members import Node, members_of
from modebridge.recipes import Recipe
from modebridge.report import PageData, Samples, StudyPart, StudyTable, as_dicts, markdown_table, page, summary
from modebridge.runs.local import machine
from modebridge.runs.plan import facts_for, find_recipe_of
from modebridge.runs.results import curve_warnings, main_rows, missing_members, read_answers
from modebridge.runs.run import Run
from modebridge.runs.store import RECIPE, RESULTS, RunFolder
from modebridge.scoring import CurvePoint, LogitTable, Row
from modebridge.training import Epoch

__all__ = ["gather", "write_page", "write_results"]


def gather(folder: RunFolder, answers: LogitTable | None = None, rows: Sequence[Row] | None = None) -> PageData:
    """All content of the page of a run folder; needs neither the data set nor a network.

    Args:
        folder: the folder of a finished run.
        answers: its members' predictions, if the run holds them; None reads them.
        rows: its table, if already computed; None computes it.
    """
    recipe, seed = find_recipe_of(folder)
    answers = read_answers(folder) if answers is None else answers
    rows = _rows(folder, recipe, answers) if rows is None else rows
    results = folder.record(RESULTS)
    imitators = [member for member in members_of(recipe) if member.imitates is not None and member.name in answers.test]
    targets = dict.fromkeys(member.imitates.name for member in imitators if member.imitates is not None)
    return PageData(
        title=f"{recipe.name}, seed {seed}",
        rows=rows,
        answers=answers,
        classes=facts_for(recipe, folder).class_names,
        profiles=_read_profiles(folder, recipe),
        samples=_samples(folder, recipe, answers),
        imitators=[member.name for member in imitators],
        targets=[name for name in targets if name in answers.test],
        metrics=_metrics(folder, recipe),
        studies=_studies(folder),
        provenance=_provenance(folder, recipe, seed, results),
        recipe=(folder.path / RECIPE).read_text(encoding="utf-8"),
        # Last, after everything has been read.
        warnings=[
            *curve_warnings(recipe, answers),
            *missing_members(folder, recipe, answers),
            *folder.left_out(),
        ],
    )


def write_page(folder: RunFolder, data: PageData | None = None) -> Path:
    """Write RUN/report.html and return its path.

    Args:
        folder: the folder of a finished run.
        data: the content, if already gathered.
    """
    data = gather(folder) if data is None else data
    folder.write("report.html", page(data))
    return folder.path / "report.html"


def write_results(run: Run, folder: RunFolder) -> dict[str, Any]:
    """Write results.md, results.json and the page of a finished run, unless the folder is read-only; returns a record.

    If nothing has changed, results.json keeps its time and machine.
    """
    recipe, before = folder.path / RECIPE, folder.record(RESULTS)
    record: dict[str, Any] = {
        "recipe": run.recipe.name,
        "seed": run.seed,
        "rows": as_dicts(run.rows),
        "warnings": run.warnings,
        "summary": summary(run.rows, run.table.guess_nll),
        "settings": recipe.read_text(encoding="utf-8") if recipe.is_file() else "",
    }
    changed = bool(run.trained) or any(
        before.get(key) != value for key, value in json.loads(json.dumps(record)).items()
    )
    record["trained"] = run.trained
    record["seconds"] = run.seconds if run.trained else before.get("seconds", {})
    record |= machine()
    if folder.writes:
        folder.write("results.md", "\n\n".join([markdown_table(run.rows), *run.warnings, record["summary"]]) + "\n")
        if changed:
            folder.write_record(RESULTS, record)
        write_page(folder, gather(folder, run.table, run.rows))
        folder.tidy()
    return record


def _rows(folder: RunFolder, recipe: Recipe, answers: LogitTable) -> list[Row]:
    try:
        return main_rows(recipe, answers)
    except ModebridgeError as error:
        raise ModebridgeError(" ".join([str(error), *folder.left_out()])) from error


def _samples(folder: RunFolder, recipe: Recipe, answers: LogitTable) -> Samples | None:
    """The stored test images with the first bridge that reads one network, and the network that it imitates."""
    member = next((one for one in members_of(recipe) if one.imitates is not None and len(one.reads) == 1), None)
    target = member.imitates if member is not None else None
    ends = target.made_from(recipe) if target is not None else ()
    if member is None or target is None or len(ends) != 2:
        return None
    i, j = recipe.curves()[0]
    tensors, _ = folder.read(f"samples/{i}-{j}")
    start, end, imitated, bridge = (one.name for one in (*ends, target, member))
    if not tensors or not {start, end, imitated, bridge} <= set(answers.test):
        return None
    return Samples(tensors["images"], tensors["numbers"], (start, end), imitated, bridge)


def _read_profiles(folder: RunFolder, recipe: Recipe) -> dict[str, list[CurvePoint]]:
    profiles = {}
    for i, j in recipe.curves():
        points = folder.read(f"profiles/{i}-{j}")[0].get("points")
        if points is not None:
            profiles[f"{i}-{j}"] = [CurvePoint(*row) for row in points.tolist()]
    return profiles


def _metrics(folder: RunFolder, recipe: Recipe) -> dict[str, dict[str, Sequence[Epoch]]]:
    """The epochs of every trained artefact, by folder and name, in the order of training."""
    series: dict[str, dict[str, Sequence[Epoch]]] = {}
    for kind in _trained(recipe):
        for place in folder.places(kind):
            epochs = [Epoch(**epoch) for epoch in folder.meta(place).get("epochs", ())]
            if epochs:
                series.setdefault(kind, {})[place.partition("/")[2]] = epochs
    return series


def _studies(folder: RunFolder) -> list[StudyPart]:
    places = [file.relative_to(folder.path).as_posix() for file in sorted(folder.path.glob("studies/*/table.json"))]
    return [
        StudyPart(data["name"], data["about"], tuple(map(StudyTable.from_dict, data["tables"])), data["figure"])
        for place in places
        if (data := folder.record(place))
    ]


def _provenance(folder: RunFolder, recipe: Recipe, seed: int, results: Mapping[str, Any]) -> dict[str, str]:
    facts = {"recipe": f"{recipe.name}: {recipe.about}", "seed": str(seed)}
    for key in ("made", "machine", "modebridge", "torch", "python"):
        if key in results:
            facts[key] = str(results[key])
    if results.get("seconds"):
        facts["seconds"] = ", ".join(f"{stage} {taken:.0f}" for stage, taken in results["seconds"].items())
    for kind in _trained(recipe):
        hashes = []
        for place in folder.places(kind):
            meta = folder.meta(place)
            summary = f" ({meta['summary']})" if "summary" in meta else ""
            hashes += [f"{place.partition('/')[2]} {str(meta['bits'])[:12]}{summary}"] if meta else []
        if hashes:
            facts[kind] = ", ".join(hashes)
    return facts


def _trained(recipe: Recipe) -> list[str]:
    """The folders of what a recipe trains, parents first."""
    folders: dict[str, None] = {}

    def add(node: Node) -> None:
        for parent in node.parents(recipe):
            add(parent)
        if node.trained:
            folders[node.folder] = None

    for member in members_of(recipe):
        for node in member.nodes(recipe):
            add(node)
    return list(folders)
