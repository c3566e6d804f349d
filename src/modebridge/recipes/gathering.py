"""What the page shows, read out of a run folder; needs neither the data set nor a network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modebridge.data.sets import CLASS_NAMES
from modebridge.errors import ModebridgeError
from modebridge.evaluate import CurvePoint
from modebridge.recipes.answering import read_answers
from modebridge.recipes.config import Recipe
from modebridge.recipes.elastic import elastic_lines
from modebridge.recipes.extras import read_json, read_metrics_of, read_studies, read_times, stages_of
from modebridge.recipes.folder import RunFolder, write_whole
from modebridge.recipes.members import bridge, mode, point
from modebridge.recipes.scoring import curve_warnings, main_rows
from modebridge.recipes.settings import read_toml
from modebridge.report import PageData, Row, Samples, page, summary

__all__ = ["find_recipe_of", "gather", "write_page"]


def find_recipe_of(folder: RunFolder) -> tuple[Recipe, int]:
    """The recipe and seed that a run folder was made with."""
    file = folder.path / "recipe.toml"
    if not file.is_file():
        raise ModebridgeError(
            f"Expected '{folder.path}' to be a run folder, but it has no recipe.toml; "
            f"make one: modebridge run --out {folder.path}"
        )
    return read_toml(file)


def gather(folder: RunFolder, rows: Sequence[Row] | None = None) -> PageData:
    """Everything that the page of a run folder shows; needs neither the data set nor a network.

    Args:
        folder: of a finished run.
        rows: its table, where it was just made; None makes it again.
    """
    recipe, seed = find_recipe_of(folder)
    answers = read_answers(folder)
    rows = main_rows(recipe, answers) if rows is None else rows
    results = read_json(folder.path / "results.json")
    studies, lost = read_studies(folder.path)
    used = {name for row in rows for name in row.members}
    used |= {read for name in used for read in answers.costs[name].reads}
    i, j = recipe.curves()[0]
    samples, _ = folder.read("samples", f"{i}-{j}")
    reader = bridge("I", i, j, recipe.sizes[0]).name
    classes = answers.test[mode(0).name].shape[-1]
    return PageData(
        title=f"{recipe.name}, seed {seed}",
        about=recipe.about,
        summary=summary(rows),
        rows=rows,
        warnings=[*curve_warnings(recipe, answers), *lost],
        answers=answers,
        classes=CLASS_NAMES.get(recipe.data.name, [str(k) for k in range(classes)]),
        profiles=_read_profiles(folder, recipe),
        samples=Samples(
            samples["images"],
            samples["numbers"],
            (mode(i).name, mode(j).name),
            point(i, j).name,
            reader,
        )
        if samples and reader in answers.test
        else None,
        metrics=read_metrics_of(folder.path),
        studies=studies,
        provenance=_provenance(folder, recipe, seed, results),
        recipe=(folder.path / "recipe.toml").read_text(encoding="utf-8"),
        times=read_times(folder.path, used),
        elastic=elastic_lines(answers, rows),
    )


def write_page(folder: RunFolder, rows: Sequence[Row] | None = None) -> Path:
    """Write RUN/report.html and say where it is; the arguments are those of `gather`.

    The trade-off curves go to RUN/elastic.json too.
    """
    place = folder.path / "report.html"
    data = gather(folder, rows)
    lines = {name: [asdict(point) for point in points] for name, points in data.elastic.items()}
    write_whole(folder.path / "elastic.json", json.dumps(lines, indent=1))
    write_whole(place, page(data))
    return place


def _read_profiles(folder: RunFolder, recipe: Recipe) -> dict[str, list[CurvePoint]]:
    found = {}
    for i, j in recipe.curves():
        tensors, _ = folder.read("profiles", f"{i}-{j}")
        if tensors:
            found[f"{i}-{j}"] = [CurvePoint(*row) for row in tensors["points"].tolist()]
    return found


def _provenance(folder: RunFolder, recipe: Recipe, seed: int, results: Mapping[str, Any]) -> dict[str, str]:
    found = {"recipe": f"{recipe.name}: {recipe.about}", "seed": str(seed)}
    for key in ("made", "machine", "modebridge", "torch", "python"):
        if key in results:
            found[key] = str(results[key])
    timed = read_json(folder.path / "times.json")
    if timed:
        where = ", ".join(str(timed.get(key, "")) for key in ("machine", "made"))
        found["times measured on"] = f"{where}, batches of {timed.get('batch', '')}"
    stages = stages_of(results)
    if stages:
        found["seconds"] = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in stages.items())
    for kind in ("modes", "aligned", "curves", "bridges"):
        hashes = []
        for name in folder.names(kind):
            meta = folder.meta(kind, name)
            said = f" ({meta['said']})" if "said" in meta else ""
            hashes.append(f"{name} {str(meta.get('hash', ''))[:12]}{said}")
        if hashes:
            found[kind] = ", ".join(hashes)
    return found
