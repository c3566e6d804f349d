"""A run folder: one folder per artefact, whole or not at all, found again by what it was made from."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.runs.artefact_files import FILES, read_artefact, stamp_of
from modebridge.runs.epoch_files import EpochFiles
from modebridge.runs.manifest import MANIFEST, RECIPE, LooseFiles, writable
from modebridge.runs.sealed_records import Damage, sealed, unsealed
from modebridge.training import Checkpoints

__all__ = ["RunFolder", "machine"]

T = TypeVar("T")


class RunFolder:
    """The only reader and writer of a run folder; what it gives back is verified, and what is not whole is noted.

    An artefact, RUN/KIND/NAME, is `weights.safetensors` and `meta.json`: key, hash of the tensors, what it was made
    from, seconds, machine, its own place, and a seal over all of it. It appears by rename. Other files are verified by
    RUN/manifest.json (see `files`), epochs in RUN/metrics by sums of their own (see `metrics`). Work under way is saved
    in RUN/.work, so that a run killed anywhere goes on.

    Args:
        path: the folder; made where it does not exist.
        every: seconds between two checkpoints of what is being trained.
        writes: whether this process writes; the others of a group only read.
    """

    def __init__(self, path: Path | str, every: float = 10.0, *, writes: bool = True) -> None:
        self.path = Path(path)
        self.damage: dict[str, str] = {}
        """What was found not to be whole and therefore was not used: the reason by its place in the folder."""
        self.files = LooseFiles(self.path, self.damage)
        self.metrics = EpochFiles(self.path / "metrics", self.damage)
        self.read_only = writes and self.path.is_dir() and not writable(self.path)
        self.writes = writes and not self.read_only
        self.every = every
        self._stamps: dict[str, tuple[object, ...]] = {}
        """Of artefacts that were verified, so that they are not hashed twice."""
        self._made: list[Path] = []
        """The folders that were not there before, the innermost last."""
        if not self.writes and self.path.is_dir():
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
        with self._lock_file() as file:
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

    @contextmanager
    def _lock_file(self) -> Iterator[IO[str]]:
        try:
            file = (self.path / ".work" / "lock").open("a")
        except OSError as error:
            raise ModebridgeError(
                f"Expected '{self.path}' to be a folder to write to, but got '{error}'; choose another."
            ) from error
        with file:
            yield file

    def undo(self) -> None:
        """After a failure: remove the folder if it was made for this run and nothing has been made in it."""
        if not self.writes or self.path.absolute() not in self._made:
            return
        held = {place.relative_to(self.path).as_posix() for place in self.path.rglob("*")}
        if held <= {RECIPE, MANIFEST, ".work", ".work/lock"}:
            shutil.rmtree(self.path, ignore_errors=True)
            for place in reversed(self._made[:-1]):
                try:
                    place.rmdir()
                except OSError:  # somebody else has put something there since
                    return

    def meta(self, place: str) -> dict[str, Any]:
        """The metadata of an artefact; empty where there is none that is whole."""
        return self._noting_damage(place, lambda: self._metadata(place), {})

    def peek(self, place: str) -> dict[str, Any]:
        """The metadata of an artefact without looking at its tensors, which may be damaged."""
        notes = self.path / place / FILES[0]
        return self._noting_damage(place, lambda: self._own(place, unsealed(notes)) if notes.exists() else {}, {})

    def read(self, place: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and metadata of an artefact, whatever it was made from; empty where there is none that is whole.

        Args:
            place: its path in the folder, "modes/0".
        """
        nothing: tuple[dict[str, Tensor], dict[str, Any]] = ({}, {})
        return self._noting_damage(place, lambda: self._whole(place), nothing)

    def _noting_damage(self, place: str, look: Callable[[], T], empty: T) -> T:
        self.damage.pop(place, None)
        try:
            return look()
        except Damage as damage:
            self.damage[place] = str(damage)
            return empty

    def _metadata(self, place: str) -> dict[str, Any]:
        notes, weights = (self.path / place / name for name in FILES)
        if place in self._stamps and self._stamps[place] == stamp_of(notes, weights):
            return self._own(place, unsealed(notes))  # its tensors were verified before
        return self._whole(place)[1]

    def _own(self, place: str, meta: dict[str, Any]) -> dict[str, Any]:
        if "seal" in meta and meta.get("artefact") != place:
            raise Damage(f"it is a copy of {meta.get('artefact')}")
        return meta

    def _whole(self, place: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The rule by which every artefact is read; those of version 0.1 have no seal, only a hash of their tensors."""
        notes, weights = (self.path / place / name for name in FILES)
        if not os.path.lexists(notes) and not os.path.lexists(weights):
            return {}, {}
        stamp = stamp_of(notes, weights)
        tensors, meta = read_artefact(self.path / place, known=self._stamps.get(place) == stamp)
        meta = self._own(place, meta)
        self._stamps[place] = stamp
        return tensors, meta

    def places(self, folder: str = "*") -> list[str]:
        """The artefacts that are there, whole or not: all, or those of one folder."""
        files = (file for file in self.path.glob(f"{folder}/*/*") if file.name in FILES)
        places = {file.parent.relative_to(self.path).as_posix() for file in files}
        return sorted(place for place in places if not place.startswith(".work/"))

    def keep(self, place: str, key: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write an artefact beside the others, then put it in its place."""
        if not self.writes:
            return
        self.files.begin()
        work, folder = self.path / ".work", self.path / place
        scratch, old = (work / f"{place.replace('/', '-')}.{end}" for end in ("new", "old"))
        plain_tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        meta = {"artefact": place, "key": key, "hash": trees.fingerprint(plain_tensors), **machine(), **metadata}
        try:
            for rest in (scratch, old):
                shutil.rmtree(rest, ignore_errors=True)
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
                f"Expected to write '{folder}', but got '{error}'; make room, then start the run again."
            ) from error
        self.damage.pop(place, None)

    def mend(self) -> list[str]:
        """Before a run: look at everything, and write a damaged manifest again.

        Returns:
            What is not whole, a sentence each.
        """
        self.files.begin()
        self.files.check()
        for place in self.places():
            self.meta(place)
        for place in self.metrics.places():
            self.metrics.read(place)
        given = [place for place in self.damage if place.startswith("modes/") and self.files.was_given(place[6:])]
        sentences = [
            f"{place} is damaged ({reason}): it is not used, and made again where this run needs it."
            if self._way_out(place).startswith("modebridge run")
            else self._left_out(place, reason)
            for place, reason in self.damage.items()
            if place not in given  # nothing here can make those again: whoever needs them refuses
        ]
        self.files.mend()
        return sentences

    def left_out(self) -> list[str]:
        """What was found not to be whole and was not used, a sentence each."""
        return [self._left_out(place, reason) for place, reason in self.damage.items()]

    def _left_out(self, place: str, reason: str) -> str:
        way_out = self._way_out(place)
        return f"{place} is damaged ({reason}) and is left out{'; make it again: ' if way_out else '.'}{way_out}"

    def _way_out(self, place: str) -> str:
        """What makes a part of the folder again; empty where nothing does."""
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

    def checkpoints(self, name: str) -> Checkpoints:
        """Where some training saves itself.

        Args:
            name: see `Job.saved_as`.
        """
        return Checkpoints(self.path / ".work" / name, self.every)

    def tidy(self) -> None:
        """Remove what a finished run has no use for: checkpoints and half-written artefacts."""
        if self.writes:
            for rest in (self.path / ".work").iterdir():
                if rest.is_dir():
                    shutil.rmtree(rest, ignore_errors=True)
                elif rest.name != "lock":
                    rest.unlink(missing_ok=True)


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
