"""Tables and sentences (and later the page) from results."""

from modebridge.report.rows import Row, as_dicts, from_dicts, row_of
from modebridge.report.summary import closed_gap, summary
from modebridge.report.table import COLUMNS, markdown_table, terminal_table

__all__ = [
    "COLUMNS",
    "Row",
    "as_dicts",
    "closed_gap",
    "from_dicts",
    "markdown_table",
    "row_of",
    "summary",
    "terminal_table",
]
