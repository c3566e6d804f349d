"""Read the checkpoints that people have: torch files of any kind and safetensors; never runs their code."""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError, quoting, some
from modebridge.files.adapters import CONFIG as ADAPTER, WEIGHTS as ADAPTER_WEIGHTS, adapter_state, quiet
from modebridge.files.checkpoint_search import find_places, natural
from modebridge.modes import Mode, Trained, check_net, to_mode

_ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pth.tar")
_IN_FOLDERS = ("weights.safetensors", "model.safetensors", "pytorch_model.bin", ADAPTER_WEIGHTS)
"""File names in folders with one network each: ours, and Hugging Face's."""

_UNUSED = re.compile(
    r"_|(transformers_version|(torch_)?dtype|architectures|gradient_checkpointing|problem_type|model_type|use_cache|"
    r"return_dict|output_(attentions|hidden_states)|tie_\w+|bos_token_id|label2id|id2label|quantization_config)$|"
    r"attn_impl|experts_impl|auto_map|init|mask_time|mask_feature|chunk_size|.*(dropout|pdrop|drop\w*_rate|drop$|loss)"
)
"""Keys of a config of transformers that do not change what a trained network computes; labels are compared apart."""

_PLAIN = "save only the state dict, torch.save(net.state_dict(), file), or use safetensors"


def load_checkpoint(
    net: nn.Module,
    path: str | PathLike[str],
    *,
    ema: bool | None = None,
    prefix: str | None = None,
    ignore: str | Sequence[str] = (),
) -> Mode:
    """Load a mode from a file that holds one network of this architecture, and possibly much else.

    The file is a torch file (a state dict, or a checkpoint of timm, Lightning, torch-uncertainty or your own loop) or
    safetensors; for a model of transformers also a folder of `save_pretrained`, for one with an adapter of peft the
    folder of an adapter of the same kind. The network is found by its names, so
    containers such as `state_dict` and prefixes such as `module.` (DDP), `_orig_mod.` (compile) and `model.`
    (Lightning) need not be specified. Half precision is converted to the network's own; integers and complex numbers
    are not accepted as weights.

    Args:
        net: the network; its own weights are neither used nor changed.
        path: the file or folder.
        ema: if a file also holds averaged weights (EMA, SWA), None uses the averaged ones, as timm's evaluation does;
            True requires them; False uses the others.
        prefix: where the network is if there are several, for example "model.student"; overrides the search.
        ignore: further tensors in the file to skip: exact names, names of submodules ("aux" for all of `aux.*`), or
            patterns with `*`. The network's own tensors are never skipped.

    Returns:
        The mode; `net = mode.load(net)` is a copy of the network with these weights.

    >>> import tempfile
    >>> net = nn.Linear(2, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"state_dict": {f"model.{k}": v for k, v in net.state_dict().items()}}, f"{folder}/last.ckpt")
    ...     mode = load_checkpoint(nn.Linear(2, 3), f"{folder}/last.ckpt")
    >>> mode.id == Mode.from_module(net).id
    True
    """
    check_net(net)
    if not isinstance(path, str | PathLike):
        raise ModebridgeError(f"Expected one path, but got {type(path).__name__}; load_checkpoints takes several.")
    found = _modes_in(net, Path(path), ema=ema, prefix=prefix, ignore=ignore)
    if len(found) > 1:
        raise ModebridgeError(
            f"Expected '{path}' to hold one {type(net).__name__}, but got {len(found)}, "
            f"{some([place for place, _ in found])}; choose one with prefix=, or load all with load_checkpoints."
        )
    return found[0][1]


