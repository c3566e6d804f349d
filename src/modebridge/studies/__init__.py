"""The tables and figures of the paper as functions: each trains the members that are missing and returns its tables."""

from collections.abc import Callable, Sequence
from pathlib import Path

from modebridge.errors import ModebridgeError, near
from modebridge.report import StudyPart, StudyTable, csv_of
from modebridge.runs import Run, RunFolder
from modebridge.studies import paper_tables
from modebridge.studies.comparison import comparison_study
from modebridge.studies.shift import shift_study

STUDIES: dict[str, Callable[[Run], tuple[list[StudyTable], str]]] = {
    "type1": paper_tables.type1,
    "type2": paper_tables.type2,
    "correspondence": paper_tables.correspondence_study,
    "r-position": paper_tables.r_position,
    "r-ablation": paper_tables.r_ablation,
    "bridge-size": paper_tables.bridge_size,
    "type-mix": paper_tables.type_mix,
    "mode-choice": paper_tables.mode_choice,
    "swa": paper_tables.swa,
    "comparison": comparison_study,
    "shift": shift_study,
}
"""Every study by name: its tables and its figure. The first line of its docstring says what it is about."""


def run_study(name: str, run: Run, others: Sequence[str] = ()) -> StudyPart:
    """Run a study by name.

    Args:
        name: a key of `STUDIES`.
        run: the run that trains and evaluates the members.
        others: out-of-distribution sets, only for the study shift.
    """
    if name not in STUDIES:
        raise ModebridgeError(f"Expected a known study, but got '{name}'; {near(name, STUDIES)}")
    if others and name != "shift":
        raise ModebridgeError(f"Expected --ood only with the study shift, but got it with {name}; leave it out.")
    tables, figure = shift_study(run, others) if others else STUDIES[name](run)
    about, _, _ = (STUDIES[name].__doc__ or "").partition("\n")
    return StudyPart(name, about, tuple(tables), figure)


def write_study(part: StudyPart, folder: RunFolder) -> Path:
    """Write the tables of a study (.md, .json, .csv) and figure.svg to RUN/studies/NAME; return that folder."""
    place = f"studies/{part.name}"
    data = {"name": part.name, "about": part.about, "tables": [table.to_dict() for table in part.tables]}
    folder.write_record(f"{place}/table.json", {**data, "figure": part.figure})
    folder.write(f"{place}/table.md", "\n".join(table.markdown() for table in part.tables))
    folder.write(f"{place}/table.csv", csv_of([record for table in part.tables for record in table.records()]))
    folder.write(f"{place}/figure.svg", part.figure)
    return folder.path / place
