"""Run a recipe from data to results: its members are trained and scored, and the page gets its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import nn

from modebridge.bridges import Bridge
from modebridge.curves import Curve
from modebridge.data import Splits
from modebridge.members import BridgePredictor, members_of
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.runs.local import Executor
from modebridge.runs.logits import figure_data
from modebridge.runs.plan import keep_facts
from modebridge.runs.results import curve_warnings, main_rows
from modebridge.runs.run import Run
from modebridge.runs.store import RunFolder
from modebridge.scoring import LogitTable, Row
from modebridge.types import Progress

__all__ = ["RunResult", "run_recipe"]


@dataclass(frozen=True)
class RunResult:
    """The result of a run; networks are loaded on demand.

    Args:
        run: the run, with its recipe, seed and setting.
        answers: the logits of all members.
        rows: the results table.
        warnings: problems with its curves.
    """

    run: Run
    answers: LogitTable
    rows: list[Row]
    warnings: list[str]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.run.recipe

    @property
    def seed(self) -> int:
        """The seed of every random choice."""
        return self.run.seed

    @property
    def net(self) -> nn.Module:
        """The architecture."""
        return self.run.setting.net

    @property
    def splits(self) -> Splits:
        """The data."""
        return self.run.setting.data.splits

    @property
    def seconds(self) -> Mapping[str, float]:
        """How long each stage took."""
        return self.run.seconds

    @property
    def trained(self) -> Sequence[str]:
        """What this run has trained; empty if everything already existed."""
        return tuple(self.run.trained)

    @cached_property
    def modes(self) -> list[Mode]:
        """The modes, aligned if the recipe says so."""
        return [self.run.mode(k) for k in range(self.recipe.modes)]

    @cached_property
    def curves(self) -> dict[tuple[int, int], Curve]:
        """The curves by the numbers of their ends."""
        return {pair: self.run.curve(*pair) for pair in self.recipe.curves()}

    @cached_property
    def bridges(self) -> dict[str, Bridge]:
        """The bridges by name."""
        predictors = {member.name: self.run.load(member) for member in members_of(self.recipe) if member.reads}
        return {name: one.bridge for name, one in predictors.items() if isinstance(one, BridgePredictor)}


def run_recipe(
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: RunFolder | None = None,
    data: Path | str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    given: Mapping[int, Mode] | None = None,
    boards: bool = False,
    executor: Executor | None = None,
) -> RunResult:
    """Make everything in a recipe that does not exist yet, then score every combination on the test split.

    The arguments are those of `Run`.
    """
    run = Run(
        recipe,
        seed=seed,
        folder=folder,
        data=data,
        device=device,
        progress=progress,
        given=given,
        boards=boards,
        executor=executor,
    )
    if folder is not None:
        keep_facts(folder, run.setting.data.facts)
    answers = run.answers(members_of(recipe))
    if folder is not None:
        run.make(figure_data(recipe))
    return RunResult(run, answers, main_rows(recipe, answers), curve_warnings(recipe, answers))
