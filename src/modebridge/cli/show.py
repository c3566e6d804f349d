"""The verbs that train nothing: recipes, cost, report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from modebridge.cli.terminal import Screen, note, say
from modebridge.errors import ModebridgeError
from modebridge.files.atomic import write_file
from modebridge.members import Member, Setting, SmallNetwork, members_of, parse_member, row_plans
from modebridge.recipes import RECIPES, Recipe
from modebridge.report import page, plain_table
from modebridge.runs import RunFolder, find_recipe_of, gather, missing_members, setting_for, write_page
from modebridge.scoring import Cost, combination_cost, feature_shapes

__all__ = ["existing", "list_recipes", "naming_damage", "report_run", "show_cost"]

NEEDS = {
    "digits": "none",
    "cifar10": "CIFAR-10, 180 MB",
    "cifar100": "CIFAR-100, 180 MB",
    "tin200": "Tiny ImageNet, 480 MB",
    "in1k": "ImageNet, 150 GB",
}


def list_recipes(*, as_json: bool) -> None:
    """List every recipe with what it trains and the data it needs."""
    records: list[dict[str, Any]] = [
        {
            "name": recipe.name,
            "about": recipe.about,
            "data": NEEDS[recipe.data.name],
            "modes": recipe.modes,
            "curves": len(recipe.curves()),
            "bridges": sum(bool(member.reads) for member in members_of(recipe)),
        }
        for recipe in RECIPES.values()
    ]
    console = Screen()
    if as_json:
        console.print_data(records)
        return
    table = plain_table("recipe", "modes", "curves", "bridges", "data needed", text=(0, 4))
    for record in records:
        table.add_row(*(str(record[key]) for key in ("name", "modes", "curves", "bridges", "data")))
    console.print(table)
    console.print(
        "digits and recipes ending in -bn use batch norm, the others filter response norm. To run one: "
        "modebridge run RECIPE --data DIR, where DIR holds the official files of the data set."
    )


def show_cost(recipe: Recipe, *, paper: bool, as_json: bool) -> None:
    """Print FLOPs and parameters of every kind of member and of the rows of the results table."""
    note("Counting FLOPs and parameters ...")
    setting = setting_for(recipe)
    # The cost of a cascade depends on the images.
    first, *others = [row for row in row_plans(recipe) if row.average_cost is None]
    small = {member.title: member for member in members_of(recipe) if member.reads}
    sets = {first.name: first.members, **{f"one {title}": (member.name,) for title, member in small.items()}}
    sets |= {row.name: row.members for row in others}
    members = {name: parse_member(name) for names in sets.values() for name in names}
    counted = {name: member.cost(setting) for name, member in members.items()}
    printed = _paper_costs(setting, small) if paper else {}
    unit = setting.base_cost
    records: list[dict[str, Any]] = []
    for name, names in sets.items():
        flops, params = sum(counted[one].flops for one in names), sum(counted[one].params for one in names)
        relative = {"relative_flops": flops / unit.flops, "relative_params": params / unit.params}
        records.append({"name": name, "flops": flops, "params": params, **relative})
        # It is unknown how the paper counted other kinds of networks.
        if paper and not any(members[one].alone for one in names):
            parts = [printed.get(members[one].title, printed[""]) for one in names]
            records[-1]["paper_flops"] = sum(part.relative_flops for part in parts)
            records[-1]["paper_params"] = sum(part.relative_params for part in parts)
    console = Screen()
    if as_json:
        console.print_data(records)
        return
    extra = ["FLOPs[P]", "params[P]"] if paper else []
    table = plain_table(f"{recipe.name} {recipe.norm}", "M MACs", "M params", "FLOPs", "params", *extra)
    for record in records:
        cells = [f"{record['flops'] / 1e6:,.1f}", f"{record['params'] / 1e6:,.2f}"]
        keys = ("relative_flops", "relative_params", *(("paper_flops", "paper_params") if paper else ()))
        table.add_row(record["name"], *cells, *(f"x{record[key]:.3f}" if key in record else "" for key in keys))
    console.print(table)
    explained = "FLOPs and params: multiples of one network, counted over convolutions and matrix products."
    if paper:
        explained += " [P]: as in the paper, with elementwise work, and bridge parameters divided by three networks."
    console.print(explained)


def _paper_costs(setting: Setting, small: Mapping[str, Member]) -> dict[str, Cost]:
    """The cost of each small member by title, and of one network under "", as the paper counts."""
    example = setting.example
    assert isinstance(example, torch.Tensor)
    net, image = setting.bare, tuple(example.shape[1:])
    bodies = {title: member.chosen(setting) for title, member in small.items() if isinstance(member, SmallNetwork)}
    features = feature_shapes(net, image, sorted({tap for part in bodies.values() for tap in part.taps}))
    costs = {"": combination_cost(net, image, 1, (), "paper")}
    for title, part in bodies.items():
        shapes = [features[tap] for tap in part.taps] * len(part.reads)
        costs[title] = combination_cost(net, image, 0, [(part.body, shapes)], "paper")
    return costs


def report_run(path: Path, out: Path | None = None) -> None:
    """Regenerate the report of a run folder, there or elsewhere, and print its path."""
    folder = existing(path)
    if out is None and not folder.writes:
        raise ModebridgeError(
            f"Expected to write the report to '{path}', but the folder is read-only; choose a path with --out FILE."
        )
    note("Drawing the figures of the report ...")
    with folder.alone(), naming_damage(folder):
        data = gather(folder)
        if out is None:
            out = write_page(folder, data)
        else:
            out = out / "report.html" if out.is_dir() else out
            write_file(out, page(data))
        Screen().print(f"Report: {out}", soft_wrap=True)
        for sentence in missing_members(folder, find_recipe_of(folder)[0], data.answers):
            say(sentence, style="yellow")


def existing(path: Path) -> RunFolder:
    """Open the run folder at a path, for writing if permitted."""
    if not (path / "recipe.toml").exists():
        raise ModebridgeError(
            f"Expected '{path}' to be a run folder, but it has no recipe.toml; create one: modebridge run --out {path}"
        )
    return RunFolder(path)


@contextmanager
def naming_damage(folder: RunFolder) -> Iterator[None]:
    """On exit, warn about damaged files in a folder that were skipped, also after an error."""
    try:
        yield
    finally:
        for sentence in folder.left_out():
            say(sentence, style="yellow")
