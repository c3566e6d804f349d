"""The verbs that look: recipes, cost, report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table

from modebridge.cli.terminal import say, screen
from modebridge.errors import ModebridgeError
from modebridge.evaluate import Cost, CostConvention, combination_cost, feature_shapes
from modebridge.members import Blueprint, Body, Member, members_of, row_plans
from modebridge.recipes import RECIPES, Recipe
from modebridge.report import page
from modebridge.runs import (
    RunFolder,
    blueprint_for,
    find_recipe_of,
    gather,
    missing_members,
    write_page,
)
from modebridge.runs.estimate import seconds_here, work_of
from modebridge.runs.manifest import write_whole

__all__ = [
    "existing",
    "list_recipes",
    "naming_damage",
    "plain_table",
    "report_run",
    "show_cost",
    "span",
]

NEEDS = {
    "digits": "none",
    "cifar10": "CIFAR-10, 180 MB",
    "cifar100": "CIFAR-100, 180 MB",
    "tin200": "Tiny ImageNet, 480 MB",
    "in1k": "ImageNet, 150 GB",
}


def plain_table(*columns: str, text: tuple[int, ...] = (0,)) -> Table:
    """A table that fits 80 columns; `text` are the columns of words, which may be folded, the others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for k, column in enumerate(columns):
        table.add_column(
            column, justify="left" if k in text else "right", no_wrap=k not in text, overflow="fold", ratio=None
        )
    return table


def list_recipes(*, estimate: bool, as_json: bool) -> None:
    """Every recipe with what it trains and the data it needs; where asked, its work and how long that takes here."""
    recipes = [replace(make(), name=name) for name, make in RECIPES.items()]
    records: list[dict[str, Any]] = [
        {
            "name": recipe.name,
            "about": recipe.about,
            "data": NEEDS[recipe.data.name],
            "modes": recipe.modes,
            "curves": len(recipe.curves()),
            "bridges": sum(bool(member.reads) for member in members_of(recipe)),
        }
        for recipe in recipes
    ]
    if estimate:
        say("Counting the work and timing a few steps ...")
        seconds = seconds_here(recipes)
        for record, recipe in zip(records, recipes, strict=True):
            record |= {"petaflop": 2 * sum(work_of(recipe).values()) / 1e15, "seconds": seconds[recipe.name]}
    if as_json:
        screen().print_data(records)
        return
    more = ["PFLOP", "here"] if estimate else []
    table = plain_table("recipe", "modes", "curves", "bridges", *more, "data needed", text=(0, 4 + len(more)))
    for record in records:
        cells = [str(record[key]) for key in ("modes", "curves", "bridges")]
        if estimate:
            work = f"{record['petaflop']:,.3f}" if record["petaflop"] < 1 else f"{record['petaflop']:,.0f}"
            cells += [work, span(record["seconds"])]
        table.add_row(record["name"], *cells, record["data"])
    console = screen()
    console.print(table)
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU cores"
    explained = (
        f"PFLOP: of training everything. Here: an estimate for {where}, from a few steps timed now; compilation, "
        "reading and scoring come on top. "
        if estimate
        else "How long each takes here: modebridge recipes --estimate. "
    )
    console.print(
        f"{explained}Names ending in -bn have batch norm, the others filter response norm. "
        "Run one: modebridge run RECIPE --data DIR, DIR holding the set's official files."
    )


