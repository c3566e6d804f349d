"""Common parts of studies: repetitions over different modes, rows of member sets, and the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from modebridge.members import Member, mode_on
from modebridge.recipes import Recipe, find_recipe
from modebridge.report import Cell, Column, StudyTable, cell_of
from modebridge.runs import Run
from modebridge.scoring import Scored, dee

__all__ = ["COLUMNS", "Sheet", "paper_numbers", "runs", "score_cells"]

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


def score_cells(scored: Scored) -> dict[str, float]:
    """Cost and scores by the names of `COLUMNS`."""
    return {
        "FLOPs": scored.cost.relative_flops,
        "#Params": scored.cost.relative_params,
        "ACC": 100 * scored.accuracy,
        "NLL": scored.nll,
        "ECE": scored.ece,
        "BS": scored.brier,
        "DEE": scored.dee,
    }


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
        sizes, repetitions = range(1, (largest or len(self.orders[0])) + 1), range(len(self.orders))
        self._references = [[self.deep_ensemble(m, number) for m in sizes] for number in repetitions]
        self._plans: list[tuple[str, list[list[Member]], str]] = []

    def add(self, name: str, sets: Sequence[Sequence[Member]], paper: str = "") -> None:
        """Add a row: one set of members per repetition.

        Args:
            name: name of the row.
            sets: members in each repetition.
            paper: name of the row in the paper.
        """
        self._plans.append((name, [list(members) for members in sets], paper))

    def add_deep_ensemble(self, m: int, name: str = "", paper: str = "", base: str = "") -> None:
        """Add a row of DE-m; see `deep_ensemble`."""
        self.add(name or f"DE-{m}", [self.deep_ensemble(m, number, base) for number in range(len(self.orders))], paper)

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
        return [mode_on(base, k) for k in orders[number][:m]]

    def base(self, m: int, number: int, base: str = "") -> list[Member]:
        """The modes that the bridges of a repetition read: the first m of its order."""
        return [mode_on(base, k) for k in self.orders[number][:m]]

    def table(
        self,
        title: str,
        columns: Sequence[Column] = COLUMNS,
        paper: Mapping[str, Mapping[str, str]] | None = None,
        notes: Sequence[str] = (),
        extra: Mapping[str, Mapping[str, float]] | None = None,
    ) -> StudyTable:
        """The table of all rows; trains what is missing.

        Args:
            title: title of the table.
            columns: columns, in order.
            paper: cells of the paper, by the paper's row names.
            notes: notes below the table.
            extra: further numbers by row, for columns that are not scores of a set of members.
        """
        everything = [*(sets for _, sets, _ in self._plans), *self._references]
        needed = dict.fromkeys(member for sets in everything for members in sets for member in members)
        scored = cache(self._run.answers(list(needed)).score)

        def score_of(members: Sequence[Member]) -> Scored:
            return scored(tuple(member.name for member in members))

        references = [[score_of(members).nll for members in ensembles] for ensembles in self._references]
        rows: dict[str, dict[str, Cell]] = {}
        for name, sets, printed in self._plans:
            combined = [score_of(members) for members in sets]
            # The same set of members in all repetitions is one measurement, without a spread.
            scores = combined if len({frozenset(members) for members in sets}) > 1 else combined[:1]
            values = {column: [score_cells(score)[column] for score in scores] for column in score_cells(scores[0])}
            # Costs do not vary between repetitions; the references for DEE do.
            values |= {column: values[column][:1] for column in ("FLOPs", "#Params")}
            values["DEE"] = [dee(score.nll, levels) for score, levels in zip(combined, references, strict=True)]
            paper_cells = (paper or {}).get(printed, {})
            shown = [column.name for column in columns if column.name in values]
            cells = {column: cell_of(values[column], paper_cells.get(column, "")) for column in shown}
            for column, value in (extra or {}).get(name, {}).items():
                # Where a table has the costs of bridges alone, the paper does not say so in the column's name.
                cells[column] = Cell(value, None, paper_cells.get(column.removeprefix("bridge "), ""))
            rows[name] = cells
        counted = (
            f"{len(self.orders)} repetitions that share modes, as in the authors' code; the spread is not that of "
            "independent runs."
        )
        return StudyTable(title, tuple(columns), rows, (*notes, *([counted] if len(self.orders) > 1 else [])))
