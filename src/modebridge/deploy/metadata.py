"""What a file says of itself, stored in it as JSON, and the hash that protects all of it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modebridge import trees
from modebridge.batches import IMAGES, shapes_of, take_rows
from modebridge.bridges import Bridge
from modebridge.deploy.inputs import pixel_range
from modebridge.deploy.module import Calibration
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError, near, quoting
from modebridge.modes import Mode
from modebridge.nets import call
from modebridge.scoring import cost
from modebridge.types import Inputs

FORMAT = 6
"""Version of the format; raised when older readers cannot read newer files."""

KEY = "modebridge"
"""The key of the JSON in a file."""

LIBRARIES = ("modebridge", "torch", "onnx", "onnxscript", "onnxruntime")

DIGITS = 64
NAME = b"modebridge.sha256"


def describe(
    ensemble: Ensemble,
    fitted: Calibration,
    example: Inputs,
    classes: Sequence[object] | None,
    info: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The metadata of an ensemble: its members, weights, versions, and its cost in multiples of the first base."""
    given, known = dict(info or {}), ("names", "scores", "about", "unit", "pixels")
    for name in given:
        if name not in known:
            raise ModebridgeError(f"Expected info to have {', '.join(known)}, but got '{name}'; {near(name, known)}")
    *places, count = _outputs(ensemble, example)
    own = getattr(getattr(ensemble.bases[0], "config", None), "id2label", None)  # of a model of transformers
    if classes is None:
        classes = [own[k] for k in range(count)] if isinstance(own, Mapping) and len(own) == count else range(count)
    labels = [str(name) for name in classes]
    if len(labels) != count:
        raise ModebridgeError(
            f"Expected one name per class, {count} names, but got {len(labels)}; leave them out for numbers."
        )
    bridges = [bridge for bridge, _ in ensemble.reads]
    total = cost(ensemble, example)
    if (unit := given.get("unit")) is not None:
        total = replace(total, relative_flops=total.flops / unit.flops, relative_params=total.params / unit.params)
    tensors = {IMAGES: example} if isinstance(example, Tensor) else example
    inputs = {
        name: {"shape": list(tensor.shape[1:]), "type": str(tensor.dtype).removeprefix("torch.")}
        for name, tensor in tensors.items()
    }
    # A single float input is the image, whatever the network calls it.
    image = next((entry["shape"] for entry in inputs.values() if len(inputs) == 1 and entry["type"] == "float32"), None)
    return {
        "format": FORMAT,
        "about": given.get("about") or "",
        "created": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "classes": labels,
        "places": places,
        "image": image,
        "pixels": list(given.get("pixels") or pixel_range(example)),
        "inputs": inputs,
        "members": _member_names(ensemble, bridges, given.get("names")),
        "bases": len(ensemble.bases),
        "bridges": len(bridges),
        "heads": [bridge.heads for bridge in bridges],
        "taps": [bridge.tap for bridge in bridges],
        "temperature": fitted.full,
        "first_temperature": fitted.first,
        "sets": fitted.sets and asdict(fitted.sets),
        "answers": fitted.answers and asdict(fitted.answers),
        "calibrated": ensemble.calibrated,
        "cost": asdict(total),
        "scores": dict(given.get("scores") or {}),
        "modes": [Mode.from_module(base).id for base in ensemble.bases],
        # Other state than tensors (`get_extra_state`) is that of the network, the same for all modes.
        "weights": trees.fingerprint({k: v for k, v in ensemble.state_dict().items() if isinstance(v, Tensor)}),
        "versions": {"python": platform.python_version()}
        | {name: sys.modules[name].__version__ for name in LIBRARIES if name in sys.modules},
    }


def _member_names(ensemble: Ensemble, bridges: Sequence[Bridge], names: Sequence[str] | None) -> list[str]:
    unnamed = [f"mode-{k}" for k in range(len(ensemble.bases))] + [bridge.name for bridge in bridges]
    parts = unnamed if names is None else [str(name) for name in names]
    if len(parts) != len(unnamed):
        raise ModebridgeError(
            f"Expected one name per mode and bridge, {len(unnamed)} names, but got {len(parts)}; "
            "give modes first, then bridges."
        )
    heads = [1] * len(ensemble.bases) + [bridge.heads for bridge in bridges]
    return [
        name if count == 1 else f"{name}/{k}" for name, count in zip(parts, heads, strict=True) for k in range(count)
    ]


def _outputs(ensemble: Ensemble, example: Inputs) -> list[int]:
    """The shape (*P, K) of the logits of one image."""
    base = ensemble.bases[0]
    expected = f"{type(base).__name__} to run on one row of the example, {shapes_of(example)}"
    with quoting(expected, "check its shape and type, and that the network accepts any batch size"), torch.no_grad():
        return [int(size) for size in call(base, take_rows(example, slice(1))).shape[1:]]


def metadata_json(metadata: Mapping[str, Any], path: Path) -> str:
    """The metadata as stored in a file; an error if it cannot be stored."""
    try:
        return json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ModebridgeError(
            f"Expected finite numbers, strings, lists and dicts to store in '{path}', but got '{error}'; "
            "convert scores and names with float() and str()."
        ) from error


def read_metadata(text: str, path: Path, oldest: int) -> dict[str, Any]:
    """Parse the metadata of an intact file, unless it is of an older format than the oldest, or of a newer one."""
    metadata: dict[str, Any] = json.loads(text)
    if not oldest <= metadata["format"] <= FORMAT:
        hint = "install a newer modebridge" if metadata["format"] > FORMAT else "export it again"
        raise ModebridgeError(f"Expected '{path}' to be of format {FORMAT}, but got {metadata['format']}; {hint}.")
    # Before format 5 there was nothing else.
    return metadata | {"places": metadata.get("places", []), "pixels": metadata.get("pixels", [0, 1])}


def seal(path: Path) -> None:
    """Append the SHA-256 of a file to it, in hex digits, where other readers of its format ignore them.

    In ONNX it is the value of another metadata entry, in .pt2 the comment of the archive, which has none before.
    """
    with path.open("r+b") as file:
        if path.suffix == ".onnx":
            import onnx

            entry = onnx.StringStringEntryProto(key=NAME.decode(), value="0" * DIGITS)
            file.seek(0, os.SEEK_END)
            file.write(onnx.ModelProto(metadata_props=[entry]).SerializeToString()[:-DIGITS])
        else:
            file.seek(-2, os.SEEK_END)  # the length of the comment
            file.write(struct.pack("<H", len(NAME) + 2 + DIGITS) + NAME + b": ")
        file.seek(0)
        file.write(hashlib.file_digest(file, "sha256").hexdigest().encode())


def check_intact(path: Path) -> None:
    """Refuse a file that does not end with the SHA-256 of all bytes before: weights, graph and metadata."""
    data = memoryview(path.read_bytes())
    if data[-DIGITS:] != hashlib.sha256(data[:-DIGITS]).hexdigest().encode():
        raise ModebridgeError(
            f"Expected '{path}' to be written by `modebridge export` and intact, but it does not end with its SHA-256; "
            "download it again, or export it again."
        )
