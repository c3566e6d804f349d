"""The verbs that train nothing: recipes, cost, report, advise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from modebridge.cli.terminal import Screen, note, program, warn
from modebridge.errors import ModebridgeError, plural
from modebridge.files.atomic import write_file
from modebridge.members import Member, Setting, SmallNetwork, members_of, parse_member, row_plans
from modebridge.nets.flops import feature_shapes
from modebridge.recipes import RECIPES, Recipe
from modebridge.report import page, plain_table
from modebridge.runs import (
    RunFolder,
    absent_weights,
    existing,
    find_recipe_of,
    gather,
    missing_members,
    read_answers,
    setting_for,
    write_page,
)
from modebridge.runs.plan import doubts
from modebridge.scoring import FEW, Cost, Scored, advise, combination_cost

NEEDS = {
    "digits": "none",
    "cifar10": "CIFAR-10, 180 MB",
    "cifar100": "CIFAR-100, 180 MB",
    "tin200": "Tiny ImageNet, 480 MB",
    "in1k": "ImageNet, 150 GB",
}


def list_recipes() -> None:
    """List every recipe with what it trains and the data it needs."""
    records: list[dict[str, Any]] = [
        {
            "name": recipe.name,
            "about": recipe.about,
            "data": NEEDS[recipe.data.name],
            "networks": recipe.modes,
            "methods": ", ".join(recipe.methods),
        }
        for recipe in RECIPES.values()
    ]
    console = Screen()
    if console.print_data(records):
        return
    table = plain_table("recipe", "networks", "methods", "data needed", text=(0, 2, 3))
    for record in records:
        table.add_row(*(str(record[key]) for key in ("name", "networks", "methods", "data")))
    console.print(table)
    console.print(
        "digits and recipes ending in -bn use batch norm, the others filter response norm. To run one: "
        "modebridge run RECIPE --data DIR, where DIR holds the official files of the data set. For your own recipe see "
        "examples/my_recipe.py."
    )


def show_cost(recipe: Recipe, *, paper: bool) -> None:
    """Print FLOPs and parameters of every kind of member and of the rows of the results table."""
    note("Counting FLOPs and parameters ...")
    setting = setting_for(recipe)
    # The cost of a cascade depends on the images.
    first, *others = [row for row in row_plans(recipe) if row.average_cost is None]
    small = {member.title: member for member in members_of(recipe) if member.reads}
    sets = {first.name: first.members, **{title: (member.name,) for title, member in small.items()}}
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
    if console.print_data(records):
        return
    extra = ["cost[P]", "params[P]"] if paper else []
    norm = f" {recipe.norm}" if setting.network.spec is not None else ""  # others have their own
    table = plain_table(f"{recipe.name}{norm}", "M multiply-adds", "M params", "cost", "params", *extra)
    for record in records:
        millions = [record[key] / 1e6 for key in ("flops", "params")]
        cells = [f"{one:,.2f}" for one in millions]
        keys = ("relative_flops", "relative_params", *(("paper_flops", "paper_params") if paper else ()))
        table.add_row(record["name"], *cells, *(f"x{record[key]:.3f}" if key in record else "" for key in keys))
    console.print(table)
    console.print("Cost: multiply-adds of convolutions and matrix products. Cost and params: multiples of one network.")
    if paper:
        console.print("[P]: as in the paper, with elementwise work, and bridge parameters divided by three networks.")


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
        if not Screen().print_data({"report": str(out)}):
            Screen().print(f"Page: {out}", soft_wrap=True)
        warn(*missing_members(folder, find_recipe_of(folder)[0], data.answers))


def advise_run(
    path: Path, budget: float, cost_unit: str, cascades: bool = False, max_loss: float | None = None
) -> None:
    """Print the best combination for a budget, smaller ones, and its test score."""
    folder = existing(path)
    note("Reading the predictions of all members ...")
    with naming_damage(folder):
        recipe, _ = find_recipe_of(folder)
        table = read_answers(folder, planned=True)
    missing = missing_members(folder, recipe, table)
    warn(*missing, *doubts(folder))
    if max_loss is not None and not 0 < max_loss < 100:
        raise ModebridgeError(f"Expected --max-loss to be between 0 and 100 percent, but got {max_loss}; try 0.5.")
    prices = None  # in FLOPs
    if cost_unit == "params":
        one_network = next(cost.params for cost in table.costs.values() if not cost.reads)
        prices = {name: cost.params / one_network for name, cost in table.costs.items()}
    elif cost_unit != "flops":
        raise ModebridgeError(f"Expected --cost-unit to be flops or params, but got '{cost_unit}'; choose one.")
    note(f"Comparing combinations of {plural(len(table.costs), 'member')} on the validation split ...")
    advice = advise(table, budget, prices, cascades=cascades, max_loss=None if max_loss is None else max_loss / 100)
    chosen = advice.chosen
    # The test split is used after the choice and only for it: the lowest of many validation scores is optimistic.
    tested = table.score(chosen.members, threshold=chosen.threshold, intervals=True)
    absent = absent_weights(folder, recipe, chosen.members)
    threshold = "" if chosen.threshold is None else f" --threshold {chosen.threshold:.8g}"
    command = f"{program()} export {path} {recipe.name}.onnx --members {','.join(chosen.members)}{threshold}"
    export = f"Next: {command}"
    if absent:
        export = (
            f"It cannot be exported from '{path}', which has its logits but not the weights in {', '.join(absent)}; "
            "`modebridge run` with the folder's recipe.toml and --out OTHER trains it (other weights, other scores)."
        )
    console = Screen()
    record = {
        "chosen": {**chosen.to_dict(), "cost": advice.cost(chosen)},
        "by_size": [{**choice.to_dict(), "cost": advice.cost(choice)} for choice in advice.by_size],
        "looked_at": advice.looked_at,
        "exact": advice.exact,
        "optimism": advice.optimism,
        "test": tested.to_dict(),
        "export": None if absent else command,
        "left_out": [*folder.left_out(), *missing],
    }
    if console.print_data(record):
        warn(*([export] if absent else []))
        return
    cascade = chosen.threshold is not None
    unit, use = {"flops": "cost", "params": "params"}[cost_unit], _described(chosen, recipe)
    one = next(name for name, cost in table.costs.items() if not cost.reads and not cost.alone)
    first, alone = in_words([one], recipe), table.score([one], "valid")
    lines = plain_table("", unit, "ACC %", "NLL", f"minus {first}", "members", text=(0, 5))
    best = [choice for choice in (*advice.by_size, advice.cascade) if choice is not None]
    shown = {(choice.members, choice.threshold): choice for choice in (alone, *best, chosen)}
    for key, choice in sorted(shown.items(), key=lambda item: advice.cost(item[1])):
        mark = "*" if key == (chosen.members, chosen.threshold) else ""
        cells = [f"x{advice.cost(choice):.3f}", f"{100 * choice.accuracy:.2f}", f"{choice.nll:.4f}", ""]
        if found := choice.intervals.get("gain"):
            cells[-1] = f"{choice.nll - alone.nll:+.3f} [{-found[1]:+.3f} to {-found[0]:+.3f}]"
        lines.add_row(mark, *cells, _described(choice, recipe))
    console.print(lines)
    nothing, few = chosen.members == (one,), len(table.valid_labels) < FEW
    why = f"significantly better than {first}, with the most members that nothing at their cost or less beats"
    if cascade:
        why = "significantly better than every choice without a cascade"
    elif len(chosen.members) == 1:
        why = "the lowest NLL at that cost, and nothing larger is significantly better"
    use += " of the images" if cascade else ""
    price = f"x{advice.cost(chosen):.3f}{' on average' if cascade else ''}, budget x{budget:g}"
    console.print(f"* Use {use} ({price}): {why}, on {plural(len(table.valid_labels), 'validation image')}.")
    if few:
        hint = ": pass more, or choose yourself with `export --members`" if nothing else ""
        console.print(f"So few images can tell only large differences apart{hint}.")
    if max_loss is not None:
        kept = f"Its accuracy is at most {max_loss:g} % of the images below that of all members (95 % confidence)."
        none = advice.refused or "none within the budget has a lower NLL."
        console.print(kept if cascade else f"No cascade that loses at most {max_loss:g} % of the images: {none}")
    alone, (low, high) = table.score([one]), tested.intervals["nll"]
    beside = "" if nothing else f"; {first} has {alone.nll:.4f} and {100 * alone.accuracy:.2f} %"
    console.print(
        f"Its NLL on the test images, which played no part in the choice, is {tested.nll:.4f} ({low:.4f} to "
        f"{high:.4f}), its accuracy {100 * tested.accuracy:.2f} %{beside}."
    )
    more = "" if advice.cascade or max_loss is not None else " --cascades compares cascades too."
    console.print(
        f"{'All ' if advice.exact else ''}{advice.looked_at:,} combinations were compared, the best of each size is "
        f"shown; the lowest validation NLL of so many looks about {advice.optimism:.4f} too low.{more}",
        style="dim",
    )
    console.print(export, soft_wrap=True)


def in_words(names: Sequence[str], recipe: Recipe | None = None) -> str:
    """Members for people to read: as in the table of the recipe, if they are one of its rows.

    >>> in_words(["mode-0", "I-0-1-small", "I-0-2-small"])
    'mode 0 + 2 x bridge I small'
    >>> in_words(["mode-0", "heads-0-others-small"], RECIPES["digits"])
    'one network + 3 heads'
    """
    for row in row_plans(recipe) if recipe is not None else ():
        if set(row.members) == set(names) and row.average_cost is None:
            return row.name
    titles = Counter(parse_member(name).title for name in names)
    return " + ".join(title if count == 1 else f"{count} x {title}" for title, count in titles.items())


def _described(choice: Scored, recipe: Recipe) -> str:
    """The members of a choice; for a cascade, with the share of images on which the further members run."""
    if choice.threshold is None:
        return in_words(choice.members, recipe)
    first, others = in_words(choice.members[:1], recipe), in_words(choice.members[1:])
    return f"{first}, then {others} for {100 * choice.deferred_share:.0f} %"


@contextmanager
def naming_damage(folder: RunFolder) -> Iterator[None]:
    """On exit, warn about damaged files in a folder that were skipped, also after an error."""
    try:
        yield
    finally:
        warn(*folder.left_out())
