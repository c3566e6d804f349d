"""Modes out of the files that people have: torch checkpoints of any make, safetensors; no code in them is run."""

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

from modebridge.data.checkpoint_search import choose_state, choose_states, natural
from modebridge.data.safe_unpickling import ALLOWED
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode

__all__ = ["load_mode", "load_modes", "read_state", "weight_files"]

_ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pth.tar", ".index.json")
_IN_FOLDERS = ("weights.safetensors", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
"""One network a folder: ours, and Hugging Face's."""

ROOM = 8
"""How often a compressed file may hold the network: weights, their average and the optimiser's two moments, in float64.

Files of torch.save are not compressed; what is as large on the disk as in memory is read, however large.
"""

_CUT, _AGAIN = "one that is damaged or ends too early", "copy or download it again"
_PLAIN = "save the state dict alone, torch.save(net.state_dict(), file), or use safetensors"


def load_mode(
    net: nn.Module,
    path: Path | str,
    *,
    ema: bool | None = None,
    prefix: str | None = None,
    ignore: str | Sequence[str] = (),
) -> Mode:
    """A mode out of a file that holds one network of this architecture, and maybe much else.

    A torch file (a state dict, or a checkpoint of timm, Lightning, torch-uncertainty or a loop of one's own) or
    safetensors, also in shards (`*.index.json`). The network is found by its names, so containers such as `state_dict`
    and prefixes such as `module.` (DDP), `_orig_mod.` (compile) and `model.` (Lightning) need not be told. Half
    precision is converted to the network's own; whole and complex numbers are no weights. A compressed file that would
    unpack to more than its own size, and to more than eight times the network's, is refused before it is unpacked.

    Args:
        net: the network; its own weights are neither used nor changed.
        path: the file.
        ema: where a file holds averaged weights (EMA, SWA) beside the others, None takes the averaged ones, as timm's
            own evaluation does; True refuses a file without them; False takes the others.
        prefix: where the network lies if there are several, for example "model.student"; it wins over what would be
            found.
        ignore: tensors beside the network's own that are to be left out: exact names, those of submodules ("aux" for
            all of `aux.*`), or patterns with `*`. The network's own are never left out.

    >>> import tempfile
    >>> net = nn.Linear(2, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"state_dict": {f"model.{k}": v for k, v in net.state_dict().items()}}, f"{folder}/last.ckpt")
    ...     mode = load_mode(nn.Linear(2, 3), f"{folder}/last.ckpt")
    >>> mode.id == Mode.from_module(net).id
    True
    """
    file = Path(path)
    state = choose_state(read_state(file, _room(net)), net, ema=ema, prefix=prefix, ignore=ignore, what=f"'{file}'")
    return _mode(net, state, file)


def load_modes(
    net: nn.Module, path: Path | str, *, ema: bool | None = None, ignore: str | Sequence[str] = ()
) -> list[Mode]:
    """The modes in a file that holds several networks, such as a deep ensemble, or in the files of a folder.

    Args:
        net: the network; its own weights are neither used nor changed.
        path: a file, or a folder: its files of weights in the order of their names (2 before 10), and those of
            subfolders with one network each, such as the `modes` of a run.
        ema: see `load_mode`.
        ignore: see `load_mode`.
    """
    with _readable(Path(path)):
        files = weight_files(Path(path)) if Path(path).is_dir() else [Path(path)]
    return [
        _mode(net, state, file)
        for file in files
        for state in choose_states(read_state(file, _room(net)), net, ema=ema, ignore=ignore, what=f"'{file}'")
    ]


def _room(net: nn.Module) -> int:
    """The bytes that a checkpoint of a network may need."""
    return ROOM * sum(tensor.numel() * tensor.element_size() for tensor in (*net.parameters(), *net.buffers()))


def _mode(net: nn.Module, state: Mapping[str, Tensor], file: Path) -> Mode:
    try:
        return Mode.from_state_dict(net, state)
    except ModebridgeError as error:
        raise ModebridgeError(f"{str(error).removesuffix('.')} (in '{file}').") from error


def weight_files(folder: Path) -> list[Path]:
    """The files of weights in a folder and in its subfolders with one network each, 2 before 10; at least one."""
    if not folder.is_dir():
        raise ModebridgeError(f"Expected '{folder}' to be a folder with files of weights, but there is none.")
    files = [file for file in folder.iterdir() if file.is_file() and file.name.endswith(_ENDINGS)]
    for index in [file for file in files if file.name.endswith(".index.json")]:
        shards = set(_shards(index).values())  # parts of one network, which its index stands for
        files = [file for file in files if file.name not in shards]
    for place in folder.iterdir():
        files += [place / name for name in _IN_FOLDERS if (place / name).is_file()][:1]
    if not files:
        raise ModebridgeError(
            f"Expected '{folder}' to hold files of weights ({', '.join(_ENDINGS)}), but got none; "
            "give the folder they are in."
        )
    return sorted(files, key=lambda file: natural(str(file)))


def read_state(path: Path | str, room: int = 0) -> dict[str, Any]:
    """What a file of weights holds: tensors by name, or dicts of them beside plain values.

    Only tensors, numbers (NumPy's too), strings, paths, argparse's Namespace and containers of them are read, by
    torch's reader that runs no code; a file that asks for any other class is refused.

    Args:
        path: a file of torch.save, of safetensors, or the index of such files in shards; its content counts, not its
            ending.
        room: how many bytes a compressed file may unpack to; its own size is always enough.
    """
    file = Path(path)
    with _readable(file):
        if file.is_dir():
            raise ModebridgeError(f"Expected '{file}' to be a file, but it is a folder; use load_modes for all in it.")
        if not file.is_file():
            raise ModebridgeError(f"Expected '{file}' to be a file of weights, but there is none; check the path.")
        if file.name.endswith(".index.json"):
            return _read_shards(file, room)
        kind = _kind(file, room)
    try:
        if kind == "safetensors":
            return dict(safetensors.torch.load_file(file))
        with torch.serialization.safe_globals(ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about protocols of pickle that we have words for
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle raises whatever it stumbles over
        got, way_out = _refusal(error, kind)
        # Without torch's own words, some of which advise to run the file's code.
        raise ModebridgeError(
            f"Expected '{file}' to hold a state dict of plain tensors, but got {got}; {way_out}."
        ) from error
    if isinstance(content, list | tuple) and content and all(isinstance(item, Mapping) for item in content):
        content = dict(enumerate(content))  # the state dicts of several networks
    if not isinstance(content, Mapping):
        raise ModebridgeError(f"Expected '{file}' to hold a state dict, but got {type(content).__name__}; {_PLAIN}.")
    return {str(key): value for key, value in content.items()}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """One sentence where the system does not let us look at a file."""
    try:
        yield
    except OSError as error:
        raise ModebridgeError(
            f"Expected '{path}' to be readable, but got '{error.strerror or error}'; check the path and who "
            "may read it."
        ) from error


def _kind(file: Path, room: int) -> str:
    """How a file is to be read, by its first bytes."""
    with file.open("rb") as stream:
        head = stream.read(24)
    if head[:4] == b"PK\x03\x04":  # torch.save since version 1.6
        _check_archive(file, room)
        return "torch"
    if head[:1] == b"\x80":  # and before
        return "torch"
    if head[8:9] == b"{":
        return "safetensors"
    if head.startswith(b"version https://git-lfs"):
        got, way_out = "a pointer of Git LFS", "fetch the file itself with git lfs pull"
    else:
        got, way_out = ("neither" if head else "an empty file"), "check that it was written or downloaded whole"
    raise ModebridgeError(f"Expected '{file}' to be a file of torch.save or safetensors, but got {got}; {way_out}.")


def _check_archive(file: Path, room: int) -> None:
    """Refuse a zip archive that is not one of torch.save, or not all of it."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name.split("/", 1)[-1] for name in archive.namelist()]
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise ModebridgeError(f"Expected '{file}' to be a whole file, but got {_CUT}; {_AGAIN}.") from error
    if any(name.startswith("code/") for name in names):
        got = "a TorchScript archive, whose code is not run"
        way_out = "save its weights alone, torch.save(torch.jit.load(file).state_dict(), other)"
    elif "data.pkl" in names:
        packed = file.stat().st_size
        if unpacked > max(packed, room):
            limit = f"{max(packed, room):,} bytes, its own size or {ROOM} times the network's"
            raise ModebridgeError(
                f"Expected '{file}' to unpack to at most {limit}, but got {unpacked:,} bytes; "
                "save the state dict alone with torch.save, which does not compress."
            )
        return
    elif "archive_format" in names or "archive_version" in names:
        got, way_out = "an archive of torch.export", "save the state dict of the network that it was made from"
    else:
        got, way_out = "another zip archive", _PLAIN
    raise ModebridgeError(f"Expected '{file}' to be a file of torch.save or safetensors, but got {got}; {way_out}.")


def _refusal(error: Exception, kind: str) -> tuple[str, str]:
    """What was got where reading failed, and the way out."""
    text = str(error)
    foreign = re.search(r"GLOBAL ([\w.]+)", text)
    if foreign and not foreign[1].endswith("."):  # else cut off in the middle of a name
        return f"the class {foreign[1]}, which is not read since it could run code", _PLAIN
    if "Unsupported operand" in text:
        return "a pickle of another protocol than torch's", "save it without pickle_protocol, or use safetensors"
    if kind == "safetensors" or foreign or not isinstance(error, pickle.UnpicklingError) or "persistent" in text:
        return _CUT, _AGAIN
    # Things that torch's reader does not know are said in one line of several.
    known = re.search(r"WeightsUnpickler error:\s*([^\n.;]+)", text)
    return (known[1].strip() if known and "weights_only" not in known[1] else "something else"), _PLAIN


def _shards(index: Path) -> dict[str, str]:
    """The file that each tensor of a network in shards is in."""
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
            f"Expected '{files[lost[0]]}' to hold '{lost[0]}' as '{index}' says, but it does not; "
            "save or download both again."
        )
    return {name: parts[file][name] for name, file in files.items()}
