"""Safe stand-ins for plain data that people store with weights: NumPy numbers, paths, arguments."""

from __future__ import annotations

import argparse
import pickle
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias

import numpy as np

__all__ = ["ALLOWED"]

Number: TypeAlias = bool | int | float | complex | str | bytes

KINDS = "biufcSU"
"""Booleans, integers, floats, complex numbers and strings: types that bytes alone can represent."""


class _Type:
    """Stands in for `numpy.dtype`: the type of the numbers that follow; no objects and no fields."""

    def __init__(self, code: str = "f8", *_: object) -> None:
        self.type = np.dtype(str(code))
        if self.type.kind not in KINDS:
            raise pickle.UnpicklingError(f"data of NumPy type {self.type}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        # (version, byte order, subtype, names, fields, ...); only the byte order matters for numbers.
        if state[1] in ("<", ">"):
            self.type = self.type.newbyteorder(state[1])


class _Array:
    """Stands in for `numpy.ndarray`, which stores a generator's state; its content is ignored."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.shape = state[1]


def _scalar(kind: _Type, data: bytes = b"") -> Number:
    """The number that `numpy.core.multiarray.scalar` would create, as a Python number."""
    if not isinstance(kind, _Type) or not isinstance(data, bytes) or len(data) != kind.type.itemsize:
        raise pickle.UnpicklingError("a NumPy number without its bytes")
    value: Number = np.frombuffer(data, kind.type, count=1)[0].item() if data else kind.type.type().item()
    return value


def _array(kind: object, shape: object = (), code: object = b"") -> _Array:
    return _Array()


# Paths of either system on any system; they touch no file.
def _posix(*parts: str) -> PurePosixPath:
    return PurePosixPath(*map(str, parts))


def _windows(*parts: str) -> PureWindowsPath:
    return PureWindowsPath(*map(str, parts))


# Modules were renamed: NumPy's in 2.0, pathlib's in Python 3.13.
_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")
_PATHLIB = ("pathlib", "pathlib._local")

ALLOWED: list[Any] = [
    argparse.Namespace,
    (_Type, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *[(_scalar, f"{module}.scalar") for module in _NUMPY],
    *[(_array, f"{module}._reconstruct") for module in _NUMPY],
    *[(_posix, f"{module}.{name}") for module in _PATHLIB for name in ("PosixPath", "PurePosixPath")],
    *[(_windows, f"{module}.{name}") for module in _PATHLIB for name in ("WindowsPath", "PureWindowsPath")],
]
"""For `torch.serialization.safe_globals`: the names that a file may refer to, and what it gets instead."""
