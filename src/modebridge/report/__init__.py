"""Tables and sentences (and later the page) from results."""

from modebridge.report.rows import Row, as_dicts
from modebridge.report.summary import closed_gap, summary
from modebridge.report.table import COLUMNS, markdown_table, terminal_table

__all__ = ["COLUMNS", "Row", "as_dicts", "closed_gap", "markdown_table", "summary", "terminal_table"]
