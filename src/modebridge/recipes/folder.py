"""A run folder: one folder per artefact, whole or not at all, found again by what it was made from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.training import Checkpoints

__all__ = ["RunFolder", "key_of", "machine", "write_whole"]


class RunFolder:
    """Keeps trained tensors under RUN/KIND/NAME and gives them back when they were made from the same things.

    An artefact is `weights.safetensors` and `meta.json` (key, own hash, what it was made from, seconds, machine). It
    appears by rename. Work under way is saved in RUN/.work, so that a run killed anywhere goes on.

    Args:
        path: the folder; made where it does not exist.
        every: seconds between two checkpoints of what is being trained.
        writes: whether this process writes; the others of a group only read.
    """

    def __init__(self, path: Path | str, every: float = 10.0, *, writes: bool = True) -> None:
        self.path = Path(path)
        self.writes = writes
        self._every = every
        self._made: list[Path] = []
        """The folders that were not there before, the innermost last."""
        if not writes and self.path.is_dir():
            return
        try:
            whole = self.path.absolute()
            self._made = [place for place in (*reversed(whole.parents), whole) if not place.exists()]
            (self.path / ".work").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModebridgeError(
                f"Expected '{self.path}' to be a folder to write to, but got '{error}'; choose another."
            ) from error

    @contextmanager
    def alone(self, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Work in the folder while no other run does; the lock goes with the process, however that ends.

        Args:
            waiting: called once if another run is at work, before waiting for it.
        """
        if not self.writes:
            yield
            return
        with (self.path / ".work" / "lock").open("a", encoding="utf-8") as file:
            try:
                import fcntl
            except ImportError:  # no such locks on Windows: one run a folder is then up to the user
                yield
                return
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if waiting is not None:
                    waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
                # The other run may have failed and taken its folder with it.
                (self.path / ".work").mkdir(parents=True, exist_ok=True)
            yield

    def undo(self) -> None:
        """After a failure: remove the folder if it was made for this run and nothing has been made in it."""
        if not self.writes or self.path.absolute() not in self._made:
            return
        held = {place.relative_to(self.path).as_posix() for place in self.path.rglob("*")}
        if held <= {"recipe.toml", ".work", ".work/lock"}:
            shutil.rmtree(self.path, ignore_errors=True)
            for place in reversed(self._made[:-1]):
                try:
                    place.rmdir()
                except OSError:  # somebody else has put something there since
                    return

    def find(self, kind: str, name: str, key: str) -> dict[str, Tensor] | None:
        """The tensors of an artefact made with this very key; None where there is none, or a damaged one."""
        if self.meta(kind, name).get("key") != key:
            return None
        tensors, meta = self.read(kind, name)
        return tensors if meta.get("hash") == trees.fingerprint(tensors) else None

    def meta(self, kind: str, name: str) -> dict[str, Any]:
        """The notes of an artefact; empty where there is none."""
        try:
            found: dict[str, Any] = json.loads((self.path / kind / name / "meta.json").read_text(encoding="utf-8"))
            return found
        except (OSError, ValueError):
            return {}

    def read(self, kind: str, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and notes of an artefact, whatever it was made from; empty where there is none."""
        try:
            tensors = safetensors.torch.load_file(self.path / kind / name / "weights.safetensors")
        except (OSError, ValueError, safetensors.SafetensorError):
            return {}, {}
        return tensors, self.meta(kind, name)

    def names(self, kind: str) -> list[str]:
        """The artefacts of a kind that are there."""
        return sorted(place.parent.name for place in (self.path / kind).glob("*/meta.json"))

    def keep(self, kind: str, name: str, key: str, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Write an artefact beside the others, then put it in its place."""
        if not self.writes:
            return
        scratch, place = self.path / ".work" / f"{kind}-{name}.new", self.path / kind / name
        own = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        meta = {"key": key, "hash": trees.fingerprint(own), **notes, **machine()}
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            (scratch / "weights.safetensors").write_bytes(safetensors.torch.save(own))
            (scratch / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
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

    def checkpoints(self, kind: str, name: str, key: str) -> Checkpoints:
        """Where the training of an artefact saves itself; another key has other files."""
        return Checkpoints(self.path / ".work" / f"{kind}-{name}-{key[:12]}", self._every)

    def tidy(self) -> None:
        """Remove what a finished run has no use for: checkpoints and half-written artefacts."""
        if self.writes:
            for rest in (self.path / ".work").iterdir():
                if rest.is_dir():
                    shutil.rmtree(rest, ignore_errors=True)
                elif rest.name != "lock":
                    rest.unlink(missing_ok=True)


def key_of(*parts: object) -> str:
    """A hash of everything an artefact is made from: a part of the recipe, seeds, its parents."""
    return hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()


def machine() -> dict[str, str]:
    """Where and with what this was made."""
    import modebridge

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {
        "made": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "modebridge": modebridge.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{gpu + ', ' if gpu else ''}{os.cpu_count()} cores, {platform.machine()}",
    }


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".new")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise ModebridgeError(f"Expected to write '{path}', but got '{error}'; make room, then try again.") from error
