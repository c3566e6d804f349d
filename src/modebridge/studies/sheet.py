"""Common parts of studies: repetitions over different modes, rows of member sets, and the paper's numbers."""

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
    """The cells printed in the paper, by row and column, if the recipe is the paper's; otherwise empty."""
    dataset = _DATASETS.get(recipe.name, "")
    # All settings must match: a changed recipe is not the paper's, whatever its name.
    if not dataset or recipe != find_recipe(recipe.name):
        return {}
    return _printed().get(table, {}).get(dataset + group, {})


def runs(recipe: Recipe, pool: int | None = None) -> list[list[int]]:
    """The modes of each repetition, in order: mode 0, then the others, rotated by one each time.

    As in the authors' code, every repetition starts with mode 0 and takes consecutive others; at most four.

    Args:
        recipe: the recipe, which gives the number of modes.
        pool: maximum number of modes to use.

    >>> from modebridge.recipes import find_recipe
    >>> runs(find_recipe("digits"))
    [[0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
    """
    others = list(range(1, min(recipe.modes, pool or recipe.modes)))
    return [[0, *others[k:], *others[:k]] for k in range(min(4, len(others)))]


class Sheet:
    """Rows of member sets, one set per repetition, scored and averaged.

    Args:
        run: the run that trains and evaluates the members.
        orders: the modes of each repetition, from `runs`.
        largest: size of the largest deep ensemble used for DEE; 0 for the number of modes in a repetition.
    """

    def __init__(self, run: Run, orders: Sequence[Sequence[int]], largest: int = 0) -> None:
        self._run = run
        self.orders = [list(order) for order in orders]
        self._largest = largest or len(self.orders[0])
        self._plans: list[tuple[str, list[list[Member]], str]] = []

    def add(self, name: str, sets: Sequence[Sequence[Member]], paper: str = "") -> None:
        """Add a row: one set of members per repetition.

        Args:
            name: name of the row.
            sets: members in each repetition.
            paper: name of the row in the paper.
        """
        self._plans.append((name, [list(members) for members in sets], paper))

    def deep_ensemble(self, m: int, number: int, base: str = "") -> list[Member]:
        """DE-m of a repetition: DE-1 of repetition k is mode k; larger ones are mode 0 and m - 1 others.

        As in the authors' code, these rotate through modes 0 to 5 up to DE-5 and through all eight from DE-6 on, so
        that every repetition has a different set (the authors' reference has four different DE-6 and DE-7).

        Args:
            m: number of modes.
            number: number of the repetition.
            base: base of the modes, if it is not that of the recipe.
        """
        if m == 1:
            return [mode_on(base, number)]
        orders = runs(self._run.recipe, 6 if m < 6 else max(8, m + 1))
        return [mode_on(base, k) for k in orders[min(number, len(orders) - 1)][:m]]

    def base(self, m: int, number: int, base: str = "") -> list[Member]:
        """The modes that the bridges of a repetition read: the first m of its order."""
        return [mode_on(base, k) for k in self.orders[number][:m]]

    def answers(self) -> Answers:
        """The logits of all members of all rows; trains what is missing."""
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
            title: title of the table.
            columns: columns, in order.
            paper: cells of the paper, by the paper's row names.
            notes: notes below the table.
            extra: further cells by row, for columns that are not scores of a set of members.
        """
        answers = self.answers()
        scored: dict[tuple[str, ...], Combined] = {}

        def score_of(members: Sequence[Member]) -> Combined:
            key = tuple(member.name for member in members)
            if key not in scored:
                scored[key] = answers.score(key)
            return scored[key]

        largest = self._largest
        references = [
            [score_of(self.deep_ensemble(m, number)).nll for m in range(1, largest + 1)]
            for number in range(len(self.orders))
        ]
        rows = []
        for name, sets, printed in self._plans:
            combined = [score_of(members) for members in sets]
            # The same set of members in all repetitions is one measurement, without a spread.
            scores = combined if len({frozenset(members) for members in sets}) > 1 else combined[:1]
            equivalents = [
                dee(score.nll, references[min(number, len(references) - 1)]) for number, score in enumerate(combined)
            ]
            values = {
                "FLOPs": [score.relative_flops for score in scores],
                "#Params": [score.relative_params for score in scores],
                "ACC": [100 * score.accuracy for score in scores],
                "NLL": [score.nll for score in scores],
                "ECE": [score.ece for score in scores],
                "BS": [score.brier for score in scores],
                "DEE": equivalents,
            }
            paper_cells = (paper or {}).get(printed, {})
            cells = {
                column.name: _without_spread(cell_of(values[column.name], paper_cells.get(column.name, "")), column)
                for column in columns
                if column.name in values
            }
            rows.append(TableRow(name, {**cells, **(extra or {}).get(name, {})}))
        counted = (
            f"{len(self.orders)} repetitions that share modes, as in the authors' code; the spread is not that of "
            "independent runs."
        )
        return StudyTable(title, tuple(columns), tuple(rows), (*notes, *([counted] if len(self.orders) > 1 else [])))


def _without_spread(cell: Cell, column: Column) -> Cell:
    """Drop the spread of costs, which do not vary between repetitions."""
    return Cell(cell.mean, None, cell.paper) if column.name in ("FLOPs", "#Params") else cell
