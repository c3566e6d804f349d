"""`modebridge advise`: the best members for a cost budget, and the command to export them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from modebridge.cli.show_commands import existing, naming_damage, plain_table
from modebridge.cli.terminal import Screen, note, say
from modebridge.errors import ModebridgeError, plural
from modebridge.nets import check_mean
from modebridge.recipes import Recipe
from modebridge.runs import (
    RunFolder,
    absent_weights,
    effort_of,
    find_recipe_of,
    given_modes_of,
    machine,
    missing_members,
    read_answers,
    setting_for,
)
from modebridge.runs.estimate import member_times
from modebridge.scoring import Advice, Choice, Effort, LogitTable, advise

__all__ = ["advise_run"]

CHEAPER, DEARER = 9, 4
"""How many cheaper and more expensive choices are shown besides the recommended one."""


def advise_run(
    path: Path, budget: float, by: str, mean: str, as_json: bool, train: float | None = None, have: int | None = None
) -> None:
    """Print the best combination or cascade for a budget, its test score, and the Pareto front."""
    kind = check_mean(mean)
    folder = existing(path)
    note("Reading the predictions of all members ...")
    with naming_damage(folder):
        recipe, seed = find_recipe_of(folder)
        answers = read_answers(folder)
    missing = missing_members(folder, recipe, answers)
    for sentence in missing:
        say(sentence, style="yellow")
    prices = _prices(answers, recipe, seed, by, folder)
    effort = None
    if train is not None or have is not None:
        have = given_modes_of(folder, recipe.modes) if have is None else have
        effort = _effort(answers, recipe, seed, folder, train, have)
    note(f"Comparing combinations of {plural(len(answers.costs), 'member')} on the validation split ...")
    # A cascade keeps all of its members in memory, so it does not save parameters.
    advice = advise(answers, budget, prices, cascades=by != "params", mean=kind, effort=effort)
    chosen = advice.chosen
    # The test split is used after the choice and only for it: the lowest of many validation scores is optimistic.
    one = next(name for name, cost in answers.costs.items() if not cost.reads and not cost.alone)
    note("Scoring the choice on the test split ...")
    tested = answers.score(chosen.members, threshold=chosen.threshold, mean=kind, intervals=True)
    alone = answers.score([one])
    absent = absent_weights(folder, recipe, chosen.members)
    command = None if absent else _export_command(path, chosen, by)
    if as_json:
        whole = advice.whole if math.isfinite(advice.whole) else None
        test = {"nll": tested.nll, "nll_interval": tested.nll_interval, "accuracy": tested.accuracy}
        test |= {"asked": tested.asked, "relative_flops": tested.relative_flops}
        record = {**asdict(advice), "whole": whole, "exact": advice.whole >= budget, "test": test}
        record["export"] = command
        if command is None:
            say(_not_exportable(folder, absent), style="yellow")
        record["left_out"] = [*folder.left_out(), *missing]
        Screen().print_data(record)
        return
    console = Screen()
    unit = {"flops": "FLOPs", "params": "params", "time": "time"}[by]
    training = ["training"] if effort is not None else []
    table = plain_table("", unit, *training, "valid NLL", "valid ACC %", "members", text=(0, 4 + len(training)))
    # One screen: what the budget allows, and what a little more would buy.
    place = advice.front.index(chosen)
    shown = advice.front[max(0, place - CHEAPER) : place + 1 + DEARER]
    for choice in shown:
        mark = "*" if choice == chosen else ""
        epochs = [] if choice.training is None else [f"{choice.training:,.0f}"]
        cells = (f"x{choice.cost:.3f}", *epochs, f"{choice.nll:.4f}", f"{100 * choice.accuracy:.2f}")
        table.add_row(mark, *cells, _described(choice))
    console.print(table)
    if len(shown) < len(advice.front):
        console.print(
            f"Showing {len(shown)} of {len(advice.front)} Pareto-optimal choices; --json lists all, up to "
            f"x{advice.front[-1].cost:.2f}."
        )
    average = " on average" if chosen.threshold is not None else ""
    console.print(
        f"* Use {_described(chosen)}{' of the images' if average else ''}: x{chosen.cost:.3f} {unit} of one "
        f"network{average}, validation NLL {chosen.nll:.4f}, the lowest {'' if advice.whole >= budget else 'found '}"
        f"within x{budget:g}. " + _looked_at(advice)
    )
    if chosen.training is not None:
        limit = "" if train is None else f" of the {train:g} allowed"
        console.print(
            f"Training it and everything it depends on takes {chosen.training:,.0f} epochs of one network{limit}; "
            + (f"{plural(have, 'mode')} already trained." if have else "no mode is trained yet.")
        )
    low, high = tested.nll_interval or (math.nan, math.nan)
    share = f" (all members run on {100 * tested.asked:.1f} % of its images)" if average else ""
    console.print(
        f"It was chosen on the validation split ({plural(len(answers.valid_labels), 'image')}), so that NLL is "
        f"optimistic. On the test split, which played no part in the choice, its NLL is {tested.nll:.4f} ({low:.4f} to "
        f"{high:.4f}), accuracy {100 * tested.accuracy:.2f} %{share}; {one} alone has NLL {alone.nll:.4f}, accuracy "
        f"{100 * alone.accuracy:.2f} %."
    )
    other = advice.other_mean
    if other.nll < chosen.nll and len(chosen.members) > 1:
        console.print(
            f"With the {other.mean} mean of the same members, the validation NLL is {other.nll:.4f}; to choose by that "
            f"mean: --mean {other.mean}."
        )
    console.print(f"To export it: {command}" if command else _not_exportable(folder, absent), soft_wrap=True)


def _described(choice: Choice) -> str:
    """The members of a choice; for a cascade, with the share of images on which the further members run."""
    if choice.threshold is None:
        return " + ".join(choice.members)
    return f"{choice.members[0]}, then {' + '.join(choice.members[1:])} for {100 * choice.asked:.0f} %"


def _export_command(path: Path, chosen: Choice, by: str) -> str:
    """The command that exports a choice."""
    command = f"modebridge export {path} fast.onnx --members {','.join(chosen.members)}"
    if chosen.threshold is not None:
        # --average-cost is in FLOPs, so a cascade chosen by time is given by its threshold.
        flops = by == "flops"
        command += f" --average-cost {chosen.average_cost:g}" if flops else f" --threshold {chosen.threshold:.8g}"
    return command + (f" --mean {chosen.mean}" if chosen.mean != "probability" else "")


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


def _looked_at(advice: Advice) -> str:
    """How much of the front comes from an exhaustive search."""
    if math.isinf(advice.whole):
        return f"All {advice.looked_at:,} combinations were compared."
    beyond = f"up to x{advice.whole:g}, a beam search beyond" if advice.whole else "by beam search"
    return f"{advice.looked_at:,} combinations were compared: {'all ' if advice.whole else ''}{beyond}."


def _effort(
    answers: LogitTable, recipe: Recipe, seed: int, folder: RunFolder, train: float | None, have: int
) -> Effort:
    """The training that members need beyond the modes that exist."""
    if train is not None and not train >= 0:
        raise ModebridgeError(f"Expected --train to be at least 0 epochs, but got {train}; leave it out for no limit.")
    names = [name for name, cost in answers.costs.items() if cost.usable]
    return effort_of(setting_for(recipe, seed, folder), names, have, math.inf if train is None else train)


def _prices(answers: LogitTable, recipe: Recipe, seed: int, by: str, folder: RunFolder) -> dict[str, float] | None:
    """The relative cost of each member; None for FLOPs, the default of `advise`."""
    if by == "flops":
        return None
    if by == "params":
        unit = next(cost.params for cost in answers.costs.values() if not cost.reads)
        return {name: cost.params / unit for name, cost in answers.costs.items()}
    if by != "time":
        raise ModebridgeError(f"Expected --by to be flops, params or time, but got '{by}'; choose one.")
    say("Timing every member on this machine ...")
    times = member_times(setting_for(recipe, seed, folder), list(answers.costs))
    if folder.writes:
        folder.files.write({"times.json": json.dumps({"relative": times, "batch": 64, **machine()}, indent=1)})
    else:
        say(f"'{folder.path}' is read-only: these times are not saved for its report.", style="yellow")
    return times
