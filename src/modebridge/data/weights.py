"""Load modes from the files that people have: torch checkpoints of any kind, safetensors; never runs their code."""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from modebridge.data.checkpoint_search import find_places, natural
from modebridge.data.safe_unpickling import ALLOWED
from modebridge.errors import ModebridgeError, some
from modebridge.modes import Mode

__all__ = ["load_mode", "load_modes", "read_state", "weight_files"]

_ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pth.tar", ".index.json")
_IN_FOLDERS = ("weights.safetensors", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
"""File names in folders with one network each: ours, and Hugging Face's."""

ROOM = 8
"""Size limit of a compressed file, in networks: weights, their average and the optimiser's two moments, in float64.

Files of torch.save are not compressed; a file that is as large on disk as in memory is read whatever its size.
"""

_CUT, _AGAIN = "one that is damaged or truncated", "copy or download it again"
_PLAIN = "save only the state dict, torch.save(net.state_dict(), file), or use safetensors"


def load_mode(
    net: nn.Module,
    path: Path | str,
    *,
    ema: bool | None = None,
    prefix: str | None = None,
    ignore: str | Sequence[str] = (),
) -> Mode:
    """Load a mode from a file that holds one network of this architecture, and possibly much else.

    The file is a torch file (a state dict, or a checkpoint of timm, Lightning, torch-uncertainty or your own loop) or
    safetensors, also in shards (`*.index.json`). The network is found by its names, so containers such as `state_dict`
    and prefixes such as `module.` (DDP), `_orig_mod.` (compile) and `model.` (Lightning) need not be specified. Half
    precision is converted to the network's own; integers and complex numbers are not accepted as weights. A compressed
    file that would unpack to more than its own size, and to more than eight times the network's, raises an error before
    it is unpacked.

    Args:
        net: the network; its own weights are neither used nor changed.
        path: the file.
        ema: if a file also holds averaged weights (EMA, SWA), None uses the averaged ones, as timm's evaluation does;
            True requires them; False uses the others.
        prefix: where the network is if there are several, for example "model.student"; overrides the search.
        ignore: further tensors in the file to skip: exact names, names of submodules ("aux" for all of `aux.*`), or
            patterns with `*`. The network's own tensors are never skipped.

    >>> import tempfile
    >>> net = nn.Linear(2, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"state_dict": {f"model.{k}": v for k, v in net.state_dict().items()}}, f"{folder}/last.ckpt")
    ...     mode = load_mode(nn.Linear(2, 3), f"{folder}/last.ckpt")
    >>> mode.id == Mode.from_module(net).id
    True
    """
    file = Path(path)
    places = find_places(read_state(file, _room(net)), net, ema=ema, prefix=prefix, ignore=ignore, what=f"'{file}'")
    if len(places) > 1:
        raise ModebridgeError(
            f"Expected '{file}' to hold one {type(net).__name__}, but got {len(places)}, "
            f"{some([place.path for place in places])}; choose one with prefix=, or load all with load_modes."
        )
    return _mode(net, places[0].tensors, file)


def load_modes(
    net: nn.Module, path: Path | str, *, ema: bool | None = None, ignore: str | Sequence[str] = ()
) -> list[Mode]:
    """Load the modes in a file that holds several networks, such as a deep ensemble, or in the files of a folder.

    Args:
        net: the network; its own weights are neither used nor changed.
        path: a file, or a folder: its weight files sorted by name (2 before 10), and those of subfolders with one
            network each, such as the `modes` of a run.
        ema: see `load_mode`.
        ignore: see `load_mode`.
    """
    with _readable(Path(path)):
        files = weight_files(Path(path)) if Path(path).is_dir() else [Path(path)]
    return [
        _mode(net, place.tensors, file)
        for file in files
        for place in find_places(read_state(file, _room(net)), net, ema=ema, ignore=ignore, what=f"'{file}'")
    ]


def _room(net: nn.Module) -> int:
    """The maximum number of bytes for a checkpoint of a network."""
    return ROOM * sum(tensor.numel() * tensor.element_size() for tensor in (*net.parameters(), *net.buffers()))


def _mode(net: nn.Module, state: Mapping[str, Tensor], file: Path) -> Mode:
    try:
        return Mode.from_state_dict(net, state)
    except ModebridgeError as error:
        raise ModebridgeError(f"{str(error).removesuffix('.')} (in '{file}').") from error


def weight_files(folder: Path) -> list[Path]:
    """The weight files in a folder and in its subfolders with one network each, 2 before 10; at least one."""
    if not folder.is_dir():
        raise ModebridgeError(f"Expected '{folder}' to be a folder with weight files, but it does not exist.")
    files = [file for file in folder.iterdir() if file.is_file() and file.name.endswith(_ENDINGS)]
    for index in [file for file in files if file.name.endswith(".index.json")]:
        shards = set(_shards(index).values())  # the index stands for these parts of one network
        files = [file for file in files if file.name not in shards]
    for place in folder.iterdir():
        files += [place / name for name in _IN_FOLDERS if (place / name).is_file()][:1]
    if not files:
        raise ModebridgeError(
            f"Expected '{folder}' to contain weight files ({', '.join(_ENDINGS)}), but got none; "
            "pass the folder they are in."
        )
    return sorted(files, key=lambda file: natural(str(file)))


def read_state(path: Path | str, room: int = 0) -> dict[str, Any]:
    """The content of a weight file: tensors by name, or dicts of them next to plain values.

    Only tensors, numbers (NumPy's too), strings, paths, argparse's Namespace and containers of them are read, by
    torch's reader that runs no code; a file that refers to any other class raises an error.

    Args:
        path: a file of torch.save or safetensors, or the index of a sharded one; recognised by content, not by name.
        room: maximum number of bytes that a compressed file may unpack to; its own size is always allowed.
    """
    file = Path(path)
    with _readable(file):
        if file.is_dir():
            raise ModebridgeError(f"Expected '{file}' to be a file, but it is a folder; use load_modes for all in it.")
        if not file.is_file():
            raise ModebridgeError(f"Expected '{file}' to be a weight file, but it does not exist; check the path.")
        if file.name.endswith(".index.json"):
            return _read_shards(file, room)
        kind = _kind(file, room)
    try:
        if kind == "safetensors":
            return dict(safetensors.torch.load_file(file))
        with torch.serialization.safe_globals(ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pickle protocols get an error of our own
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle can raise anything
        got, fix = _refusal(error, kind)
        # Leave out torch's message, which may suggest running the file's code.
        raise ModebridgeError(
            f"Expected '{file}' to hold a state dict of plain tensors, but got {got}; {fix}."
        ) from error
    if isinstance(content, list | tuple) and content and all(isinstance(item, Mapping) for item in content):
        content = dict(enumerate(content))  # the state dicts of several networks
    if not isinstance(content, Mapping):
        raise ModebridgeError(f"Expected '{file}' to hold a state dict, but got {type(content).__name__}; {_PLAIN}.")
    return {str(key): value for key, value in content.items()}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise a readable error if the system denies access to a file."""
    try:
        yield
    except OSError as error:
        raise ModebridgeError(
            f"Expected '{path}' to be readable, but got '{error.strerror or error}'; check the path and its "
            "permissions."
        ) from error


def _kind(file: Path, room: int) -> str:
    """The format of a file, by its first bytes."""
    with file.open("rb") as stream:
        head = stream.read(24)
    if head[:4] == b"PK\x03\x04":  # torch.save since version 1.6
        _check_archive(file, room)
        return "torch"
    if head[:1] == b"\x80":  # torch.save before version 1.6
        return "torch"
    if head[8:9] == b"{":
        return "safetensors"
    if head.startswith(b"version https://git-lfs"):
        got, fix = "a Git LFS pointer", "fetch the file itself with git lfs pull"
    else:
        got, fix = ("neither" if head else "an empty file"), "check that it was written or downloaded completely"
    raise ModebridgeError(f"Expected '{file}' to be a file of torch.save or safetensors, but got {got}; {fix}.")


def _check_archive(file: Path, room: int) -> None:
    """Raise an error if a zip archive is not from torch.save, or is incomplete or too large."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name.split("/", 1)[-1] for name in archive.namelist()]
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise ModebridgeError(f"Expected '{file}' to be a complete file, but got {_CUT}; {_AGAIN}.") from error
    if any(name.startswith("code/") for name in names):
        got = "a TorchScript archive, whose code is not run"
        fix = "save only its weights, torch.save(torch.jit.load(file).state_dict(), other)"
    elif "data.pkl" in names:
        packed = file.stat().st_size
        if unpacked > max(packed, room):
            limit = f"{max(packed, room):,} bytes, its own size or {ROOM} times the network's"
            raise ModebridgeError(
                f"Expected '{file}' to unpack to at most {limit}, but got {unpacked:,} bytes; "
                "save only the state dict with torch.save, which does not compress."
            )
        return
    elif "archive_format" in names or "archive_version" in names:
        got, fix = "an archive of torch.export", "save the state dict of the original network"
    else:
        got, fix = "another zip archive", _PLAIN
    raise ModebridgeError(f"Expected '{file}' to be a file of torch.save or safetensors, but got {got}; {fix}.")


def _refusal(error: Exception, kind: str) -> tuple[str, str]:
    """What was found when reading failed, and how to fix it."""
    text = str(error)
    unknown_class = re.search(r"GLOBAL ([\w.]+)", text)
    if unknown_class and not unknown_class[1].endswith("."):  # otherwise the name is cut off
        return f"the class {unknown_class[1]}, which is not loaded because it could run code", _PLAIN
    if "Unsupported operand" in text:
        return "a pickle with a protocol other than torch's", "save it without pickle_protocol, or use safetensors"
    if kind == "safetensors" or unknown_class or not isinstance(error, pickle.UnpicklingError) or "persistent" in text:
        return _CUT, _AGAIN
    # Torch's reader names what it does not support in one line of several.
    reported = re.search(r"WeightsUnpickler error:\s*([^\n.;]+)", text)
    return (reported[1].strip() if reported and "weights_only" not in reported[1] else "something else"), _PLAIN


def _shards(index: Path) -> dict[str, str]:
    """The file of each tensor of a sharded network."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): Path(file).name for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModebridgeError(
            f"Expected '{index}' to name the file of each tensor in its weight_map, but got {type(error).__name__}; "
            "save the network again."
        ) from error


def _read_shards(index: Path, room: int) -> dict[str, Any]:
    files = _shards(index)
    nested = [file for file in files.values() if file.endswith(".index.json")]
    if nested:
        raise ModebridgeError(
            f"Expected '{index}' to name files of tensors, but got '{nested[0]}', an index; save the network again."
        )
    parts = {file: read_state(index.with_name(file), room) for file in sorted(set(files.values()))}
    lost = [name for name, file in files.items() if name not in parts[file]]
    if lost:
        raise ModebridgeError(
            f"Expected '{files[lost[0]]}' to hold '{lost[0]}' as listed in '{index}', but it does not; "
            "save or download both again."
        )
    return {name: parts[file][name] for name, file in files.items()}
