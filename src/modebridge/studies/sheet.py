"""Common parts of studies: repetitions over different modes, rows of member sets, and the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

from modebridge.members import parse_member
from modebridge.recipes import Recipe, find_recipe
from modebridge.report import Cell, Column, StudyTable, cell_of
from modebridge.runs import Run
from modebridge.scoring import LogitTable, Scored, dee

Names: TypeAlias = Sequence[str]
"""The names of some members."""

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
def _printed() -> Any:
    return json.loads(resources.files("modebridge.studies").joinpath("paper.json").read_text(encoding="utf-8"))


def paper_numbers(table: str, recipe: Recipe) -> Mapping[str, Mapping[str, str]]:
    """The cells printed in the paper, by row and column, if the recipe is the paper's; otherwise empty."""
    dataset = _DATASETS.get(recipe.name, "")
    # All settings must match: a changed recipe is not the paper's, whatever its name.
    if not dataset or recipe != find_recipe(recipe.name):
        return {}
    tables: dict[str, dict[str, dict[str, str]]] = _printed().get(table, {})
    # The table of modes to start from has two parts; ours are modes that differ as little as those of the second.
    return tables.get(dataset) or tables.get(f"{dataset} / Comparable differences", {})


def answers_of(run: Run, names: Iterable[str]) -> LogitTable:
    """The logits of members by name; trains what is missing."""
    return run.answers([parse_member(name) for name in names])


def runs(recipe: Recipe, pool: int | None = None) -> list[list[int]]:
    """The modes of each repetition, in order: mode 0, then the others, rotated by one each time.

    As in the authors' code, every repetition starts with mode 0 and takes consecutive others, of the first `pool`
    modes; there are at most four.

    >>> from modebridge.recipes import find_recipe
    >>> runs(find_recipe("digits"))
    [[0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
    """
    others = list(range(1, min(recipe.modes, pool or recipe.modes)))
    return [[0, *others[k:], *others[:k]] for k in range(min(4, len(others)))]


def modes(numbers: Sequence[int], base: str = "mode") -> list[str]:
    """The names of modes, or of SWA networks."""
    return [f"{base}-{number}" for number in numbers]


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
    """Rows of member sets, one set per repetition, scored and averaged; `orders` are the modes of each repetition."""

    def __init__(self, run: Run, orders: Sequence[Sequence[int]]) -> None:
        self._run = run
        self.orders = [list(order) for order in orders]
        # The deep ensembles for DEE: up to DE-7, as in the paper, if there are repetitions.
        largest = min(run.recipe.modes, 7) if len(orders) > 1 else len(orders[0])
        self._references = [
            [self.deep_ensemble(m, number) for m in range(1, largest + 1)] for number in range(len(orders))
        ]
        self._plans: list[tuple[str, Sequence[Names], str]] = []

    def add(self, name: str, sets: Sequence[Names], paper: str = "") -> None:
        """Add a row: one set of members per repetition, and the name of the row in the paper."""
        self._plans.append((name, sets, paper))

    def add_deep_ensemble(self, m: int, name: str = "", paper: str = "", base: str = "mode") -> None:
        """Add a row of DE-m; see `deep_ensemble`."""
        self.add(name or f"DE-{m}", [self.deep_ensemble(m, number, base) for number in range(len(self.orders))], paper)

    def deep_ensemble(self, m: int, number: int, base: str = "mode") -> Names:
        """DE-m of a repetition: DE-1 of repetition k is mode k; larger ones are mode 0 and m - 1 others.

        As in the authors' code, these rotate through modes 0 to 5 up to DE-5 and through all eight from DE-6 on, so
        that every repetition has a different set (the authors' reference has four different DE-6 and DE-7).
        """
        if m == 1:
            return modes([number], base)
        return modes(runs(self._run.recipe, 6 if m < 6 else max(8, m + 1))[number][:m], base)

    def table(
        self,
        title: str,
        columns: Sequence[Column] = COLUMNS,
        paper: str = "",
        notes: Sequence[str] = (),
        extra: Mapping[str, Mapping[str, float]] | None = None,
    ) -> StudyTable:
        """The table of all rows; trains what is missing.

        Args:
            title: title of the table; the recipe's name is appended.
            columns: columns, in order.
            paper: name of the paper's table, see `paper_numbers`.
            notes: notes below the table.
            extra: further numbers by row, for columns that are not scores of a set of members.
        """
        everything = [*(sets for _, sets, _ in self._plans), *self._references]
        answers = answers_of(self._run, dict.fromkeys(name for sets in everything for names in sets for name in names))
        numbers = paper_numbers(paper, self._run.recipe)
        scored = cache(lambda *names: answers.score(names))
        references = [[scored(*names).nll for names in ensembles] for ensembles in self._references]
        rows: dict[str, dict[str, Cell]] = {}
        for name, sets, printed in self._plans:
            every = [scored(*names) for names in sets]
            # The same set of members in all repetitions is one measurement, without a spread.
            different = every if len({frozenset(names) for names in sets}) > 1 else every[:1]
            values = {column: [score_cells(one)[column] for one in different] for column in score_cells(every[0])}
            # Costs do not vary between repetitions; the references for DEE do.
            values |= {column: values[column][:1] for column in ("FLOPs", "#Params")}
            values["DEE"] = [dee(one.nll, levels) for one, levels in zip(every, references, strict=True)]
            paper_cells = numbers.get(printed, {})
            shown = [column.name for column in columns if column.name in values]
            rows[name] = {column: cell_of(values[column], paper_cells.get(column, "")) for column in shown}
            for column, value in (extra or {}).get(name, {}).items():
                # Where a table has the costs of bridges alone, the paper does not say so in the column's name.
                rows[name][column] = Cell(value, None, paper_cells.get(column.removeprefix("bridge "), ""))
        if len(self.orders) > 1:
            counted = f"{len(self.orders)} repetitions that share modes, as in the authors' code"
            notes = [*notes, f"{counted}; the spread is not that of independent runs."]
        return StudyTable(f"{title}, {self._run.recipe.name}", tuple(columns), rows, tuple(notes))
