"""Plain data that people keep beside weights (NumPy's numbers, paths, arguments), rebuilt by functions of our own."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias

import numpy as np

__all__ = ["ALLOWED"]

Number: TypeAlias = bool | int | float | complex | str | bytes

KINDS = "biufcSU"
"""Booleans, whole numbers, floats, complex numbers and strings: what bytes alone can say."""


class _Type:
    """Stands for `numpy.dtype`: the type of numbers whose bytes follow; no object and no field."""

    def __init__(self, code: str = "f8", *_: object) -> None:
        self.type = np.dtype(str(code))
        if self.type.kind not in KINDS:
            raise pickle.UnpicklingError(f"data of NumPy's type {self.type}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        # (version, byte order, subtype, names, fields, ...); the order alone is of numbers.
        if state[1] in ("<", ">"):
            self.type = self.type.newbyteorder(state[1])


class _Array:
    """Stands for `numpy.ndarray`, as which a generator's state is kept; what is in it is not looked at."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.shape = state[1]


def _scalar(kind: _Type, data: bytes = b"") -> Number:
    """The number that `numpy.core.multiarray.scalar` would make, as Python's own."""
    if not isinstance(kind, _Type) or not isinstance(data, bytes) or len(data) != kind.type.itemsize:
        raise pickle.UnpicklingError("a number of NumPy without its bytes")
    value: Number = np.frombuffer(data, kind.type, count=1)[0].item() if data else kind.type.type().item()
    return value


def _array(kind: object, shape: object = (), code: object = b"") -> _Array:
    return _Array()


def _path(pure: type[PurePath]) -> Callable[..., PurePath]:
    """Of any system, on any system: a path that touches no file."""

    def make(*parts: str) -> PurePath:
        return pure(*[str(part) for part in parts])

    return make


_posix, _windows = _path(PurePosixPath), _path(PureWindowsPath)

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
"""For `torch.serialization.safe_globals`: what a file may ask for by name, and what it gets instead."""
