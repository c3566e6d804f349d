"""RUN/metrics: the metrics of every epoch of a run, one file per artefact."""

from __future__ import annotations

import os
from pathlib import Path

from modebridge.errors import ModebridgeError
from modebridge.runs.sealed_records import Damage, read_bytes
from modebridge.training import Epoch, append_metrics, parse_metrics

__all__ = ["EpochFiles"]


class EpochFiles:
    """Reads and writes the metrics of a run folder; files are appended to often, so each line has its own checksum.

    Args:
        path: the folder of the metrics.
        damage: collects what is damaged, by path in the run folder.
    """

    def __init__(self, path: Path, damage: dict[str, str]) -> None:
        self.path = path
        self._damage = damage

    def read(self, place: str) -> list[Epoch]:
        """The epochs of an artefact; damaged lines are skipped and recorded."""
        file = self._file(place)
        listed = f"{self.path.name}/{place}.jsonl"
        self._damage.pop(listed, None)
        if not os.path.lexists(file):
            return []
        try:
            epochs, bad = parse_metrics(read_bytes(file))
        except Damage as damage:
            self._damage[listed] = str(damage)
            return []
        if not epochs and not bad:
            self._damage[listed] = "it is empty"
        elif bad:
            self._damage[listed] = f"line{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad))}"
        return epochs

    def places(self) -> list[str]:
        """The artefacts that have epochs."""
        return sorted(file.relative_to(self.path).with_suffix("").as_posix() for file in self.path.glob("*/*.jsonl"))

    def add(self, place: str, epoch: Epoch) -> None:
        """Append an epoch."""
        append_metrics(self._file(place), epoch)

    def forget(self, place: str) -> None:
        """Delete the epochs of an artefact before it is trained again."""
        file = self._file(place)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise ModebridgeError(f"Expected to replace '{file}', but got '{error}'; move it away.") from error

    def _file(self, place: str) -> Path:
        return self.path / f"{place}.jsonl"