def load_checkpoints(
    net: nn.Module,
    paths: str | PathLike[str] | Sequence[Trained],
    *,
    ema: bool | None = None,
    ignore: str | Sequence[str] = (),
) -> list[Mode]:
    """Load the modes in several files, in a folder, or in a file that holds several networks, such as a deep ensemble.

    Of a folder, its weight files are read sorted by name (2 before 10), and those of subfolders with one network each,
    such as the `modes` of a run.

    Args:
        net: a network of their architecture, with any weights.
        paths: a file, a folder, or a list of them: of PyTorch, safetensors, timm, Lightning, transformers or peft.
            Nothing in them is executed. Modules, state dicts and modes in the list are taken as they are.
        ema: see `load_checkpoint`.
        ignore: see `load_checkpoint`.

    Returns:
        A mode per network, in order.

    Example::

        modes = load_checkpoints(net, ["first.pth", "second.pth"])
    """
    check_net(net)
    modes: list[Mode] = []
    if not isinstance(paths, str | PathLike) and not paths:
        raise ModebridgeError("Expected the paths of checkpoints to load, but got none; check the list.")
    for given in [paths] if isinstance(paths, str | PathLike) else paths:
        if not isinstance(given, str | PathLike):
            modes.append(to_mode(net, given))
            continue
        path = Path(given)
        # A folder of one network may hold other files with such endings, as Trainer's training_args.bin.
        whole = _pretrained_folder(net, path) is not None or not os.path.isdir(path)  # noqa: PTH112 - False if too long
        for file in [path] if whole else weight_files(path):
            modes += [mode for _, mode in _modes_in(net, file, ema=ema, ignore=ignore)]
    return modes


def _modes_in(net: nn.Module, file: Path, **options: Any) -> list[tuple[str, Mode]]:
    """Every mode in a file, with its place there, or the one in a folder of `save_pretrained`."""
    if (folder := _pretrained_folder(net, file)) is not None:
        return [("", _from_pretrained(net, folder))]
    places = find_places(read_state(file), net, **options, what=f"'{file}'")
    return [(place.path, _mode(net, place.tensors, file)) for place in places]


def _pretrained_folder(net: nn.Module, path: Path) -> Path | None:
    """The folder of `save_pretrained` at a path or around a file: of an adapter, or of a model of transformers."""
    folder = path if os.path.isdir(path) else path.parent  # noqa: PTH112 - False if too long
    if (folder / ADAPTER).is_file():
        return folder
    if not type(net).__module__.startswith("transformers.") or not hasattr(type(net), "from_pretrained"):
        return None
    return folder if (folder / "config.json").is_file() else None


def _from_pretrained(net: Any, folder: Path) -> Mode:
    """Read with the network's own class, since transformers renames tensors when it saves; safetensors only."""
    if (folder / ADAPTER).is_file():
        return _mode(net, adapter_state(net, folder), folder)
    # Its own exceptions, for files of other models or without safetensors.
    with quoting(f"'{folder}' to hold a {type(net).__name__} in safetensors", "save it with save_pretrained"), quiet():
        options = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
        model, info = type(net).from_pretrained(folder, **options)
    if missing := sorted(info["missing_keys"]):
        raise ModebridgeError(
            f"Expected '{folder}' to hold all weights of {type(net).__name__}, but {some(missing)} are missing; use a "
            "checkpoint of the fine-tuned network, not of the backbone."
        )
    mode = _mode(net, model.state_dict(), folder)
    _check_config(net, model, folder)
    return mode


def _check_config(net: Any, model: Any, folder: Path) -> None:
    """Raise an error if the config of a folder makes another function of the same tensors, or has other labels."""
    own, stored = (json.loads(each.config.to_json_string(use_diff=False)) for each in (net, model))
    for key, ours, theirs in _differences(own, stored):
        raise ModebridgeError(
            f"Expected '{folder}' to have {key} {ours}, as the network does, but got {theirs}; modes differ in tensors "
            "only, so use networks of one config."
        )
    for label, ours in (own.get("id2label") or {}).items():
        theirs = (stored.get("id2label") or {}).get(label, ours)
        # Labels without names may be the same.
        if f"LABEL_{label}" not in (ours, theirs) and str(ours).casefold() != str(theirs).casefold():
            raise ModebridgeError(
                f"Expected class {label} of '{folder}' to be '{ours}', as the network's config says, but got "
                f"'{theirs}'; train both with the same id2label, or correct it in config.json if only the names differ."
            )


def _differences(own: Any, stored: Any, inside: str = "") -> Iterator[tuple[str, Any, Any]]:
    """What two configs say differently; what only one of them has is of another version of transformers."""
    for key in sorted(key for key in {*own} & {*stored} if not _UNUSED.match(key)):
        ours, theirs = own[key], stored[key]
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _differences(ours, theirs, f"{inside}{key}.")
        elif ours != theirs:
            yield f"{inside}{key}", ours, theirs


def _mode(net: nn.Module, state: Mapping[str, Tensor], file: Path) -> Mode:
    try:
        return Mode.from_state_dict(net, state)
    except ModebridgeError as error:
        raise ModebridgeError(f"{str(error).removesuffix('.')} (in '{file}').") from error


