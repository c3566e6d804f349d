"""What all tests share: one thread, torchvision that can be imported, and no work that every test would repeat."""

from __future__ import annotations

import contextlib
import functools
import gc

import torch

from tests.torchvision_on_cpu import mend


def pytest_configure() -> None:
    # Every tensor in the tests is small: threads would only wait for each other, most of all on a busy machine.
    torch.set_num_threads(1)
    # Nothing is garbage while modules are imported, and what they hold stays to the end: from then on the collector,
    # which took 6 % of the time, only looks at what the tests themselves make.
    gc.disable()
    mend()
    _read_operators_once()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _read_operators_once() -> None:
    """torch.onnx parses the source of all its operators for every module that it exports, 0.7 s each time."""
    # Another release of torch may have neither: then exporting is only slower.
    with contextlib.suppress(ImportError, AttributeError):
        from torch.onnx._internal._lazy_import import onnxscript_apis

        real = type(onnxscript_apis).__getattr__
        # An attribute of its own is found before what it would import on demand.
        onnxscript_apis.get_torchlib_ops = functools.cache(lambda: real(onnxscript_apis, "get_torchlib_ops")())
