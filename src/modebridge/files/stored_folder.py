"""The file format: a folder with config.json and model.safetensors, written atomically and without any code."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from modebridge.errors import ModebridgeError, first_line
from modebridge.files.parts import Parts

__all__ = ["CARD", "CONFIG", "FORMAT", "WEIGHTS", "Place", "local", "read_folder", "write_folder"]

Place = str | os.PathLike[str]

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"

FORMAT = 1
"""Increased when older versions cannot read new folders."""

LIBRARY = "modebridge"

NEW = ".new"
"""Suffix of files that are being written."""

MOST = 2**26
"""Maximum size of config.json in bytes; a larger file is something else."""


def write_folder(path: Place, parts: Parts, card: str | None = None) -> Path:
    """Write an object as a folder; an earlier object is replaced, other files in the folder stay.

    The weights are replaced first, then config.json, which holds their hash. If the program is killed in between,
    `read_folder` finds the new config.json under its temporary name, so the folder always holds one of the two objects.

    Args:
        path: the folder; created with its parents if needed.
        parts: the object.
        card: text of README.md; None leaves that file alone.
    """
    folder = _target(path)
    tensors = {name: _plain(name, tensor) for name, tensor in parts.tensors.items()}
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    scratch = [folder / f"{name}{NEW}" for name in (WEIGHTS, CONFIG, CARD)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(tensors, scratch[0], metadata={"format": "pt"})
        scratch[1].write_text(_config(parts, _digest(scratch[0])), encoding="utf-8")
        if card is not None:
            scratch[2].write_text(card, encoding="utf-8", newline="\n")
        _settle(scratch if card is not None else scratch[:2])
    except BaseException as error:
        for file in scratch:
            with suppress(OSError):
                file.unlink()
        with suppress(OSError):  # until one is not empty
            for place in created:
                place.rmdir()
        if isinstance(error, ModebridgeError) or not isinstance(error, Exception):
            raise
        hint = "check space and permissions, or choose another folder"
        raise ModebridgeError(f"Expected to write '{folder}', but got '{first_line(error)}'; {hint}.") from error
    return folder


def read_folder(path: Place) -> Parts:
    """Read the object in a folder, and verify it against its hashes."""
    folder = local(path)
    if not folder.is_dir():
        got = "it is a file" if folder.exists() else "it does not exist"
        raise ModebridgeError(f"Expected '{folder}' to be a folder written by save, but {got}; check the path.")
    try:
        weights = _checked_file(folder, WEIGHTS) if (folder / CONFIG).exists() else folder / WEIGHTS
        config = _read_config(folder, CONFIG)
        digest = _digest(weights)
        if config["sha256"] != digest and (folder / f"{CONFIG}{NEW}").is_file():
            config = _read_config(folder, f"{CONFIG}{NEW}")  # the writer was killed before its last step
    except OSError as error:
        raise ModebridgeError(
            f"Expected '{folder}' to be readable, but got '{error.strerror or error}'; check its permissions."
        ) from error
    if config["sha256"] != digest:
        pointer = weights.stat().st_size < 1024 and weights.read_bytes().startswith(b"version https://git-lfs")
        got = "is only a Git LFS pointer" if pointer else "does not match its hash in config.json"
        way_out = "run git lfs pull" if pointer else "download, copy or save it again"
        raise ModebridgeError(f"Expected '{weights}' to be as it was saved, but it {got}; {way_out}.")
    try:
        stored = safetensors.torch.load_file(weights)
        strides = config["strides"]
        tensors = {name: _in_memory(stored[name], strides.get(name)) for name in config["tensors"]}
        return Parts(str(config["kind"]), dict(config["object"]), tensors)
    except Exception as error:  # a file made by hand with valid hashes can still be wrong in any way
        raise ModebridgeError(
            f"Expected '{folder}' to hold the tensors that its config.json names, but got '{first_line(error)}'; "
            "save or download it again."
        ) from error


def local(path: Place) -> Path:
    """A path given by a user, with "~" expanded; an empty one is refused, since it would be the current folder."""
    try:
        text = os.fspath(path)
        if not text or "\0" in text:
            raise ValueError
        return Path(text).expanduser()
    except (TypeError, ValueError, RuntimeError):
        raise ModebridgeError(f"Expected the path of a folder, but got {str(path)[:80]!r}; name a folder.") from None


def _target(path: Place) -> Path:
    """The folder to write to; files that modebridge has not written are not replaced."""
    folder = local(path)
    try:
        if folder.exists() and not folder.is_dir():
            raise ModebridgeError(f"Expected '{folder}' to be a folder, but it is a file; choose another name.")
        config = folder / CONFIG
        foreign = os.path.lexists(folder / WEIGHTS)
        if os.path.lexists(config):
            foreign = not config.is_file() or f'"{LIBRARY}"' not in config.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ModebridgeError(f"Expected to write '{folder}', but got '{error}'; choose another folder.") from error
    if foreign:
        raise ModebridgeError(
            f"Expected '{folder}' to be new or written by modebridge, but it holds a {CONFIG} or {WEIGHTS} of "
            "another program; choose another folder."
        )
    return folder


def _config(parts: Parts, digest: str) -> str:
    strides = {name: list(order) for name, tensor in parts.tensors.items() if (order := _strides(tensor)) is not None}
    config = {
        "library": LIBRARY,
        "format": FORMAT,
        "kind": parts.kind,
        "version": sys.modules[LIBRARY].__version__,  # not imported: the root of the package is above every layer
        "object": parts.config,
        "tensors": list(parts.tensors),
        "strides": strides,
        "sha256": digest,
    }
    try:
        return json.dumps({**config, "seal": _seal(config)}, indent=1) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ModebridgeError(
            f"Expected plain numbers and text beside the tensors, but got '{first_line(error)}'; convert them with "
            "float(), int() or str()."
        ) from error


def _read_config(folder: Path, name: str) -> dict[str, Any]:
    file = _checked_file(folder, name)
    again = "download, copy or save it again"
    try:
        if file.stat().st_size > MOST:
            raise ValueError
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ModebridgeError(f"Expected '{file}' to be JSON, but it is damaged; {again}.") from None
    if not isinstance(config, dict) or config.get("library") != LIBRARY or "format" not in config:
        raise ModebridgeError(
            f"Expected '{file}' to be written by modebridge, but it is not; read checkpoints of other "
            "libraries with modebridge.load_mode."
        )
    version = config["format"]
    if isinstance(version, int) and version > FORMAT:
        raise ModebridgeError(
            f"Expected '{file}' to be of format {FORMAT} or older, but got {version}; install a newer modebridge."
        )
    if version != FORMAT or config.get("seal") != _seal(config):
        raise ModebridgeError(f"Expected '{file}' to be as it was saved, but it does not match its seal; {again}.")
    return config


def _checked_file(folder: Path, name: str) -> Path:
    file = folder / name
    if file.is_file():
        return file
    if name == CONFIG and (folder / "recipe.toml").exists():
        raise ModebridgeError(
            f"Expected '{folder}' to be written by save, but it is a run folder; convert it: "
            f"modebridge push {folder} --folder DIR"
        )
    raise ModebridgeError(f"Expected '{folder}' to be written by save, but it has no {name}; check the path.")


def _seal(config: Mapping[str, Any]) -> str:
    """A hash of everything but the seal, independent of the order."""
    rest = {key: value for key, value in config.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _settle(files: list[Path]) -> None:
    """Rename files to their final names, in order, once all of them are on disk."""
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    for file in files:
        file.replace(file.with_name(file.name.removesuffix(NEW)))


def _plain(name: str, tensor: Tensor) -> Tensor:
    """A separate copy on the CPU: tensors that share memory are stored one by one."""
    if not isinstance(tensor, Tensor):
        raise ModebridgeError(
            f"Expected '{name}' to be a tensor, but got {type(tensor).__name__}; remove the extra state of that module."
        )
    odd = tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta"
    if odd or not re.fullmatch(r"torch\.(bool|u?int(8|16|32|64)|b?float(16|32|64)|float8\w+)", str(tensor.dtype)):
        got = f"{tensor.dtype} of layout {tensor.layout} on {tensor.device.type}"
        raise ModebridgeError(
            f"Expected '{name}' to be a dense tensor of real numbers, but got {got}; convert it before saving."
        )
    return tensor.detach().to("cpu").resolve_neg().contiguous().clone(memory_format=torch.contiguous_format)


def _strides(tensor: Tensor) -> tuple[int, ...] | None:
    """The strides of a dense tensor unless they are the default: rounding of convolutions depends on them."""
    dense = torch.empty_like(tensor, device="meta").stride()
    return dense if dense != torch.empty(tensor.shape, device="meta").stride() else None


def _in_memory(tensor: Tensor, strides: list[int] | None) -> Tensor:
    """A copy that does not depend on the file, with the given strides."""
    if strides is None:
        return tensor.clone()
    dense = 1
    for stride, size in sorted(zip(strides, tensor.shape, strict=True)):
        if size > 1:
            if stride != dense:
                raise ValueError("strides of a tensor that is not dense")
            dense *= size
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
