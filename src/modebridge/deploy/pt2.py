"""Programs of torch.export: of a whole ensemble for a .pt2 file, and of its parts for an ONNX graph."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.deploy.metadata import KEY
from modebridge.deploy.module import EnsembleModule
from modebridge.errors import ModebridgeError, first_line

LOGGERS = (
    "torch.onnx",
    "onnxscript",
    "torch.export",
    "onnx_ir",
    "torch.fx.experimental.symbolic_shapes",
    "torch._dynamo",
)


def write_pt2(module: EnsembleModule, example: Sequence[Tensor], path: Path) -> Callable[[str], None]:
    """Export the ensemble as one program; returns a function that writes it with its metadata."""
    program = export_program(torch.export.export, "torch.export", module, example)

    def write(metadata: str) -> None:
        with quiet():
            torch.export.save(program, path, extra_files={KEY: metadata})

    return write


def export_program(
    exporter: Callable[..., Any], called: str, module: nn.Module, example: Sequence[Tensor], **options: Any
) -> Any:
    """The program of a module that takes tensors in order, for any batch size; errors name the exporter `called`."""
    # Two rows: a batch size of one would become a constant. Contiguous, since strides become part of the program.
    inputs = tuple(tensor[:1].expand(2, *tensor.shape[1:]).contiguous() for tensor in example)
    shapes = (tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs),)
    with quiet():
        try:
            return exporter(module.eval(), inputs, dynamic_shapes=shapes, **options)
        except Exception as error:
            cause: BaseException = error
            while (inner := cause.__cause__ or cause.__context__) is not None:
                cause = inner
            parts = [type(part).__name__ for name in ("net", "body") if (part := getattr(module, name, None))]
            raise ModebridgeError(
                f"Expected {parts[0] if parts else 'the ensemble'} to be exportable by {called}, but got "
                f"'{first_line(cause)}'; use operations that can be exported, without branches on values in tensors."
            ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress prints, logs and warnings of exporters; exceptions are raised as usual."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        out, err = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        with warnings.catch_warnings(action="ignore"), out, err:
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
