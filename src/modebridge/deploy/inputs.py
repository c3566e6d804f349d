"""What a file takes: inputs by name, each of one shape and type; images are one input of floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from modebridge.batches import IMAGES, LABELS, inputs_of
from modebridge.errors import ModebridgeError, near
from modebridge.types import Inputs

__all__ = [
    "OUTPUTS",
    "TYPES",
    "Array",
    "Arrays",
    "InputSpec",
    "arrays_of",
    "check_example",
    "checked",
    "names_of",
    "specs_in",
    "specs_of",
]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Arrays: TypeAlias = Array | Mapping[str, Array]
"""`Inputs` in NumPy."""

OUTPUTS = ("probabilities", "members", "entropy", "mutual_information", "used")

RESERVED = ("bridges", "threshold", *OUTPUTS)
"""Names that a file gives to other things."""

TYPES = ("float32", "int64", "int32", "bool")


@dataclass(frozen=True)
class InputSpec:
    """One input of a file.

    Args:
        shape: of one image or text, without the batch axis.
        type: NumPy's name of it.
    """

    shape: tuple[int, ...]
    type: str

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for the file's metadata."""
        return asdict(self) | {"shape": list(self.shape)}


def names_of(inputs: Inputs) -> list[str] | None:
    """By which names a network is called with these inputs; None where it is given one tensor."""
    return None if isinstance(inputs, Tensor) else list(inputs)


def specs_of(example: Inputs) -> dict[str, InputSpec]:
    """What a file takes that was made with this example."""
    tensors = {IMAGES: example} if isinstance(example, Tensor) else example
    return {
        name: InputSpec(tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    }


def specs_in(meta: Mapping[str, Any]) -> dict[str, InputSpec]:
    """What a file takes, by its metadata."""
    if "inputs" not in meta:  # files of 0.1 knew of images only
        return {IMAGES: InputSpec(tuple(meta["image"]), "float32")}
    return {name: InputSpec(tuple(entry["shape"]), entry["type"]) for name, entry in meta["inputs"].items()}


def check_example(example: object, what: str) -> Inputs:
    """The inputs in an example as a file takes them: on the CPU, floats of 32 bits, whole numbers as they are."""
    inputs = inputs_of(example, what)
    if isinstance(inputs, Tensor):
        return _ready(inputs, what, "a batch of float images (B, ...)", "images[:1] in [0, 1]", least=2)
    taken = [name for name in inputs if name in RESERVED]
    if taken:
        raise ModebridgeError(
            f"Expected the inputs of {what} to have names of their own, but got '{taken[0]}', which the file gives to "
            "something else; wrap the network in a module that calls it otherwise."
        )
    ready = {name: _ready(t, what, f"'{name}' (B, ...) of {', '.join(TYPES)}", "such") for name, t in inputs.items()}
    sizes = {len(tensor) for tensor in ready.values()}
    if len(sizes) > 1:
        raise ModebridgeError(
            f"Expected the inputs of {what} to have one batch size, but got {', '.join(map(str, sorted(sizes)))}; "
            "give as many rows of each."
        )
    return ready


def _ready(tensor: Tensor, what: str, rule: str, way_out: str, least: int = 1) -> Tensor:
    ready = tensor.detach().cpu()
    ready = (ready.float() if ready.is_floating_point() else ready).contiguous()
    if ready.dim() < least or str(ready.dtype).removeprefix("torch.") not in TYPES:
        raise ModebridgeError(
            f"Expected {what} to be {rule}, but got {tensor.dtype} {tuple(tensor.shape)}; give {way_out}."
        )
    if ready.is_floating_point() and not bool(torch.isfinite(ready).all()):
        raise ModebridgeError(f"Expected {what} to be finite, but got NaN or Inf; give real inputs.")
    return ready


def arrays_of(inputs: Inputs) -> Arrays:
    """The same in NumPy."""
    if isinstance(inputs, Tensor):
        return inputs.numpy()
    return {name: tensor.numpy() for name, tensor in inputs.items()}


def checked(given: object, specs: Mapping[str, InputSpec]) -> dict[str, Array]:
    """What a file is asked about, by the names of its inputs and in their types.

    Args:
        given: an array or tensor where the file takes one input; else a dict, from which labels and what is neither
            an array nor a tensor are left out, as everywhere.
        specs: what the file takes.
    """
    if not isinstance(given, Mapping):
        if len(specs) > 1:
            raise ModebridgeError(
                f"Expected several inputs by name ({', '.join(specs)}), but got {type(given).__name__}; give a dict."
            )
        given = dict.fromkeys(specs, given)
    missing = [name for name in specs if name not in given]
    if missing:
        raise ModebridgeError(
            f"Expected the inputs {', '.join(specs)}, but '{missing[0]}' is missing; "
            f"{near(missing[0], map(str, given))}"
        )
    extra = [n for n, v in given.items() if n not in (*specs, *LABELS) and isinstance(v, Tensor | np.ndarray)]
    if extra:
        raise ModebridgeError(
            f"Expected the inputs {', '.join(specs)}, but got '{extra[0]}' too, which this file does not take; "
            "leave it out."
        )
    tables = {name: _table(given[name], name, spec) for name, spec in specs.items()}
    sizes = {len(table) for table in tables.values()}
    if len(sizes) > 1:
        raise ModebridgeError(
            f"Expected as many rows of every input, but got {', '.join(map(str, sorted(sizes)))}; give one batch."
        )
    return tables


def _table(given: Any, name: str, spec: InputSpec) -> Array:
    table = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if table.shape[1:] != spec.shape or table.ndim != len(spec.shape) + 1:
        way_out = "resize them" if spec.type == "float32" else "pad or cut them"
        raise ModebridgeError(
            f"Expected {name} of shape (B, {', '.join(map(str, spec.shape))}), but got {table.shape}; {way_out}."
        )
    floats = spec.type == "float32"
    if floats and not np.issubdtype(table.dtype, np.floating):
        raise ModebridgeError(
            f"Expected {name} as floats in [0, 1], but got {table.dtype}; divide uint8 images by 255."
        )
    if not floats and not np.can_cast(table.dtype, spec.type, "same_kind"):
        raise ModebridgeError(f"Expected {name} as {spec.type}, but got {table.dtype}; convert them.")
    converted = np.ascontiguousarray(table, dtype=spec.type)
    if not floats and not np.array_equal(converted, table):
        raise ModebridgeError(f"Expected {name} as {spec.type}, but got larger numbers; check them.")
    return converted
