"""RUN/metrics: what every epoch of a run was like, a file an artefact."""

from __future__ import annotations

import os
from pathlib import Path

from modebridge.errors import ModebridgeError
from modebridge.recipes.sealing import Damage, read_bytes
from modebridge.training import Epoch, append_metrics, parse_metrics

__all__ = ["MetricsFiles"]


class MetricsFiles:
    """Reads and writes the metrics of a run folder; they are appended to often, so each line verifies itself.

    Args:
        path: the folder of the metrics.
        damage: told what is not whole, by its path in the run folder.
    """

    def __init__(self, path: Path, damage: dict[str, str]) -> None:
        self.path = path
        self._damage = damage

    def read(self, kind: str, name: str) -> list[Epoch]:
        """The epochs of an artefact; damaged lines are left out, and noted."""
        file = self._file(kind, name)
        place = f"{self.path.name}/{kind}/{file.name}"
        self._damage.pop(place, None)
        if not os.path.lexists(file):
            return []
        try:
            found, bad = parse_metrics(read_bytes(file))
        except Damage as damage:
            self._damage[place] = str(damage)
            return []
        if not found and not bad:
            self._damage[place] = "it is empty"
        elif bad:
            self._damage[place] = f"line{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad))}"
        return found

    def names(self, kind: str) -> list[str]:
        """The artefacts of a kind that have epochs."""
        return sorted(file.stem for file in (self.path / kind).glob("*.jsonl"))

    def add(self, kind: str, name: str, epoch: Epoch) -> None:
        """Write down an epoch."""
        append_metrics(self._file(kind, name), epoch)

    def forget(self, kind: str, name: str) -> None:
        """Before an artefact is trained anew: its epochs begin anew too."""
        file = self._file(kind, name)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise ModebridgeError(f"Expected to replace '{file}', but got '{error}'; move it away.") from error

    def _file(self, kind: str, name: str) -> Path:
        return self.path / kind / f"{name}.jsonl"