def span(seconds: float) -> str:
    """A time in the unit that people would use."""
    for unit, size in (("years", 31557600.0), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def show_cost(recipe: Recipe, *, paper: bool, as_json: bool) -> None:
    """FLOPs and parameters of every kind of member and of the rows of the results table, from architectures alone."""
    blueprint = blueprint_for(recipe)
    small = {member.title: member for member in members_of(recipe) if member.reads}
    plans: list[tuple[str, list[Member]]] = [(f"one {title}", [member]) for title, member in small.items()]
    # What a cascade costs depends on the images.
    rows = [(plan.name, list(plan.members)) for plan in row_plans(recipe) if plan.average_cost is None]
    plans = [*rows[:1], *plans, *rows[1:]]
    conventions: list[CostConvention] = ["counted", "paper"] if paper else ["counted"]
    # Costs add up: each part is counted once, however many rows it is in.
    bodies = {title: body for title, member in small.items() if (body := member.body(blueprint)) is not None}
    parts = {convention: _parts(blueprint, bodies, convention) for convention in conventions}
    records: list[dict[str, Any]] = []
    for name, wanted in plans:
        record: dict[str, Any] = {"name": name}
        for convention in conventions:
            if convention == "paper" and any(member.alone for member in wanted):
                continue  # how the paper counted networks of another kind is not known
            costs = [
                _of_another_network(member, blueprint)
                if member.alone
                else parts[convention].get(member.title, parts[convention][""])
                for member in wanted
            ]
            flops, params = sum(part.relative_flops for part in costs), sum(part.relative_params for part in costs)
            if convention == "paper":
                record |= {"paper_flops": flops, "paper_params": params}
            else:
                record |= {"flops": sum(part.flops for part in costs), "params": sum(part.params for part in costs)}
                record |= {"relative_flops": flops, "relative_params": params}
        records.append(record)
    if as_json:
        screen().print_data(records)
        return
    extra = ["FLOPs[P]", "params[P]"] if paper else []
    table = plain_table(f"{recipe.name} {recipe.norm}", "M MACs", "M params", "FLOPs", "params", *extra)
    for record in records:
        cells = [f"{record['flops'] / 1e6:,.1f}", f"{record['params'] / 1e6:,.2f}"]
        cells += [f"x{record['relative_flops']:.3f}", f"x{record['relative_params']:.3f}"]
        if paper:
            known = "paper_flops" in record
            cells += [f"x{record[key]:.3f}" if known else "" for key in ("paper_flops", "paper_params")]
        table.add_row(record["name"], *cells)
    console = screen()
    console.print(table)
    explained = "FLOPs and params in units of one network, truly counted (convolutions and matrix products)."
    if paper:
        explained += " [P]: as the paper counts, elementwise work too, bridges' parameters divided by three networks."
    console.print(explained)


def _of_another_network(member: Member, blueprint: Blueprint) -> Cost:
    """The cost of a member that is another network than the recipe's."""
    counted, unit = member.cost(blueprint), blueprint.base_cost
    return Cost(counted.flops, counted.params, counted.flops / unit.flops, counted.params / unit.params)


def _parts(blueprint: Blueprint, small: Mapping[str, Body], convention: CostConvention) -> dict[str, Cost]:
    """The cost of each small member by its title, and of one network."""
    example = blueprint.example
    assert isinstance(example, torch.Tensor)
    net, image = blueprint.bare, tuple(example.shape[1:])
    features = feature_shapes(net, image, sorted({tap for part in small.values() for tap in part.taps}))
    costs = {"": combination_cost(net, image, 1, (), convention)}
    known: dict[str, Cost] = {}
    for title, part in small.items():
        described = repr(part.body)
        if described not in known:
            shapes = [features[tap] for tap in part.taps] * part.reads
            known[described] = combination_cost(net, image, 0, [(part.body, shapes)], convention)
        costs[title] = known[described]
    return costs


def report_run(path: Path, out: Path | None = None) -> None:
    """Write the page of a run folder again, there or elsewhere, and say where it is."""
    folder = existing(path)
    if out is None and not folder.writes:
        raise ModebridgeError(
            f"Expected to write the page to '{path}', but the folder is read-only; choose a place with --out FILE."
        )
    with folder.alone(), naming_damage(folder):
        data = gather(folder)
        if out is None:
            out = write_page(folder, data)
        else:
            out = out / "report.html" if out.is_dir() else out
            write_whole(out, page(data))
        screen().print(f"Report: {out}", soft_wrap=True)
        for sentence in missing_members(folder, find_recipe_of(folder)[0], data.answers):
            say(sentence, style="yellow")


def existing(path: Path) -> RunFolder:
    """The run folder at a path, to read and, where that is allowed, to write."""
    if not any((path / name).exists() for name in ("recipe.toml", "manifest.json")):
        raise ModebridgeError(
            f"Expected '{path}' to be a run folder, but it has no recipe.toml; make one: modebridge run --out {path}"
        )
    return RunFolder(path)


@contextmanager
def naming_damage(folder: RunFolder) -> Iterator[None]:
    """Name what is not whole in a folder and therefore was left out, whether the rest was enough or not."""
    try:
        yield
    finally:
        for sentence in folder.left_out():
            say(sentence, style="yellow")
