"""Tables, figures and the report page, from plain data."""

from modebridge.report.figures import cost_figure, dots_figure, lines_figure
from modebridge.report.page import PageData, Samples, StudyPart, best_for_cost, closed_gap, page, summary
from modebridge.report.tables import (
    Cell,
    Column,
    StudyTable,
    as_dicts,
    cell_of,
    decisions_table,
    markdown_table,
    plain_table,
    study_table,
    terminal_table,
)

__all__ = [
    "Cell",
    "Column",
    "PageData",
    "Samples",
    "StudyPart",
    "StudyTable",
    "as_dicts",
    "best_for_cost",
    "cell_of",
    "closed_gap",
    "cost_figure",
    "decisions_table",
    "dots_figure",
    "lines_figure",
    "markdown_table",
    "page",
    "plain_table",
    "study_table",
    "summary",
    "terminal_table",
]
