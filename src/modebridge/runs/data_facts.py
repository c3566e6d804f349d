"""RUN/data.json: facts about a run's data, so that it need not be read again."""

from __future__ import annotations

import json
from pathlib import Path

from modebridge.members import Setting
from modebridge.recipes import DataFacts, Recipe, RunData, facts_of
from modebridge.runs.folder import RunFolder

__all__ = ["facts_for", "keep_facts", "setting_for"]

FILE = "data.json"


def keep_facts(folder: RunFolder, facts: DataFacts) -> None:
    """Write them to the folder."""
    if folder.writes:
        folder.files.write({FILE: json.dumps(facts.to_dict(), indent=1)})


def facts_for(recipe: Recipe, folder: RunFolder | None = None, data: Path | None = None) -> DataFacts:
    """The facts about a recipe's data: from a run folder, known for a named set, or read now."""
    record = folder.files.record(FILE) if folder is not None else {}
    if record:
        return DataFacts.from_dict(record)
    return facts_of(recipe) or RunData(recipe, 0, data).facts


def setting_for(recipe: Recipe, seed: int = 0, folder: RunFolder | None = None, data: Path | None = None) -> Setting:
    """A setting for use without training: the data need not be read."""
    return Setting(recipe, seed, None if data is None else str(data), known=facts_for(recipe, folder, data))
