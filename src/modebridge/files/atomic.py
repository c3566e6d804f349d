"""Files and folders that appear whole or not at all, and one hash over tensors and metadata, checked on read.

Everything that modebridge stores is written here: saved objects, artifacts of a run, checkpoints, exported files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import safetensors.torch
import torch
from torch import Tensor

from modebridge import trees
from modebridge.errors import ModebridgeError, first_line, quoting
from modebridge.nets.quirks import unusual
from modebridge.types import Params

Content: TypeAlias = bytes | str | Callable[[Path], object]
"""Content of a file, or a function that writes it to the path it gets (which has the suffix of the final one)."""

FILES = ("weights.safetensors", "meta.json")
"""The files of a stored folder: its tensors, and its metadata with the hash over both."""

HASH, TENSORS = "hash", "tensors"
RECORD = "modebridge"


class Damage(ModebridgeError):  # noqa: N818 - a finding about a file
    """What is stored is missing, incomplete, or not as it was written: "FILE reason"."""

    def __init__(self, path: Path, reason: str, way_out: str = "download, copy or write it again") -> None:
        super().__init__(f"Expected '{path}' to be as it was written, but it {reason}; {way_out}.")
        self.reason = f"{path.name} {reason}"


def write_file(path: Path | str, content: Content, *, keep: Path | None = None) -> None:
    """Write a file, which replaces an earlier one only when it is complete and on disk; that one is kept as `keep`."""
    path = Path(path).resolve()
    with _scratch(path) as scratch:
        _write(scratch, content)
        if keep is not None and path.exists():
            path.replace(keep)
        scratch.replace(path)


def write_folder(path: Path | str, files: Mapping[str, Content]) -> None:
    """Write a folder with these files, which replaces whatever has its name only when it is complete and on disk."""
    path = Path(path).resolve()
    old = path.with_name(f".old-{path.name}")
    with _scratch(path) as scratch:
        scratch.mkdir()
        for name, content in files.items():
            _write(scratch / name, content)
        if os.path.lexists(path):
            _remove(old)
            path.replace(old)
        scratch.replace(path)
        _remove(old)


def latest(folder: Path) -> Path:
    """Where a folder is: under its former name beside its own if its writer was killed between the two renames."""
    before = folder.parent / f".old-{folder.name}"
    return before if not os.path.lexists(folder) and os.path.lexists(before) else folder


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left in a folder; no writer may be active."""
    for old in list(folder.rglob(".old-*")):
        if latest(path := old.with_name(old.name.removeprefix(".old-"))) == old:
            old.replace(path)
    for left in [*folder.rglob(".new-*"), *folder.rglob(".old-*")]:
        _remove(left)


def sealed(metadata: Mapping[str, Any], tensors: Params = MappingProxyType({})) -> str:
    """Metadata as JSON, with the hash over it and the tensors it belongs to.

    >>> sorted(json.loads(sealed({"seconds": 1.5})))
    ['hash', 'seconds']
    """
    for name, tensor in tensors.items():
        got = unusual(tensor) if isinstance(tensor, Tensor) else type(tensor).__name__
        if got is not None or tensor.is_complex():
            raise ModebridgeError(
                f"Expected '{name}' to be a dense tensor of real numbers, but got {got or tensor.dtype}; convert it "
                "before saving."
            )
    listed = {TENSORS: [[name, _strides(tensor)] for name, tensor in tensors.items()]} if tensors else {}
    with quoting("plain numbers and text beside the tensors", "convert them with float(), int() or str()"):
        record = json.loads(json.dumps({**metadata, **listed}))  # tuples as lists, keys as text
    return json.dumps({**record, HASH: _hash(record, tensors)}, indent=1) + "\n"


def read_sealed(path: Path) -> dict[str, Any]:
    """Metadata that was written by `sealed` without tensors."""
    return _unsealed(path, _bytes(path), {})[1]


def stored_files(tensors: Params, metadata: Mapping[str, Any], names: tuple[str, str] = FILES) -> dict[str, Content]:
    """The two files of a stored folder, for `write_folder`."""
    return {names[1]: sealed(metadata, tensors), names[0]: _writer(tensors, {"format": "pt"})}


def read_stored(folder: Path, names: tuple[str, str] = FILES) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (on the CPU, in their order, with their strides) and metadata of a stored folder."""
    folder = latest(folder)
    return _unsealed(folder, _bytes(folder / names[1]), _tensors(folder / names[0]))


def tensor_file(tensors: Params, metadata: Mapping[str, Any]) -> Content:
    """Tensors and metadata in one file, for `write_file`."""
    return _writer(tensors, {RECORD: sealed(metadata, tensors)})


def read_tensor_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a file made by `tensor_file`."""
    tensors = _tensors(path)
    with safetensors.safe_open(path, "pt") as file:
        text = (file.metadata() or {}).get(RECORD, "")
    return _unsealed(path, text, tensors)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A temporary name beside a path. Writers have their own, so that two do not disturb each other."""
    scratch = path.with_name(f".new-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(scratch)
        yield scratch
    except (OSError, safetensors.SafetensorError) as error:
        raise ModebridgeError(
            f"Expected to write '{path}', but got '{first_line(error)}'; check space and permissions, or choose "
            "another place."
        ) from error
    finally:
        _remove(scratch)


def _write(path: Path, content: Content) -> None:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _writer(tensors: Params, header: dict[str, str]) -> Callable[[Path], None]:
    # Separate copies: tensors that share memory are stored one by one.
    plain = {
        name: tensor.detach().to("cpu").resolve_neg().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return lambda path: safetensors.torch.save_file(plain, path, header)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise Damage(path, "is missing", "check the path") from None
    except OSError as error:
        raise Damage(path, f"cannot be read: {error.strerror or error}", "check its permissions") from error


def _tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise Damage(path, "is missing", "check the path")
    try:
        return safetensors.torch.load_file(path)
    except Exception as error:  # a damaged file can raise anything
        raise Damage(path, f"cannot be read: {first_line(error)}") from error


def _unsealed(path: Path, text: str | bytes, tensors: Params) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        record = json.loads(text)
        expected = record.pop(HASH)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise Damage(path, "has no readable hash") from None
    if expected != _hash(record, tensors):
        raise Damage(path, "does not match its hash")
    try:  # a file made by hand with a valid hash can still be wrong in any way
        return {name: _in_memory(tensors[name], strides) for name, strides in record.pop(TENSORS, [])}, record
    except Exception as error:
        raise Damage(path, f"does not hold the tensors that it names: {first_line(error)}") from error


def _hash(record: Mapping[str, Any], tensors: Params) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{text}{trees.fingerprint(tensors)}".encode()).hexdigest()


def _strides(tensor: Tensor) -> list[int] | None:
    """The strides of a dense tensor unless they are the default: rounding of convolutions depends on them."""
    dense = torch.empty_like(tensor, device="meta").stride()
    return list(dense) if dense != torch.empty(tensor.shape, device="meta").stride() else None


def _in_memory(tensor: Tensor, strides: list[int] | None) -> Tensor:
    """A copy that does not depend on the file, with the given strides."""
    if strides is None:
        return tensor.clone()
    if _strides(torch.empty_strided(tensor.shape, strides, device="meta")) != strides:
        raise ValueError("strides of a tensor that is not dense")
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
