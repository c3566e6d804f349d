"""Tables, figures and the report page, from plain data."""

from modebridge.report.figures import (
    colors_of as colors_of,
    cost_figure as cost_figure,
    dots_figure as dots_figure,
    lines_figure as lines_figure,
    risk_figure as risk_figure,
)
from modebridge.report.page import (
    Agreement as Agreement,
    PageData as PageData,
    Samples as Samples,
    StudyPart as StudyPart,
    best_for_cost as best_for_cost,
    page as page,
)
from modebridge.report.tables import (
    Cell as Cell,
    Column as Column,
    StudyTable as StudyTable,
    as_dicts as as_dicts,
    cell_of as cell_of,
    csv_of as csv_of,
    decisions_table as decisions_table,
    markdown_table as markdown_table,
    plain_table as plain_table,
    study_table as study_table,
    terminal_table as terminal_table,
)
from modebridge.report.verdict import (
    best_cheap as best_cheap,
    closed_gap as closed_gap,
    networks_alone as networks_alone,
    short_rows as short_rows,
    verdict as verdict,
)
