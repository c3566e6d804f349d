"""The parts of an ensemble as ONNX models, by torch.onnx."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from modebridge.deploy.graph import Model
from modebridge.deploy.module import OneModule, Positional
from modebridge.errors import ModebridgeError

__all__ = ["needs_onnx", "part_models"]


@torch.no_grad()
def part_models(one: OneModule, images: Tensor) -> tuple[list[Model], list[Model]]:
    """The ONNX model of every base (images to logits and features) and of every unit of bridges (features to logits).

    They are exported apart, so that no part knows the batch of another: a bridge may run on some of the images.

    Args:
        one: the ensemble.
        images: an example; its batch size does not matter.
    """
    needs_onnx()
    # A batch of one would be taken for a constant.
    two = images[:1].expand(2, *images.shape[1:]).clone()
    features: dict[tuple[int, str], Tensor] = {}
    bases, bridges = [], []
    for k, base in enumerate(one.bases):
        _, *found = base(two)
        features.update({(k, tap): feature for tap, feature in zip(one.taps[k], found, strict=True)})
        bases.append(_exported(base, [two]))
    for numbers, runner in zip(one.units, one.runners, strict=True):
        bridges.append(_exported(runner, [features[place] for place in one.reads[numbers[0]]]))
    return bases, bridges


def _exported(module: nn.Module, inputs: Sequence[Tensor]) -> Model:
    from onnx import inliner

    wrapped = Positional(module).eval()
    # Plain memory order: the example's strides are no part of the program.
    example = tuple(tensor.contiguous() for tensor in inputs)
    batch = torch.export.Dim.DYNAMIC
    with _quiet():
        try:
            program = torch.onnx.export(
                wrapped, example, dynamo=True, dynamic_shapes=(tuple({0: batch} for _ in example),), verbose=False
            )
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ModebridgeError(
                f"Expected {type(module).__name__} to be exportable by torch.onnx, but got '{reason}'; "
                "write its forward pass without branches that look at values."
            ) from error
    assert program is not None
    return inliner.inline_local_functions(program.model_proto)


def needs_onnx() -> None:
    """Say what to install where ONNX is not there."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ModebridgeError(
            f"Expected onnx, onnxscript and onnxruntime for .onnx files, but got '{error}'; "
            "pip install 'modebridge[onnx]'."
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints its steps, logs and warns about itself; its errors still come out."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
