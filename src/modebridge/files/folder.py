"""`save` and `load`: modes, curves, bridges and ensembles as folders of safetensors and JSON, without any code.

A folder holds `model.safetensors`, `config.json` (the names that the Hugging Face Hub expects) and perhaps README.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from modebridge.errors import ModebridgeError, first_line
from modebridge.files.atomic import Damage, read_stored, stored_files, write_folder
from modebridge.files.hub import CARD, CONFIG, FILES, WEIGHTS, Card, Place, check_repo, find_folder, local, upload
from modebridge.files.objects import KINDS, Parts

FORMAT = 2
"""Increased when older versions cannot read new folders."""

LIBRARY = "modebridge"


def save(obj: object, path: Place, *, net: str | None = None, card: Card | None = None) -> Path:
    """Write a mode, curve, bridge or ensemble as a folder, which `load` reads; an earlier one is replaced.

    The folder is written completely or not at all. Tensors are restored bit for bit, on the CPU.

    Args:
        obj: the object.
        path: folder to write.
        net: for an ensemble only: "timm:MODEL(option=value, ...)" or "torchvision:MODEL(...)" tells how its network is
            built. It is detected for the paper's networks and those of timm with the usual options. For any other
            network, pass the module when loading.
        card: adds README.md, a model card for the Hugging Face Hub.
    """
    kind = next((kind for kind, (cls, _, _) in KINDS.items() if type(obj) is cls), None)
    if kind is None:
        raise ModebridgeError(
            f"Expected an object of a class that modebridge can load, but got {type(obj).__name__}; save its modes "
            "instead."
        )
    folder = local(path)
    _check_target(folder)
    parts = KINDS[kind][1](obj) if net is None else KINDS[kind][1](obj, net)
    version = sys.modules[LIBRARY].__version__  # not imported: the root of the package is above every layer
    metadata = {"library": LIBRARY, "format": FORMAT, "version": version, "kind": kind, "object": parts.config}
    files = stored_files(parts.tensors, metadata, (WEIGHTS, CONFIG))
    if card is not None:
        count = sum(tensor.numel() for tensor in parts.tensors.values())
        described = f"`{obj!r}`\n\n{count:,} numbers in {len(parts.tensors)} tensors."
        place = card.place or folder.resolve().name
        files[CARD] = card.text(place, kind, described, needs_net=parts.config.get("net", ...) is None)
    write_folder(folder, files)
    return folder


def push(
    obj: object,
    repo: str,
    *,
    net: str | None = None,
    card: Card | None = None,
    private: bool | None = None,
    token: str | None = None,
) -> str:
    """Upload what `save` writes to the Hugging Face Hub as OWNER/NAME, and return its address; see `save`, `upload`."""
    check_repo(repo)
    with tempfile.TemporaryDirectory() as scratch:
        folder = save(obj, Path(scratch) / "folder", net=net, card=replace(card or Card(), place=repo))
        return upload(folder, repo, private=private, token=token)


def load(
    place: Place, *, revision: str | None = None, net: nn.Module | None = None, bodies: Sequence[nn.Module] = ()
) -> Any:
    """Load what `save` wrote: a mode, curve, bridge or ensemble, on the CPU.

    Only data is read: no pickle, and no code from a file is run. A damaged or modified folder is refused.

    Args:
        place: a folder, or "OWNER/NAME" on the Hugging Face Hub (extra `hub`); a path that exists takes precedence.
        revision: a branch, tag or commit on the hub.
        net: network of an ensemble whose architecture is a custom module, of which only the weights are stored.
        bodies: custom bodies of bridges, one per such bridge.

    Returns:
        An object of the class that was saved.

    >>> import tempfile
    >>> from modebridge.modes import Mode
    >>> mode = Mode.from_module(nn.Linear(2, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = mode.save(f"{folder}/mode")
    ...     again = load(f"{folder}/mode")
    >>> again.id == mode.id
    True
    """
    if net is not None:
        _check_modules([net], "net to be a module", "a module of the architecture that was saved")
    _check_modules(bodies, "bodies to be a list of modules", "one module per bridge with a custom body")
    left = list(bodies)
    folder = find_folder(place, revision)
    parts = read_folder(folder)
    cls, _, restore = KINDS[parts.kind]
    try:
        restored = restore(parts, net, left)
    except ModebridgeError:
        raise
    except Exception as error:  # a folder made by hand can be wrong in any way
        raise ModebridgeError(
            f"Expected '{folder}' to describe a {cls.__name__}, but got {type(error).__name__}: "
            f"'{first_line(error)}'; save or download it again."
        ) from error
    if left:
        raise ModebridgeError(
            f"Expected bodies only for bridges with a custom body, but got {len(left)} too many; leave them out."
        )
    return restored


def read_folder(folder: Path) -> Parts:
    if folder.exists() and not folder.is_dir():
        raise ModebridgeError(f"Expected '{folder}' to be a folder written by save, but it is a file; check the path.")
    if (folder / "recipe.toml").exists():
        raise ModebridgeError(
            f"Expected '{folder}' to be written by save, but it is a run folder; convert it: "
            f"modebridge push {folder} --folder DIR"
        )
    if folder.is_dir() and not _is_ours(folder):
        raise ModebridgeError(
            f"Expected '{folder}' to be written by modebridge, but it is not; read checkpoints of other libraries with "
            "modebridge.load_checkpoint."
        )
    weights = folder / WEIGHTS
    if weights.is_file() and weights.stat().st_size < 1024 and weights.read_bytes().startswith(b"version https://git"):
        raise Damage(weights, "is only a Git LFS pointer", "run git lfs pull")
    tensors, config = read_stored(folder, (WEIGHTS, CONFIG))
    if config.get("format") != FORMAT or config.get("kind") not in KINDS or not isinstance(config.get("object"), dict):
        raise ModebridgeError(
            f"Expected '{folder}' to hold one of {', '.join(KINDS)} in format {FORMAT}, but got "
            f"'{str(config.get('kind'))[:80]}' in {str(config.get('format'))[:80]}; use the version of modebridge that "
            "wrote it, or save it again."
        )
    unknown = [name for name, tensor in tensors.items() if bool(tensor.isnan().any())]
    if unknown:
        raise ModebridgeError(
            f"Expected '{folder}' to hold numbers, but got NaN in '{unknown[0]}'; use one saved before training "
            "diverged."
        )
    return Parts(config["object"], tensors, config["kind"])


def copy_folder(source: Path, target: Place) -> Parts:
    """Copy a stored folder with its card after checking it."""
    parts = read_folder(source)
    _check_target(local(target))
    write_folder(local(target), {name: (source / name).read_bytes() for name in FILES if (source / name).is_file()})
    return parts


def _check_target(folder: Path) -> None:
    """A folder is replaced as a whole, so it must hold nothing else."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise ModebridgeError(f"Expected '{folder}' to be a folder, but it is a file; choose another name.")
    held = [entry.name for entry in folder.iterdir()]
    if set(held) - set(FILES) or (held and not _is_ours(folder)):
        raise ModebridgeError(
            f"Expected '{folder}' to be new, empty or written by save, but it holds other files, such as "
            f"'{min(held, key=lambda name: name in FILES)}'; choose another folder."
        )


def _is_ours(folder: Path) -> bool:
    try:
        return f'"library": "{LIBRARY}"' in (folder / CONFIG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _check_modules(given: object, expected: str, fix: str) -> None:
    for module in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(module, nn.Module) or module is given:
            got = f"the class {module.__name__}" if isinstance(module, type) else f"one {type(module).__name__}"
            raise ModebridgeError(f"Expected {expected}, but got {got}; pass {fix}.")
