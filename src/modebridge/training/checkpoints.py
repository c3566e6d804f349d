"""Checkpoints of a training loop: whole or not at all, verified by hash, never unpickled."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from modebridge.errors import ModebridgeError

__all__ = ["Checkpoints"]


class Checkpoints:
    """Where a loop saves itself, and finds itself again.

    Two files are kept, the newest and the one before it; a newest one that is damaged falls back to the other. A file
    is a hash, a line of JSON and the tensors (safetensors), the hash being that of all that follows it.

    Args:
        path: the newest file; the one before has ".before" added.
        every: seconds between two saves.
    """

    def __init__(self, path: Path | str, every: float = 60.0) -> None:
        self.path = Path(path)
        self._before = self.path.with_name(self.path.name + ".before")
        self._every = every
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._last >= self._every

    def save(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Write a checkpoint beside the old ones, then put it in the place of the newest."""
        own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        body = json.dumps(notes).encode() + b"\n" + safetensors.torch.save(own)
        scratch = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with scratch.open("wb") as file:
                file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                self.path.replace(self._before)
            scratch.replace(self.path)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise ModebridgeError(
                f"Expected to write a checkpoint to '{self.path}', but got '{error}'; make room or use another folder."
            ) from error
        self._last = time.monotonic()

    def load(self, identity: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest whole checkpoint, or None where there is none yet.

        Args:
            identity: of what is trained; a checkpoint of something else is refused.
        """
        files = [file for file in (self.path, self._before) if file.exists()]
        for file in files:
            found = _read(file)
            if found is None:
                continue
            if found[1].get("identity") != identity:
                raise ModebridgeError(
                    f"Expected the checkpoint '{file}' to be of this very run, but it is of another recipe, data, "
                    "device, precision or version; delete it to begin anew, or go back to what it was made with."
                )
            return found
        if files:
            raise ModebridgeError(
                f"Expected '{files[0]}' to be a whole checkpoint, but every copy is damaged; delete it to begin anew."
            )
        return None

    def clear(self) -> None:
        """Remove both files: the work is done."""
        for file in (self.path, self._before):
            file.unlink(missing_ok=True)


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    digest, _, body = file.read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    notes, _, payload = body.partition(b"\n")
    return safetensors.torch.load(payload), json.loads(notes)