def weight_files(folder: Path) -> list[Path]:
    """The weight files in a folder and in its subfolders with one network each, 2 before 10; at least one."""
    files, places = _weights_in(folder), [place for place in folder.iterdir() if place.is_dir()]
    for place in places:
        own = _weights_in(place)
        files += [place / name for name in _IN_FOLDERS if place / name in own][:1] or (own if len(own) == 1 else [])
    if not files:
        raise ModebridgeError(
            f"Expected '{folder}' to contain weight files ({', '.join(_ENDINGS)}), or one in each subfolder, but got "
            "none; pass the folder or the files that hold them."
        )
    return sorted(files, key=lambda file: natural(str(file)))


def _weights_in(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if file.is_file() and file.name.endswith(_ENDINGS)]


def read_state(file: Path) -> dict[str, Any]:
    """The content of a weight file, recognized by its first bytes: tensors by name, or dicts of them.

    Only tensors, numbers, strings and containers of them are read, by torch's reader that runs no code; NumPy's data,
    paths and argparse's Namespace are skipped; a file that refers to any other class raises an error.
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(24)
        if head[:4] == b"PK\x03\x04":  # torch.save
            _check_archive(file)
        elif head[8:9] == b"{" and head[:1] != b"\x80":
            return dict(safetensors.torch.load_file(file))
        elif head[:1] != b"\x80":  # torch.save before version 1.6
            pointer = "a Git LFS pointer" if head.startswith(b"version https://git-lfs") else "neither"
            raise ModebridgeError(
                f"Expected '{file}' to be a file of torch.save or safetensors, but got "
                f"{pointer if head else 'an empty file'}; check that it was written or downloaded completely."
            )
        with torch.serialization.safe_globals(_ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pickle protocols get an error of our own
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except ModebridgeError:
        raise
    except OSError as error:
        raise ModebridgeError(
            f"Expected '{file}' to be a weight file, but got '{error.strerror or error}'; check the path."
        ) from error
    except Exception as error:  # a broken pickle can raise anything; torch's message may suggest to run its code
        raise ModebridgeError(f"Expected '{file}' to hold a state dict, but got {_reason(error)}.") from error
    if isinstance(content, list | tuple) and content and all(isinstance(item, Mapping) for item in content):
        content = dict(enumerate(content))  # the state dicts of several networks
    if not isinstance(content, Mapping):
        raise ModebridgeError(f"Expected '{file}' to hold a state dict, but got {type(content).__name__}; {_PLAIN}.")
    return {str(key): value for key, value in content.items()}


def _check_archive(file: Path) -> None:
    """Raise an error if a zip archive is not from torch.save, which does not compress."""
    with zipfile.ZipFile(file) as archive:
        names = [name.split("/", 1)[-1] for name in archive.namelist()]
        packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())
    code = any(name.startswith("code/") for name in names)
    if code or packed or "data.pkl" not in names:
        got = "a TorchScript archive, whose code is not run" if code else "another or a compressed zip archive"
        raise ModebridgeError(f"Expected '{file}' to be a file of torch.save or safetensors, but got {got}; {_PLAIN}.")


def _reason(error: Exception) -> str:
    """What was found when reading failed, and how to fix it."""
    text = str(error)
    unknown_class = re.search(r"GLOBAL ([\w.]+)", text)
    if unknown_class and not unknown_class[1].endswith("."):  # otherwise the name is cut off
        return f"the class {unknown_class[1]}, which is not loaded because it could run code; {_PLAIN}"
    if "Unsupported operand" in text:
        return "a pickle with a protocol other than torch's; save it without pickle_protocol, or use safetensors"
    return "one that is damaged or truncated; copy or download it again"


class _Ignored:
    """Stands in for plain data that people store beside the weights, and that nobody reads: it cannot do anything."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...


# Modules were renamed: NumPy's in 2.0, pathlib's in Python 3.13.
_NUMPY = ["numpy.dtype", "numpy.ndarray"] + [
    f"numpy.{module}.multiarray.{name}" for module in ("core", "_core") for name in ("scalar", "_reconstruct")
]
_PATHS = [
    f"{module}.{name}"
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
]

_ALLOWED: list[Any] = [(_Ignored, name) for name in ("argparse.Namespace", *_NUMPY, *_PATHS)]
"""For `torch.serialization.safe_globals`: the names that a file may refer to, and what it gets instead."""
