"""What a run folder holds beside its artefacts: metrics, measured times, studies; damaged ones are left out by name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from modebridge.errors import ModebridgeError
from modebridge.report import StudyPart, StudyTable
from modebridge.training import Epoch, read_metrics

__all__ = ["read_json", "read_metrics_of", "read_studies", "read_times", "stages_of"]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none, or something else."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_times(run: Path, members: Iterable[str]) -> dict[str, float]:
    """Measured times by member, where all of these members were measured."""
    found = read_json(run / "times.json").get("relative")
    if not isinstance(found, dict):
        return {}
    times = {name: float(time) for name, time in found.items() if _is_time(time)}
    return times if set(members) <= set(times) else {}


def stages_of(results: Mapping[str, Any]) -> dict[str, float]:
    """How long each stage of a run took, out of its results.json."""
    found = results.get("seconds")
    return {stage: float(time) for stage, time in found.items() if _is_time(time)} if isinstance(found, dict) else {}


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value < 1e12


def read_metrics_of(run: Path) -> dict[str, dict[str, Sequence[Epoch]]]:
    """The epochs of everything that was trained, by kind and name."""
    return {
        kind: {file.stem: read_metrics(file) for file in sorted((run / "metrics" / kind).glob("*.jsonl"))}
        for kind in ("modes", "curves", "bridges")
    }


def read_studies(run: Path) -> tuple[list[StudyPart], list[str]]:
    """The studies of a run folder, and a sentence for each that cannot be read."""
    parts, lost = [], []
    for file in sorted((run / "studies").glob("*/table.json")):
        try:
            parts.append(_study(file))
        except (ModebridgeError, OSError):
            lost.append(
                f"The study {file.parent.name} is left out: its table.json is damaged; modebridge study "
                f"{file.parent.name} makes it again."
            )
    return parts, lost


def _study(file: Path) -> StudyPart:
    data = read_json(file)
    name, about, tables = data.get("name"), data.get("about"), data.get("tables")
    if not (isinstance(name, str) and isinstance(about, str) and isinstance(tables, list)):
        raise ModebridgeError(f"Expected '{file}' to be a study's tables, but it is not; make the study again.")
    drawn = file.with_name("figure.svg")
    figure = drawn.read_bytes().decode("utf-8", "replace") if drawn.is_file() else ""
    return StudyPart(name, about, tuple(StudyTable.from_dict(table) for table in tables), figure)
