"""`modebridge advise`: the best members for a cost budget, and the command to export them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

from modebridge.cli.show import existing, naming_damage
from modebridge.cli.terminal import Screen, note, say
from modebridge.errors import ModebridgeError, plural
from modebridge.report import plain_table
from modebridge.runs import (
    RunFolder,
    absent_weights,
    effort_of,
    find_recipe_of,
    given_modes_of,
    missing_members,
    read_answers,
    setting_for,
)
from modebridge.scoring import Scored, advise

__all__ = ["advise_run"]


def advise_run(
    path: Path,
    budget: float,
    *,
    cost_unit: str,
    cascades: bool,
    max_epochs: float | None,
    trained_modes: int | None,
    as_json: bool,
) -> None:
    """Print the best combination for a budget, smaller ones, and its test score."""
    folder = existing(path)
    note("Reading the predictions of all members ...")
    with naming_damage(folder):
        recipe, seed = find_recipe_of(folder)
        table = read_answers(folder)
    missing = missing_members(folder, recipe, table)
    for sentence in missing:
        say(sentence, style="yellow")
    prices = None  # in FLOPs
    if cost_unit == "params":
        one_network = next(cost.params for cost in table.costs.values() if not cost.reads)
        prices = {name: cost.params / one_network for name, cost in table.costs.items()}
    elif cost_unit != "flops":
        raise ModebridgeError(f"Expected --cost-unit to be flops or params, but got '{cost_unit}'; choose one.")
    if max_epochs is not None and not max_epochs >= 0:
        raise ModebridgeError(
            f"Expected --max-epochs to be at least 0, but got {max_epochs}; leave it out for no limit."
        )
    have = given_modes_of(folder, recipe.modes) if trained_modes is None else trained_modes
    effort = None
    if max_epochs is not None or trained_modes is not None:
        names = [name for name, cost in table.costs.items() if cost.usable]
        effort = effort_of(setting_for(recipe, seed, folder), names, have, inf if max_epochs is None else max_epochs)
    note(f"Comparing combinations of {plural(len(table.costs), 'member')} on the validation split ...")
    advice = advise(table, budget, prices, cascades=cascades, effort=effort)
    chosen = advice.chosen
    # The test split is used after the choice and only for it: the lowest of many validation scores is optimistic.
    tested = table.score(chosen.members, threshold=chosen.threshold, intervals=True)
    absent = absent_weights(folder, recipe, chosen.members)
    threshold = "" if chosen.threshold is None else f" --threshold {chosen.threshold:.8g}"
    command = f"modebridge export {path} fast.onnx --members {','.join(chosen.members)}{threshold}"
    export = _not_exportable(folder, absent) if absent else f"To export it: {command}"
    console = Screen()
    if as_json:
        if absent:
            say(export, style="yellow")
        record = {
            "chosen": {**chosen.as_dict(), "cost": advice.cost(chosen)},
            "by_size": [{**choice.as_dict(), "cost": advice.cost(choice)} for choice in advice.by_size],
            "looked_at": advice.looked_at,
            "exact": advice.exact,
            "test": tested.as_dict(),
            "export": None if absent else command,
            "left_out": [*folder.left_out(), *missing],
        }
        console.print_data(record)
        return
    cascade = chosen.threshold is not None
    training = ["training"] if effort is not None else []
    unit = {"flops": "FLOPs", "params": "params"}[cost_unit]
    lines = plain_table("", unit, *training, "valid NLL", "valid ACC %", "members", text=(0, 4 + len(training)))
    for choice in [*advice.by_size, *([chosen] if cascade else [])]:
        epochs = [] if effort is None else [f"{effort.of(choice.members):,.0f}"]
        cells = (f"x{advice.cost(choice):.3f}", *epochs, f"{choice.nll:.4f}", f"{100 * choice.accuracy:.2f}")
        lines.add_row("*" if choice is chosen else "", *cells, _described(choice))
    console.print(lines)
    why = "the lowest with a cascade" if cascade else "the lowest of as many members as fit"
    console.print(
        f"* Use {_described(chosen)}{' of the images' if cascade else ''}: x{advice.cost(chosen):.3f} {unit} of one "
        f"network{' on average' if cascade else ''}, validation NLL {chosen.nll:.4f}, {why} within x{budget:g}. "
        f"{'All ' if advice.exact else ''}{advice.looked_at:,} combinations were compared."
    )
    if effort is not None:
        limit = "" if max_epochs is None else f" of the {max_epochs:g} allowed"
        console.print(
            f"Training it and everything it depends on takes {effort.of(chosen.members):,.0f} epochs of one "
            f"network{limit}; " + (f"{plural(have, 'mode')} already trained." if have else "no mode is trained yet.")
        )
    one = next(name for name, cost in table.costs.items() if not cost.reads and not cost.alone)
    alone, (low, high) = table.score([one]), tested.intervals["nll"]
    share = f" (all members run on {100 * tested.deferred_share:.1f} % of its images)" if cascade else ""
    console.print(
        f"It was chosen on the validation split ({plural(len(table.valid_labels), 'image')}), so that NLL is "
        f"optimistic. On the test split, which played no part in the choice, its NLL is {tested.nll:.4f} ({low:.4f} to "
        f"{high:.4f}), accuracy {100 * tested.accuracy:.2f} %{share}; {one} alone has NLL {alone.nll:.4f}, accuracy "
        f"{100 * alone.accuracy:.2f} %."
    )
    console.print(export, soft_wrap=True)


def _described(choice: Scored) -> str:
    """The members of a choice; for a cascade, with the share of images on which the further members run."""
    if choice.threshold is None:
        return " + ".join(choice.members)
    return f"{choice.members[0]}, then {' + '.join(choice.members[1:])} for {100 * choice.deferred_share:.0f} %"


def _not_exportable(folder: RunFolder, absent: Sequence[str]) -> str:
    """Why the choice cannot be exported, and what can be done instead."""
    files = sorted(file.name for file in folder.path.iterdir() if file.suffix in (".onnx", ".pt2"))
    instead = (
        f"an exported file is there: {', '.join(files)}"
        if files
        else "`modebridge run` with the folder's recipe.toml and --out OTHER trains one (other weights, other scores)"
    )
    return (
        f"It cannot be exported from '{folder.path}', which has its logits but not the weights in {', '.join(absent)}; "
        f"{instead}"
    )
