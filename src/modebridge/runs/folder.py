"""A run folder: one folder per artefact, written atomically, and identified by what it was made from."""

from __future__ import annotations

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
from modebridge.errors import ModebridgeError, plural
from modebridge.runs.epoch_files import EpochFiles
from modebridge.runs.manifest import MANIFEST, RECIPE, LooseFiles, writable
from modebridge.runs.sealed_records import FILES, Damage, read_artefact, sealed, unsealed

__all__ = ["RunFolder", "machine"]


class RunFolder:
    """The only reader and writer of a run folder; what it returns is verified, and what is damaged is recorded.

    An artefact, RUN/KIND/NAME, is `weights.safetensors` and `meta.json`: key, hash of the tensors, what it was made
    from, seconds, machine, its own place, and a seal over all of it. It appears by rename. Other files are verified by
    RUN/manifest.json (see `files`), epochs in RUN/metrics by their own checksums (see `metrics`). Unfinished work is
    saved in RUN/.work, so that a killed run can resume.

    Args:
        path: the folder; created if it does not exist.
        every: seconds between two checkpoints of a training.
        writes: whether this process writes; the others of a group only read.
    """

    def __init__(self, path: Path | str, every: float = 10.0, *, writes: bool = True) -> None:
        self.path = Path(path)
        self.damage: dict[str, str] = {}
        """What was found damaged and therefore not used: the reason by place in the folder."""
        self.files = LooseFiles(self.path, self.damage)
        self.metrics = EpochFiles(self.path / "metrics", self.damage)
        self.read_only = writes and self.path.is_dir() and not writable(self.path)
        self.writes = writes and not self.read_only
        self.every = every
        self._stamps: dict[str, tuple[object, ...]] = {}
        """Stamps of verified artefacts, so that they are not hashed twice."""
        self._created: list[Path] = []
        """The folders that this process created, the innermost last."""
        if not self.writes and self.path.is_dir():
            return
        try:
            absolute = self.path.absolute()
            self._created = [place for place in (*reversed(absolute.parents), absolute) if not place.exists()]
            (self.path / ".work").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    @contextmanager
    def alone(self, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Work in the folder while no other run does; the lock is released when the process ends, in whatever way.

        Args:
            waiting: called once if another run is active, before waiting for it.
        """
        if not self.writes:
            yield
            return
        try:
            lock = (self.path / ".work" / "lock").open("a")
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
                if waiting is not None:
                    waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
                # The other run may have failed and removed its folder.
                (self.path / ".work").mkdir(parents=True, exist_ok=True)
            yield

    def _unusable(self, error: OSError) -> ModebridgeError:
        return ModebridgeError(f"Expected '{self.path}' to be a folder to write to, but got '{error}'; choose another.")

    def undo(self) -> None:
        """After a failure: remove the folder if it was created for this run and holds no artefact."""
        if not self.writes or self.path.absolute() not in self._created:
            return
        held = {place.relative_to(self.path).as_posix() for place in self.path.rglob("*")}
        if held <= {RECIPE, MANIFEST, ".work", ".work/lock"}:
            shutil.rmtree(self.path, ignore_errors=True)
            for place in reversed(self._created[:-1]):
                try:
                    place.rmdir()
                except OSError:  # another program has put something there
                    return

    def meta(self, place: str) -> dict[str, Any]:
        """The metadata of an artefact; empty if it is missing or damaged."""
        verified = self._stamps.get(place) == self._stamp(place)
        return self.peek(place) if verified else self.read(place)[1]

    def peek(self, place: str) -> dict[str, Any]:
        """The metadata of an artefact without checking its tensors, which may be damaged."""
        metadata_file = self.path / place / FILES[0]
        with self._noting_damage(place):
            if metadata_file.exists():
                return _checked(place, unsealed(metadata_file))
        return {}

    def read(self, place: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and metadata of an artefact, whatever it was made from; empty if it is missing or damaged.

        Args:
            place: its path in the folder, "modes/0".
        """
        with self._noting_damage(place):
            if any(os.path.lexists(self.path / place / name) for name in FILES):
                stamp = self._stamp(place)
                tensors, meta = read_artefact(self.path / place, known=self._stamps.get(place) == stamp)
                meta = _checked(place, meta)
                self._stamps[place] = stamp
                return tensors, meta
        return {}, {}

    @contextmanager
    def _noting_damage(self, place: str) -> Iterator[None]:
        self.damage.pop(place, None)
        try:
            yield
        except Damage as damage:
            self.damage[place] = str(damage)

    def _stamp(self, place: str) -> tuple[object, ...]:
        """Identifies the current version of an artefact's files; equal to no other if one cannot be accessed."""
        try:
            stats = [(self.path / place / name).stat() for name in FILES]
        except OSError:
            return (object(),)
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in stats)

    def places(self, folder: str = "*") -> list[str]:
        """The existing artefacts, intact or not: all, or those of one folder."""
        files = (file for file in self.path.glob(f"{folder}/*/*") if file.name in FILES)
        places = {file.parent.relative_to(self.path).as_posix() for file in files}
        return sorted(place for place in places if not place.startswith(".work/"))

    def keep(self, place: str, key: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write an artefact to a scratch folder, then move it to its place."""
        if not self.writes:
            return
        self.files.begin()
        work, folder = self.path / ".work", self.path / place
        scratch, old = (work / f"{place.replace('/', '-')}.{end}" for end in ("new", "old"))
        plain_tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        meta = {"artefact": place, "key": key, "hash": trees.fingerprint(plain_tensors), **machine(), **metadata}
        try:
            for leftover in (scratch, old):
                shutil.rmtree(leftover, ignore_errors=True)
            scratch.mkdir()
            (scratch / "weights.safetensors").write_bytes(safetensors.torch.save(plain_tensors))
            (scratch / "meta.json").write_text(sealed(meta))
            for file in scratch.iterdir():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
            folder.parent.mkdir(exist_ok=True)
            if os.path.lexists(folder):
                folder.replace(old)
            scratch.replace(folder)
            shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise ModebridgeError(
                f"Expected to write '{folder}', but got '{error}'; free some space, then start the run again."
            ) from error
        self.damage.pop(place, None)

    def mend(self) -> list[str]:
        """Before a run: check everything, and rewrite a damaged manifest.

        Returns:
            What is damaged, one sentence each.
        """
        self.files.begin()
        self.files.check()
        for place in self.places():
            self.meta(place)
        for place in self.metrics.places():
            self.metrics.read(place)
        given = [place for place in self.damage if place.startswith("modes/") and self.files.was_given(place[6:])]
        messages = [
            f"{place} is damaged ({reason}): it is ignored, and recreated if this run needs it."
            if self._command_for(place).startswith("modebridge run")
            else self._left_out(place, reason)
            for place, reason in self.damage.items()
            if place not in given  # they cannot be recreated here: an error is raised if they are needed
        ]
        self.files.mend()
        return messages

    def left_out(self) -> list[str]:
        """What was found damaged and therefore not used, one sentence each."""
        return [self._left_out(place, reason) for place, reason in self.damage.items()]

    def _left_out(self, place: str, reason: str) -> str:
        command = self._command_for(place)
        return f"{place} is damaged ({reason}) and is left out{'; to recreate it: ' if command else '.'}{command}"

    def _command_for(self, place: str) -> str:
        """The command that recreates a part of the folder; empty if there is none."""
        top, _, rest = place.partition("/")
        verbs = {
            "studies": f"modebridge study {rest.partition('/')[0]} --out {self.path}",
            "times.json": f"modebridge advise {self.path} --by time",
            "bench": f"modebridge bench {self.path}",
            **dict.fromkeys(("shifted", "others"), f"modebridge study shift --out {self.path}"),
            "metrics": "",
        }
        given = top == "modes" and self.files.was_given(rest)
        return "" if given else verbs.get(top, f"modebridge run --out {self.path}")

    def tidy(self) -> None:
        """Remove what a finished run does not need: checkpoints and partially written artefacts."""
        if self.writes:
            for leftover in (self.path / ".work").iterdir():
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
                elif leftover.name != "lock":
                    leftover.unlink(missing_ok=True)


def _checked(place: str, meta: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an artefact, if it belongs to its place; that of version 0.1 has no seal and does not tell."""
    if "seal" in meta and meta.get("artefact") != place:
        raise Damage(f"it is a copy of {meta.get('artefact')}")
    return meta


def machine() -> dict[str, str]:
    """The machine and versions that an artefact was made with."""
    import modebridge

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    cores = os.cpu_count() or 1
    return {
        "made": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "modebridge": modebridge.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{gpu + ', ' if gpu else ''}{plural(cores, 'core')}, {platform.machine()}",
    }
