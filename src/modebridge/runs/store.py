"""The run folder, where the artifacts of a run are kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.files.atomic import (
    FILES,
    Damage,
    read_sealed,
    read_stored,
    remove_leftovers,
    sealed,
    stored_files,
    write_file,
    write_folder,
)
from modebridge.members import ArtefactData

RECIPE, RESULTS = "recipe.toml", "results.json"


class RunFolder:
    """The only reader and writer of a run folder; what it returns is verified, and what is damaged is recorded.

    An artifact, RUN/KIND/NAME, is `weights.safetensors` and `meta.json`: key, what it was made from, seconds, machine,
    epochs, and one hash over all of it and the tensors. It appears by rename. Records, such as RUN/results.json, are
    JSON with their own hash. Unfinished work is saved in RUN/.work, so that a killed run can resume.

    Args:
        path: the folder; created if it does not exist.
        writes: whether this process writes; the others of a group only read.
    """

    def __init__(self, path: Path | str, *, writes: bool = True) -> None:
        self.path = Path(path)
        self.work = self.path / ".work"
        self.damage: dict[str, str] = {}
        """What was found damaged and therefore not used: the reason by place in the folder."""
        self.mended: dict[str, str] = {}
        """What was damaged and has been made again: the reason by place."""
        self.read_only = writes and self.path.is_dir() and not os.access(self.path, os.W_OK, effective_ids=EFFECTIVE)
        self.writes = writes and not self.read_only
        self._known: dict[str, tuple[object, dict[str, Any]]] = {}
        """Stamp and metadata of artifacts that were written or verified here, so that they are not hashed again."""
        self._created: list[Path] = []
        """The folders that this process created, the innermost last."""
        self._before: tuple[Path, bytes] | None = None
        """The recipe of the last run here, until this one has made something."""
        if not self.writes and self.path.is_dir():
            return
        if (
            self.path.is_dir()
            and not (self.path / RECIPE).exists()
            and not self.work.exists()
            and any(self.path.iterdir())
        ):
            raise ModebridgeError(
                f"Expected '{self.path}' to be a run folder, or empty, but it holds other files; choose another folder "
                "with --out."
            )
        try:
            absolute = self.path.absolute()
            self._created = [place for place in (*reversed(absolute.parents), absolute) if not place.exists()]
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    @contextmanager
    def alone(self, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Work in the folder while no other run does; `waiting` is called once if it must be waited for.

        The lock is released when the process ends, in whatever way.
        """
        if not self.writes:
            yield
            return
        try:
            lock = (self.work / "lock").open("a")
        except OSError as error:
            raise self._unusable(error) from error
        with lock:
            try:
                import fcntl
            except ImportError:  # not available on Windows: there users must avoid two runs per folder
                yield
                return
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
                # The other run may have failed and removed its folder.
                self.work.mkdir(parents=True, exist_ok=True)
            yield

    def _unusable(self, error: OSError) -> ModebridgeError:
        return ModebridgeError(f"Expected '{self.path}' to be a folder to write to, but got '{error}'; choose another.")

    def begin(self, recipe: str) -> None:
        """Write the recipe of a run, which `undo` takes back if nothing is made with it."""
        with suppress(FileNotFoundError):
            self._before = self.path / RECIPE, (self.path / RECIPE).read_bytes()
        self.write(RECIPE, recipe)

    def undo(self) -> None:
        """After a failure: put back the recipe if nothing was made with it, or remove the folder if it was new."""
        if self._before is not None:
            write_file(*self._before)
        if not self.writes or self.path.absolute() not in self._created:
            return
        if {place.name for place in self.path.rglob("*")} <= {RECIPE, ".work", "lock"}:
            shutil.rmtree(self.path, ignore_errors=True)
            for place in reversed(self._created[:-1]):
                with suppress(OSError):  # another program has put something there
                    place.rmdir()

    def meta(self, place: str) -> Mapping[str, Any]:
        """The metadata of an artifact; empty if it is missing or damaged."""
        stamp, meta = self._known.get(place, (None, {}))
        return meta if stamp is not None and stamp == self._stamp(place) else self.read(place)[1]

    def read(self, place: str) -> ArtefactData:
        """The tensors and metadata of an artifact such as "modes/0"; empty if it is missing or damaged."""
        stamp = self._stamp(place)
        with self._noting_damage(place):
            if stamp is not None:
                tensors, meta = read_stored(self.path / place)
                if meta.get("place") != place:
                    raise Damage(self.path / place, f"is a copy of {meta.get('place')}")
                self._known[place] = stamp, meta
                return ArtefactData(tensors, meta)
        return ArtefactData({})

    def _stamp(self, place: str) -> object:
        """Identifies the current version of an artifact's files; None if there is none."""
        stats = []
        for name in FILES:
            with suppress(OSError):
                stat = (self.path / place / name).stat()
                stats.append((name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(stats) or None

    @contextmanager
    def _noting_damage(self, place: str) -> Iterator[None]:
        self.damage.pop(place, None)
        try:
            yield
        except Damage as damage:
            self.damage[place] = damage.reason

    def places(self, folder: str = "*") -> list[str]:
        """The existing artifacts, intact or not: all, or those of one folder."""
        files = (file for name in FILES for file in self.path.glob(f"{folder}/*/{name}"))
        return sorted({file.parent.relative_to(self.path).as_posix() for file in files if ".work" not in file.parts})

    def keep(self, place: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write an artifact; it appears whole, and replaces the earlier one."""
        if not self.writes:
            return
        meta = {**metadata, "place": place, "bits": trees.fingerprint(tensors)}
        write_folder(self.path / place, stored_files(tensors, meta))
        self._before = None
        self._known[place] = self._stamp(place), meta
        if place in self.damage:
            self.mended[place] = self.damage.pop(place)

    def record(self, name: str) -> dict[str, Any]:
        """A record of the folder, such as "results.json"; empty if it is missing or damaged."""
        with self._noting_damage(name):
            if os.path.lexists(self.path / name):
                return read_sealed(self.path / name)
        return {}

    def write_record(self, name: str, record: Mapping[str, Any]) -> None:
        self.write(name, sealed(record))
        self.damage.pop(name, None)

    def write(self, name: str, text: str) -> None:
        """Write a file for readers outside, such as "results.md", unless it is there."""
        with suppress(OSError, ValueError):
            if (self.path / name).read_bytes() == text.encode():
                return
        if not self.writes:
            raise ModebridgeError(
                f"Expected '{self.path}' to be writable, because {name} must be written, but it is read-only; copy it, "
                "or make it writable."
            )
        write_file(self.path / name, text)

    def left_out(self) -> list[str]:
        """What was found damaged and therefore not used, one sentence each."""
        said = []
        for place, reason in self.damage.items():
            top, name, *_ = *place.split("/"), ""
            verb = {"studies": f"study {name}", "shifted": "study shift"}.get(top, "run")
            command = f"modebridge {verb} --out {self.path}"
            said.append(f"{place} is damaged ({reason}) and is left out; to recreate it: {command}")
        return said

    def tidy(self) -> None:
        """Remove what a finished run does not need: checkpoints and partially written files."""
        if self.writes:
            remove_leftovers(self.path)
            for leftover in self.work.iterdir():
                if leftover.name != "lock":
                    leftover.unlink(missing_ok=True)


EFFECTIVE = os.access in os.supports_effective_ids
