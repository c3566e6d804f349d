"""`modebridge advise`: what to use under a budget, and the command that makes a file of it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

from modebridge.cli.show_commands import existing, naming_damage, plain_table
from modebridge.cli.terminal import say, screen
from modebridge.errors import ModebridgeError
from modebridge.evaluate import Advice, Answers, Choice, Effort, advise
from modebridge.nets import check_mean
from modebridge.recipes import Recipe
from modebridge.runs import (
    RunFolder,
    blueprint_for,
    effort_of,
    find_recipe_of,
    given_modes_of,
    machine,
    missing_members,
    read_answers,
)
from modebridge.runs.estimate import member_times

__all__ = ["advise_run"]

WITHIN, BEYOND = 9, 4
"""How many cheaper and dearer choices are shown beside the one that is advised."""


def advise_run(
    path: Path, budget: float, by: str, mean: str, as_json: bool, train: float | None = None, have: int | None = None
) -> None:
    """The best combination or cascade under a budget, what it scores on the test split, and the front.

    Args:
        path: of the run folder.
        budget: of a forward pass, in networks.
        by: in which unit.
        mean: how members become one.
        as_json: whether to print plain data.
        train: what may be trained, in epochs of one network; None for no limit.
        have: how many modes are trained already; None for those that the run was given.
    """
    kind = check_mean(mean)
    folder = existing(path)
    with naming_damage(folder):
        recipe, seed = find_recipe_of(folder)
        answers = read_answers(folder)
    missing = missing_members(folder, recipe, answers)
    for sentence in missing:
        say(sentence, style="yellow")
    prices = _prices(answers, recipe, seed, by, folder)
    effort = _effort(answers, recipe, seed, folder, train, have)
    # A cascade keeps all of its members in memory.
    advice = advise(answers, budget, prices, cascades=by != "params", mean=kind, effort=effort)
    chosen = advice.chosen
    # After the choice, and only of what was chosen: the lowest of many validation scores flatters itself.
    one = next(name for name, cost in answers.costs.items() if not cost.reads and not cost.alone)
    tested = answers.score(chosen.members, threshold=chosen.threshold, mean=kind, intervals=True)
    alone = answers.score([one])
    if as_json:
        whole = advice.whole if math.isfinite(advice.whole) else None
        test = {"nll": tested.nll, "nll_interval": tested.nll_interval, "accuracy": tested.accuracy}
        test |= {"asked": tested.asked, "relative_flops": tested.relative_flops}
        record = {**asdict(advice), "whole": whole, "exact": advice.whole >= budget, "test": test}
        record["export"] = _export_command(path, chosen, by)
        record["left_out"] = [*folder.left_out(), *missing]
        screen().print_data(record)
        return
    console = screen()
    unit = {"flops": "FLOPs", "params": "params", "time": "time"}[by]
    training = ["training"] if effort is not None else []
    table = plain_table("", unit, *training, "valid NLL", "valid ACC %", "members", text=(0, 4 + len(training)))
    # One screen: what is within the budget, and what a little more would buy.
    place = advice.front.index(chosen)
    shown = advice.front[max(0, place - WITHIN) : place + 1 + BEYOND]
    for choice in shown:
        mark = "*" if choice == chosen else ""
        epochs = [] if choice.training is None else [f"{choice.training:,.0f}"]
        cells = (f"x{choice.cost:.3f}", *epochs, f"{choice.nll:.4f}", f"{100 * choice.accuracy:.2f}")
        table.add_row(mark, *cells, _words(choice))
    console.print(table)
    if len(shown) < len(advice.front):
        console.print(
            f"{len(shown)} of {len(advice.front)} that nothing as cheap beats; the others, up to "
            f"x{advice.front[-1].cost:.2f}: --json."
        )
    average = " on average" if chosen.threshold is not None else ""
    console.print(
        f"* Use {_words(chosen)}{' of the images' if average else ''}: x{chosen.cost:.3f} {unit} of one "
        f"network{average}, validation NLL {chosen.nll:.4f}, the lowest {'' if advice.whole >= budget else 'found '}"
        f"within x{budget:g}. " + _looked_at(advice)
    )
    if chosen.training is not None:
        limit = "" if train is None else f" of the {train:g} that may be spent"
        already = have if have is not None else given_modes_of(folder, recipe.modes)
        console.print(
            f"Training it takes {chosen.training:,.0f} epochs of one network{limit}, with all that it is made from; "
            + ("no mode is there yet." if not already else f"the modes that are there ({already}) cost nothing.")
        )
    low, high = tested.nll_interval or (math.nan, math.nan)
    asked = f" (all members are asked about {100 * tested.asked:.1f} % of its images)" if average else ""
    console.print(
        f"Chosen on the validation split ({len(answers.valid_labels)} images), whose NLL is therefore too good; on the "
        f"test split, which took no part in the choice, its NLL is {tested.nll:.4f} ({low:.4f} to {high:.4f}), "
        f"accuracy {100 * tested.accuracy:.2f} %{asked}; {one} alone has NLL {alone.nll:.4f}, accuracy "
        f"{100 * alone.accuracy:.2f} %."
    )
    other = advice.other_mean
    if other.nll < chosen.nll and len(chosen.members) > 1:
        console.print(
            f"By the {other.mean} mean of the same members the validation NLL is {other.nll:.4f}; what is best by it: "
            f"--mean {other.mean}."
        )
    console.print(f"Export it: {_export_command(path, chosen, by)}", soft_wrap=True)


def _words(choice: Choice) -> str:
    """What a choice runs; of a cascade the further members with the share of images that they are asked about."""
    if choice.threshold is None:
        return " + ".join(choice.members)
    return f"{choice.members[0]}, then {' + '.join(choice.members[1:])} for {100 * choice.asked:.0f} %"


def _export_command(path: Path, chosen: Choice, by: str) -> str:
    """What makes a file of just that."""
    command = f"modebridge export {path} fast.onnx --members {','.join(chosen.members)}"
    if chosen.threshold is not None:
        # An average cost is one of FLOPs; a threshold for an average time has to be given itself.
        flops = by == "flops"
        command += f" --average-cost {chosen.average_cost:g}" if flops else f" --threshold {chosen.threshold:.8g}"
    return command + (f" --mean {chosen.mean}" if chosen.mean != "probability" else "")


def _looked_at(advice: Advice) -> str:
    """How far the front is the true one."""
    if math.isinf(advice.whole):
        return f"All {advice.looked_at:,} combinations were looked at."
    beyond = (
        f"up to x{advice.whole:g}, beyond it the best that a beam search found" if advice.whole else "by beam search"
    )
    return f"{advice.looked_at:,} combinations were looked at: {'all ' if advice.whole else ''}{beyond}."


def _effort(
    answers: Answers, recipe: Recipe, seed: int, folder: RunFolder, train: float | None, have: int | None
) -> Effort | None:
    """The training behind members; None where nobody asked."""
    if train is None and have is None:
        return None
    if train is not None and not train >= 0:
        raise ModebridgeError(f"Expected --train to be at least 0 epochs, but got {train}; change it.")
    already = given_modes_of(folder, recipe.modes) if have is None else have
    names = [name for name, cost in answers.costs.items() if cost.usable]
    return effort_of(blueprint_for(recipe, seed, folder), names, already, math.inf if train is None else train)


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
