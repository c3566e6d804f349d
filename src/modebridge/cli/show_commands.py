"""The verbs that look: recipes, cost, report, advise."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table

from modebridge.cli.terminal import say, screen
from modebridge.errors import ModebridgeError
from modebridge.evaluate import Advice, Answers, Cost, CostConvention, advise, combination_cost, feature_shapes
from modebridge.members import Blueprint, Body, Member, members_of, row_plans
from modebridge.recipes import RECIPES, Recipe
from modebridge.report import page
from modebridge.runs import (
    RunFolder,
    blueprint_for,
    find_recipe_of,
    gather,
    machine,
    missing_members,
    read_answers,
    write_page,
)
from modebridge.runs.estimate import member_times, seconds_here, work_of
from modebridge.runs.manifest import write_whole

__all__ = [
    "advise_run",
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
            costs = [parts[convention].get(member.title, parts[convention][""]) for member in wanted]
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
            cells += [f"x{record['paper_flops']:.3f}", f"x{record['paper_params']:.3f}"]
        table.add_row(record["name"], *cells)
    console = screen()
    console.print(table)
    explained = "FLOPs and params in units of one network, truly counted (convolutions and matrix products)."
    if paper:
        explained += " [P]: as the paper counts, elementwise work too, bridges' parameters divided by three networks."
    console.print(explained)


def _parts(blueprint: Blueprint, small: Mapping[str, Body], convention: CostConvention) -> dict[str, Cost]:
    """The cost of each small member by its title, and of one network."""
    example = blueprint.example
    assert isinstance(example, torch.Tensor)
    net, image = blueprint.bare, tuple(example.shape[1:])
    features = feature_shapes(net, image, sorted({part.tap for part in small.values()}))
    costs = {"": combination_cost(net, image, 1, (), convention)}
    known: dict[str, Cost] = {}
    for title, part in small.items():
        described = repr(part.body)
        if described not in known:
            shapes = [features[part.tap]] * part.reads
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


def advise_run(path: Path, budget: float, by: str, as_json: bool) -> None:
    """The best combination under a budget, what it scores on the test split, and the front."""
    folder = existing(path)
    with naming_damage(folder):
        recipe, seed = find_recipe_of(folder)
        answers = read_answers(folder)
    missing = missing_members(folder, recipe, answers)
    for sentence in missing:
        say(sentence, style="yellow")
    advice = advise(answers, budget, _prices(answers, recipe, seed, by, folder))
    chosen = advice.chosen
    # After the choice, and only of what was chosen: the lowest of many validation scores flatters itself.
    one = next(name for name in chosen.members if not answers.costs[name].reads)
    tested, alone = answers.score(chosen.members, intervals=True), answers.score([one])
    if as_json:
        whole = advice.whole if math.isfinite(advice.whole) else None
        test = {"nll": tested.nll, "nll_interval": tested.nll_interval, "accuracy": tested.accuracy}
        record = {**asdict(advice), "whole": whole, "exact": advice.whole >= budget, "test": test}
        record["left_out"] = [*folder.left_out(), *missing]
        screen().print_data(record)
        return
    console = screen()
    unit = {"flops": "FLOPs", "params": "params", "time": "time"}[by]
    table = plain_table("", unit, "valid NLL", "valid ACC %", "members", text=(0, 4))
    for choice in advice.front:
        mark = "*" if choice == chosen else ""
        cells = (f"x{choice.cost:.3f}", f"{choice.nll:.4f}", f"{100 * choice.accuracy:.2f}")
        table.add_row(mark, *cells, " + ".join(choice.members))
    console.print(table)
    console.print(
        f"* Use {' + '.join(chosen.members)}: x{chosen.cost:.3f} {unit} of one network, validation NLL "
        f"{chosen.nll:.4f}, the lowest {'' if advice.whole >= budget else 'found '}within x{budget:g}. "
        + _looked_at(advice)
    )
    low, high = tested.nll_interval or (math.nan, math.nan)
    console.print(
        f"Chosen on the validation split ({len(answers.valid_labels)} images), whose NLL is therefore too good; on the "
        f"test split, which took no part in the choice, its NLL is {tested.nll:.4f} ({low:.4f} to {high:.4f}), "
        f"accuracy {100 * tested.accuracy:.2f} %; {one} alone has NLL {alone.nll:.4f}, accuracy "
        f"{100 * alone.accuracy:.2f} %."
    )


def _looked_at(advice: Advice) -> str:
    """How far the front is the true one."""
    if math.isinf(advice.whole):
        return f"All {advice.looked_at:,} combinations were looked at."
    beyond = (
        f"up to x{advice.whole:g}, beyond it the best that a beam search found" if advice.whole else "by beam search"
    )
    return f"{advice.looked_at:,} combinations were looked at: {'all ' if advice.whole else ''}{beyond}."


def _prices(answers: Answers, recipe: Recipe, seed: int, by: str, folder: RunFolder) -> dict[str, float] | None:
    """What each member adds to the cost; None for FLOPs, the library's own."""
    if by == "flops":
        return None
    if by == "params":
        unit = next(cost.params for cost in answers.costs.values() if not cost.reads)
        return {name: cost.params / unit for name, cost in answers.costs.items()}
    if by != "time":
        raise ModebridgeError(f"Expected --by to be flops, params or time, but got '{by}'; choose one.")
    say("Timing every member on this machine ...")
    times = member_times(blueprint_for(recipe, seed, folder), list(answers.costs))
    if folder.writes:
        folder.files.write({"times.json": json.dumps({"relative": times, "batch": 64, **machine()}, indent=1)})
    else:
        say(f"'{folder.path}' is read-only: these times are not kept for its page.", style="yellow")
    return times


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
