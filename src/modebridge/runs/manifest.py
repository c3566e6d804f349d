"""RUN/manifest.json and the files that it covers: everything in a run folder that is neither tensors nor metrics."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from modebridge.errors import ModebridgeError
from modebridge.runs.sealed_records import Damage, digest, read_bytes, sealed, unsealed

__all__ = ["MANIFEST", "RECIPE", "LooseFiles", "Manifest", "writable", "write_whole"]

MANIFEST, RECIPE = "manifest.json", "recipe.toml"
_PLACES = (RECIPE, "results.json", "results.md", "report.html", "elastic.json", "times.json", "data.json", "bench/*.*")
_STUDIES = ("table.json", "table.md", "table.tex", "figure.svg")


@dataclass
class Manifest:
    """The content of a run folder besides its artefacts.

    Args:
        files: the valid hashes of a file, by its path in the folder: one, or two while it is being replaced.
        given: ids of the modes that were trained elsewhere, by name.
        recipes: the text of recipe.toml by its hash, so that changes to it can be reported.
    """

    files: dict[str, list[str]] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    recipes: dict[str, str] = field(default_factory=dict)


class LooseFiles:
    """Reads and writes the loose files of a run folder, each verified by the manifest.

    Before a file is replaced, the manifest lists the new hash next to the old one, and afterwards only the new one. So
    whenever a run is killed, the file is one of the two, intact.

    Args:
        path: the run folder.
        damage: collects what is damaged, by path.
    """

    def __init__(self, path: Path, damage: dict[str, str]) -> None:
        self.path = path
        self._damage = damage
        self._lock = threading.RLock()

    def manifest(self) -> Manifest | None:
        """The manifest; None in a folder of version 0.1, which has none, or if it is damaged, which is recorded."""
        file = self.path / MANIFEST
        try:
            record = unsealed(file, old=False)
            verified = Manifest(record["files"], record["given"], record["recipes"])
        except (Damage, KeyError) as damage:
            if not os.path.lexists(file) and not self._has_seals():
                return None
            self._damage[MANIFEST] = f"{damage}; the files it lists cannot be verified"
            return None
        self._damage.pop(MANIFEST, None)
        return verified

    def text(self, name: str) -> str | None:
        """A file as it was written; None if it is missing, or damaged, which is recorded."""
        manifest = self.manifest()
        listed = manifest.files.get(name) if manifest is not None else None
        if listed is None and not os.path.lexists(self.path / name):
            return None
        if MANIFEST in self._damage:
            return None
        try:
            data = read_bytes(self.path / name)
            if manifest is not None and digest(data) not in (listed or []):
                raise Damage("it does not match its hash" if listed else f"it is not listed in {MANIFEST}")
            text = data.decode()
        except (Damage, UnicodeDecodeError) as damage:
            self._damage[name] = "it is not UTF-8 text" if isinstance(damage, UnicodeDecodeError) else str(damage)
            return None
        self._damage.pop(name, None)
        return text

    def record(self, name: str) -> dict[str, Any]:
        """The JSON object in a file; empty if it is missing, or damaged, which is recorded."""
        text = self.text(name)
        try:
            content = json.loads(text) if text is not None else {}
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            self._damage[name] = "it is not a JSON object"
            return {}
        return content

    def recipe(self) -> tuple[str | None, str | None]:
        """The current text of recipe.toml, and the text last written by a run, each None if unknown.

        This is the only file that users may edit: callers compare the two.
        """
        kept = (self.manifest() or Manifest()).recipes
        try:
            data = read_bytes(self.path / RECIPE)
            now = data.decode(errors="replace")
        except Damage as damage:
            if os.path.lexists(self.path / RECIPE):
                raise ModebridgeError(
                    f"Expected '{self.path / RECIPE}' to be a file of settings, but got: {damage}; move it away."
                ) from None
            data, now = b"", None
        # While it is being replaced there are two: the file itself decides.
        return now, kept.get(digest(data)) or next(iter(kept.values()), None)

    def write(self, files: Mapping[str, str]) -> None:
        """Write files and their hashes; unchanged files are not rewritten."""
        with self._alone():
            manifest = self.manifest()
            fresh = {name: digest(text) for name, text in files.items()}
            existing = {name: self._hash(name) for name in files}
            changed = [name for name in files if existing[name] != fresh[name]]
            if changed and not writable(self.path):
                raise ModebridgeError(
                    f"Expected '{self.path}' to be writable, because {changed[0]} must be written, but it is "
                    "read-only; copy it, or make it writable."
                )
            if manifest is not None and any(manifest.files.get(name) != [hash] for name, hash in fresh.items()):
                for name, hash in fresh.items():
                    listed = existing[name] in manifest.files.get(name, []) and existing[name] != hash
                    manifest.files[name] = [hash, existing[name]] if listed else [hash]
                if RECIPE in files:
                    manifest.recipes = {fresh[RECIPE]: files[RECIPE], **manifest.recipes}
                self._put(manifest)
            for name, text in files.items():
                if existing[name] != fresh[name]:
                    write_whole(self.path / name, text, self.path / ".work")
                self._damage.pop(name, None)
            if manifest is not None:
                self._settle(manifest, fresh)

    def give(self, modes: Mapping[str, str]) -> None:
        """Record modes that were trained elsewhere: they cannot be recreated here."""
        with self._alone():
            manifest = self.manifest()
            if manifest is not None and any(manifest.given.get(name) != hash for name, hash in modes.items()):
                manifest.given |= modes
                self._put(manifest)

    def was_given(self, name: str) -> bool:
        """Whether a mode was trained elsewhere, according to the manifest or to what is left of its metadata."""
        if name in (self.manifest() or Manifest()).given:
            return True
        with suppress(OSError):
            return b'"elsewhere"' in (self.path / "modes" / name / "meta.json").read_bytes()
        return False

    def begin(self) -> None:
        """Create a manifest if there is none: in a new folder, or one of version 0.1, whose files are trusted."""
        with self._alone():
            if self.manifest() is None and MANIFEST not in self._damage:
                self._put(self._found(self.there()))

    def mend(self) -> None:
        """Rewrite a damaged manifest from what verifies itself, and drop files that no longer exist.

        Files that nothing else verifies are not added: the commands that wrote them will write them again.
        """
        with self._alone():
            manifest = self.manifest()
            if manifest is None and MANIFEST in self._damage:
                if (self.path / MANIFEST).is_dir():
                    raise _folder(self.path / MANIFEST)
                self._put(self._found(()))
                self._damage.pop(MANIFEST, None)
            elif manifest is not None:
                gone = [name for name in manifest.files if name != RECIPE and not os.path.lexists(self.path / name)]
                for name in gone:
                    del manifest.files[name]
                    self._damage.pop(name, None)
                if gone:
                    self._put(manifest)

    def check(self) -> None:
        """Check every file, so that damage is recorded; raise an error for a folder in the place of a file."""
        for name in dict.fromkeys([*(self.manifest() or Manifest()).files, *self.there()]):
            if name != RECIPE:
                self.text(name)
            if (self.path / name).is_dir():
                raise _folder(self.path / name)

    def studies(self) -> list[str]:
        """The names of the studies in the folder."""
        files = [*(self.manifest() or Manifest()).files, *self.there()]
        return sorted({Path(name).parent.name for name in files if Path(name).match("studies/*/*")})

    def there(self) -> list[str]:
        """The loose files that exist, intact or not."""
        patterns = (*_PLACES, *(f"studies/*/{name}" for name in _STUDIES))
        return [file.relative_to(self.path).as_posix() for pattern in patterns for file in self.path.glob(pattern)]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Protect the manifest against changes by other threads, and with a file lock by other programs."""
        with self._lock, ExitStack() as stack:
            with suppress(ImportError, OSError):  # not available on Windows and on some network drives
                import fcntl

                handle = os.open(self.path / ".work", os.O_RDONLY)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _found(self, names: Iterable[str]) -> Manifest:
        hashes = {name: self._hash(name) for name in names}
        manifest = Manifest({name: [hash] for name, hash in hashes.items() if hash})
        if RECIPE in manifest.files:
            text = (self.path / RECIPE).read_bytes().decode(errors="replace")
            manifest.recipes = {manifest.files[RECIPE][0]: text}
        for place in self.path.glob("modes/*/meta.json"):
            if self.was_given(place.parent.name):
                manifest.given[place.parent.name] = ""
        return manifest

    def _settle(self, manifest: Manifest, fresh: Mapping[str, str]) -> None:
        settled = {**manifest.files, **{name: [hash] for name, hash in fresh.items()}}
        recipes = {hash: text for hash, text in manifest.recipes.items() if hash in settled.get(RECIPE, [])}
        if (settled, recipes) != (manifest.files, manifest.recipes):
            manifest.files, manifest.recipes = settled, recipes
            self._put(manifest)

    def _put(self, manifest: Manifest) -> None:
        write_whole(self.path / MANIFEST, sealed(asdict(manifest)), self.path / ".work")

    def _hash(self, name: str) -> str:
        try:
            return digest(read_bytes(self.path / name))
        except Damage:
            return ""

    def _has_seals(self) -> bool:
        """Whether anything here was written by a version that writes manifests, so that one must exist."""
        for file in self.path.glob("*/*/meta.json"):
            with suppress(OSError):
                data = file.read_bytes()
                if b'"seal"' in data or b'"format"' in data:
                    return True
        return False


def writable(path: Path) -> bool:
    """Whether files can be created in a folder."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def write_whole(path: Path, text: str, work: Path | None = None) -> None:
    """Write a file atomically.

    Args:
        path: the file.
        text: its content.
        work: a folder on the same file system for the temporary file; None for the file's own folder.
    """
    if path.is_dir():
        raise _folder(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = (work if work is not None and work.is_dir() else path.parent) / f"{path.name}.new"
        with scratch.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        raise ModebridgeError(
            f"Expected to write '{path}', but got '{error}'; free some space or make it writable, then try again."
        ) from error


def _folder(path: Path) -> ModebridgeError:
    return ModebridgeError(f"Expected '{path}' to be a file, but it is a folder; move it away, then try again.")
