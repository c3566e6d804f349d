"""A run folder: one folder per artefact, whole or not at all, found again by what it was made from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.training import Checkpoints

__all__ = ["RunFolder", "key_of"]


class RunFolder:
    """Keeps trained tensors under RUN/KIND/NAME and trains only what is missing or made from something else.

    An artefact is `weights.safetensors` and `meta.json` (key, own hash, seconds, versions). It appears by rename. Work
    under way is saved in RUN/.work, so that a run killed anywhere goes on.

    Args:
        path: the folder; made where it does not exist.
        every: seconds between two checkpoints of what is being trained.
    """

    def __init__(self, path: Path | str, every: float = 10.0) -> None:
        self.path = Path(path)
        self._every = every
        try:
            (self.path / ".work").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModebridgeError(
                f"Expected '{self.path}' to be a folder to write to, but got '{error}'; choose another."
            ) from error

    def find(self, kind: str, name: str, key: str) -> dict[str, Tensor] | None:
        """The tensors of an artefact made with this very key; None where there is none, or a damaged one."""
        place = self.path / kind / name
        try:
            meta = json.loads((place / "meta.json").read_text())
            tensors = safetensors.torch.load_file(place / "weights.safetensors")
        except (OSError, ValueError, safetensors.SafetensorError):
            return None
        return tensors if meta.get("key") == key and meta.get("hash") == trees.fingerprint(tensors) else None

    def keep(self, kind: str, name: str, key: str, tensors: Mapping[str, Tensor], seconds: float) -> None:
        """Write an artefact beside the others, then put it in its place."""
        scratch, place = self.path / ".work" / f"{kind}-{name}.new", self.path / kind / name
        own = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        meta = {
            "key": key,
            "hash": trees.fingerprint(own),
            "seconds": seconds,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            (scratch / "weights.safetensors").write_bytes(safetensors.torch.save(own))
            (scratch / "meta.json").write_text(json.dumps(meta, indent=1))
            for file in scratch.iterdir():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
            place.parent.mkdir(exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            scratch.replace(place)
        except OSError as error:
            raise ModebridgeError(
                f"Expected to write '{place}', but got '{error}'; make room, then start the run again."
            ) from error

    def made(
        self, kind: str, name: str, key: str, make: Callable[[Checkpoints], Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The artefact from the folder, or made now, kept, and read back (so that both ways give the same bits)."""
        found = self.find(kind, name, key)
        if found is None:
            checkpoints = self.checkpoints(kind, name, key)
            begin = time.perf_counter()
            self.keep(kind, name, key, make(checkpoints), time.perf_counter() - begin)
            checkpoints.clear()
            found = self.find(kind, name, key)
        if found is None:
            raise ModebridgeError(
                f"Expected '{self.path / kind / name}' to be readable after writing it, but it is not; check the disk."
            )
        return found

    def checkpoints(self, kind: str, name: str, key: str) -> Checkpoints:
        """Where the training of an artefact saves itself; another key has other files."""
        return Checkpoints(self.path / ".work" / f"{kind}-{name}-{key[:12]}", self._every)


def key_of(*parts: object) -> str:
    """A hash of everything an artefact is made from: a part of the recipe, seeds, its parents."""
    return hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()
