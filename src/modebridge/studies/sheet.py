"""What studies share: runs over different modes, rows of combinations, the paper's numbers beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from modebridge.evaluate import Answers, Combined, dee
from modebridge.members import Member, mode_on
from modebridge.recipes import Recipe, find_recipe
from modebridge.report import Cell, Column, StudyTable, TableRow, cell_of
from modebridge.runs import Run

__all__ = ["COLUMNS", "Sheet", "paper_numbers", "runs"]

COLUMNS = (
    Column("FLOPs", 3),
    Column("#Params", 3),
    Column("ACC", 2, "up"),
    Column("NLL", 3, "down"),
    Column("ECE", 3, "down"),
    Column("BS", 3, "down"),
    Column("DEE", 2, "up"),
)
_DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tin200": "Tiny ImageNet", "in1k": "ImageNet"}


@cache
def _printed() -> dict[str, dict[str, dict[str, dict[str, str]]]]:
    text = resources.files("modebridge.studies").joinpath("paper.json").read_text(encoding="utf-8")
    tables: dict[str, dict[str, dict[str, dict[str, str]]]] = json.loads(text)
    return tables


def paper_numbers(table: str, recipe: Recipe, group: str = "") -> Mapping[str, Mapping[str, str]]:
    """The cells that the paper prints, by row and column, where the recipe is the paper's; else nothing."""
    dataset = _DATASETS.get(recipe.name, "")
    # To the last setting: a changed recipe is not the paper's, whatever its name.
    if not dataset or recipe != find_recipe(recipe.name):
        return {}
    return _printed().get(table, {}).get(dataset + group, {})


def runs(recipe: Recipe, pool: int | None = None) -> list[list[int]]:
    """The modes of each run, in the order in which they are taken: mode 0, then the others, turned by one each time.

    So do the authors: every run begins with mode 0 and takes consecutive others; at most four runs.

    Args:
        recipe: says how many modes there are.
        pool: take only so many of them.

    >>> from modebridge.recipes import find_recipe
    >>> runs(find_recipe("digits"))
    [[0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
    """
    others = list(range(1, min(recipe.modes, pool or recipe.modes)))
    return [[0, *others[k:], *others[:k]] for k in range(min(4, len(others)))]


class Sheet:
    """Rows of combinations, one member set a run, scored and averaged.

    Args:
        run: makes and asks the members.
        orders: the modes of each run, from `runs`.
        largest: the deep ensemble up to which equivalents are measured; 0 for as many modes as a run has.
    """

    def __init__(self, run: Run, orders: Sequence[Sequence[int]], largest: int = 0) -> None:
        self._run = run
        self.orders = [list(order) for order in orders]
        self._largest = largest or len(self.orders[0])
        self._plans: list[tuple[str, list[list[Member]], str]] = []

    def add(self, name: str, sets: Sequence[Sequence[Member]], paper: str = "") -> None:
        """A row: one set of members for each run.

        Args:
            name: of the row.
            sets: the members in each run.
            paper: what the paper calls the row.
        """
        self._plans.append((name, [list(members) for members in sets], paper))

    def deep_ensemble(self, m: int, number: int, base: str = "") -> list[Member]:
        """DE-m of a run, as the authors take it: DE-1 of run k is mode k, the others are mode 0 and m - 1 after it.

        Those turn through modes 0 to 5 up to DE-5, and through all eight from DE-6 on, so that every run has a set of
        its own (their reference has four different DE-6 and DE-7).

        Args:
            m: how many modes.
            number: of the run.
            base: of the modes, where it is another one than that of the recipe.
        """
        if m == 1:
            return [mode_on(base, number)]
        orders = runs(self._run.recipe, 6 if m < 6 else max(8, m + 1))
        return [mode_on(base, k) for k in orders[min(number, len(orders) - 1)][:m]]

    def base(self, m: int, number: int, base: str = "") -> list[Member]:
        """The modes that bridges of a run are put on: the first m of its order."""
        return [mode_on(base, k) for k in self.orders[number][:m]]

    def answers(self) -> Answers:
        """What all members of all rows said; trains what is missing."""
        largest = self._largest
        needed = [member for _, sets, _ in self._plans for members in sets for member in members]
        needed += [
            m
            for number in range(len(self.orders))
            for s in range(1, largest + 1)
            for m in self.deep_ensemble(s, number)
        ]
        return self._run.answers(list(dict.fromkeys(needed)))

    def table(
        self,
        title: str,
        columns: Sequence[Column] = COLUMNS,
        paper: Mapping[str, Mapping[str, str]] | None = None,
        notes: Sequence[str] = (),
        extra: Mapping[str, Mapping[str, Cell]] | None = None,
    ) -> StudyTable:
        """The table of all rows.

        Args:
            title: what it shows.
            columns: which, in order.
            paper: the paper's cells by its names of rows.
            notes: sentences below it.
            extra: further cells by row, for columns that are not scores of a combination.
        """
        answers = self.answers()
        scored: dict[tuple[str, ...], Combined] = {}

        def score(members: Sequence[Member]) -> Combined:
            key = tuple(member.name for member in members)
            if key not in scored:
                scored[key] = answers.score(key)
            return scored[key]

        largest = self._largest
        references = [
            [score(self.deep_ensemble(m, number)).nll for m in range(1, largest + 1)]
            for number in range(len(self.orders))
        ]
        rows = []
        for name, sets, printed in self._plans:
            combined = [score(members) for members in sets]
            # One set of members in all runs is one measurement: it has no spread.
            scores = combined if len({frozenset(members) for members in sets}) > 1 else combined[:1]
            equivalents = [
                dee(one.nll, references[min(number, len(references) - 1)]) for number, one in enumerate(combined)
            ]
            values = {
                "FLOPs": [one.relative_flops for one in scores],
                "#Params": [one.relative_params for one in scores],
                "ACC": [100 * one.accuracy for one in scores],
                "NLL": [one.nll for one in scores],
                "ECE": [one.ece for one in scores],
                "BS": [one.brier for one in scores],
                "DEE": equivalents,
            }
            beside = (paper or {}).get(printed, {})
            cells = {
                column.name: _without_spread(cell_of(values[column.name], beside.get(column.name, "")), column)
                for column in columns
                if column.name in values
            }
            rows.append(TableRow(name, {**cells, **(extra or {}).get(name, {})}))
        counted = (
            f"{len(self.orders)} runs that share modes, as the authors' do: the spread is not that of independent runs."
        )
        return StudyTable(title, tuple(columns), tuple(rows), (*notes, *([counted] if len(self.orders) > 1 else [])))


def _without_spread(cell: Cell, column: Column) -> Cell:
    """Costs do not vary from run to run."""
    return Cell(cell.mean, None, cell.paper) if column.name in ("FLOPs", "#Params") else cell
