"""The inputs and outputs of an exported file, by name, each with a shape and type; images are a single float input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    "Spec",
    "check_example",
    "checked",
    "output_specs",
    "specs_in",
    "specs_of",
]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Arrays: TypeAlias = Array | Mapping[str, Array]
"""`Inputs` as NumPy arrays."""

OUTPUTS = ("probabilities", "members", "entropy", "mutual_information", "used")

RESERVED = ("bridges", "threshold", *OUTPUTS)
"""Names that exported files use for other inputs and outputs."""

TYPES = ("float32", "int64", "int32", "bool")


@dataclass(frozen=True)
class Spec:
    """One input or output of a file.

    Args:
        shape: shape without the batch axis.
        type: NumPy name of the data type.
    """

    shape: tuple[int, ...]
    type: str


def specs_of(example: Inputs) -> dict[str, Spec]:
    """The input specs of a file exported with this example."""
    tensors = {IMAGES: example} if isinstance(example, Tensor) else example
    return {
        name: Spec(tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    }


def specs_in(meta: Mapping[str, Any]) -> dict[str, Spec]:
    """The input specs of a file, from its metadata."""
    return {name: Spec(tuple(entry["shape"]), entry["type"]) for name, entry in meta["inputs"].items()}


def output_specs(meta: Mapping[str, Any]) -> dict[str, Spec]:
    """The output specs of a file, from its metadata."""
    classes, members = len(meta["classes"]), len(meta["members"])
    shapes = {"probabilities": (classes,), "members": (members, classes)}
    return {name: Spec(shapes.get(name, ()), "int64" if name == "used" else "float32") for name in meta["outputs"]}


def check_example(example: object, what: str) -> Inputs:
    """The inputs of an example as an exported file takes them: on the CPU, with floats as float32."""
    inputs = inputs_of(example, what)
    if isinstance(inputs, Tensor):
        return _ready(inputs, what, "a batch of float images (B, ...)", "give images[:1] in [0, 1]", least=2)
    taken = [name for name in inputs if name in RESERVED]
    if taken:
        raise ModebridgeError(
            f"Expected the inputs of {what} not to have reserved names, but got '{taken[0]}'; wrap the network in a "
            "module that renames it."
        )
    rules = {name: f"'{name}' (B, ...) of {', '.join(TYPES)}" for name in inputs}
    ready = {name: _ready(tensor, what, rules[name], "convert it") for name, tensor in inputs.items()}
    _check_sizes(ready)
    return ready


def _ready(tensor: Tensor, what: str, rule: str, hint: str, least: int = 1) -> Tensor:
    ready = tensor.detach().cpu()
    ready = (ready.float() if ready.is_floating_point() else ready).contiguous()
    if ready.dim() < least or str(ready.dtype).removeprefix("torch.") not in TYPES:
        raise ModebridgeError(f"Expected {what} to be {rule}, but got {tensor.dtype} {tuple(tensor.shape)}; {hint}.")
    if ready.is_floating_point() and not bool(torch.isfinite(ready).all()):
        raise ModebridgeError(f"Expected {what} to be finite, but got NaN or Inf; give real inputs.")
    return ready


def checked(given: object, specs: Mapping[str, Spec]) -> dict[str, Array]:
    """The inputs of a call, by name and in the types that the file takes.

    Args:
        given: an array or tensor if the file takes one input; otherwise a dict, in which labels and values other than
            arrays and tensors are ignored.
        specs: input specs of the file.
    """
    if not isinstance(given, Mapping):
        if len(specs) > 1:
            raise ModebridgeError(
                f"Expected several inputs by name ({', '.join(specs)}), but got {type(given).__name__}; pass a dict."
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
            f"Expected the inputs {', '.join(specs)}, but also got '{extra[0]}', which this file does not take; "
            "leave it out."
        )
    tables = {name: _table(given[name], name, spec) for name, spec in specs.items()}
    _check_sizes(tables)
    return tables


def _check_sizes(tables: Mapping[str, Tensor | Array]) -> None:
    sizes = sorted({len(table) for table in tables.values()})
    if len(sizes) > 1:
        raise ModebridgeError(
            f"Expected all inputs to have the same number of rows, but got {', '.join(map(str, sizes))}; give one "
            "batch."
        )


def _table(given: Any, name: str, spec: Spec) -> Array:
    table = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if table.shape[1:] != spec.shape or table.ndim != len(spec.shape) + 1:
        hint = "resize them" if spec.type == "float32" else "pad or cut them"
        raise ModebridgeError(
            f"Expected {name} of shape (B, {', '.join(map(str, spec.shape))}), but got {table.shape}; {hint}."
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
        raise ModebridgeError(f"Expected {name} to fit {spec.type}, but got larger numbers; check them.")
    return converted
