"""The main table of a run, and whether its curves are good bridge targets, from the members' logits."""

from __future__ import annotations

from modebridge.errors import ModebridgeError
from modebridge.members import PointMember, row_plans
from modebridge.recipes import Recipe
from modebridge.scoring import LogitTable, Row, accuracy, judge_curve

__all__ = ["curve_warnings", "main_rows"]


def main_rows(recipe: Recipe, answers: LogitTable) -> list[Row]:
    """The table of a run: deep ensembles first, then the rows of every kind of member whose members all exist."""
    rows = row_plans(recipe)
    existing = [row for row in rows if set(row.members) <= set(answers.test)]
    for row in rows:
        if row not in existing and (row.family == rows[0].family or row.role == "bridge"):
            raise ModebridgeError(
                f"Expected a finished run, but it has no members for {row.name}; finish it: "
                "modebridge run --out FOLDER."
            )
    return answers.score_rows(existing)


def curve_warnings(recipe: Recipe, answers: LogitTable) -> list[str]:
    """Curves that are not low-loss on the validation split, one sentence each: they are poor bridge targets."""
    warnings: list[str] = []
    labels = answers.valid_labels
    for i, j in recipe.curves():
        point = PointMember(i, j)
        if point.name not in answers.valid:
            continue
        start, end = point.ancestors
        accuracies = [accuracy(answers.probabilities([m.name], "valid"), labels) for m in (start, point, end)]
        check = judge_curve(accuracies[1], (accuracies[0] + accuracies[2]) / 2, len(labels))
        if not check.low_loss:
            warnings.append(f"Curve {i}-{j}: {check.sentence}")
    return warnings
