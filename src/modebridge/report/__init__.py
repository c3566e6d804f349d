"""Tables, figures and the report page, from plain data."""

from modebridge.report.cost_figure import cost_figure
from modebridge.report.page import PageData, Samples, StudyPart, best_for_cost, page
from modebridge.report.rows import Row, as_dicts, row_of
from modebridge.report.study_figures import dots_figure, lines_figure
from modebridge.report.summary import closed_gap, summary
from modebridge.report.table import COLUMNS, markdown_table, study_table, terminal_table
from modebridge.report.tables import Cell, Column, StudyTable, TableRow, cell_of

__all__ = [
    "COLUMNS",
    "Cell",
    "Column",
    "PageData",
    "Row",
    "Samples",
    "StudyPart",
    "StudyTable",
    "TableRow",
    "as_dicts",
    "best_for_cost",
    "cell_of",
    "closed_gap",
    "cost_figure",
    "dots_figure",
    "lines_figure",
    "markdown_table",
    "page",
    "row_of",
    "study_table",
    "summary",
    "terminal_table",
]
