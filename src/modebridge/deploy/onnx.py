"""The parts of an ensemble as ONNX models, by torch.onnx."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.deploy.exporting import in_order, quiet, refusal, two_of
from modebridge.deploy.graph import Model
from modebridge.deploy.inputs import names_of
from modebridge.deploy.module import OneModule, Positional
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs

__all__ = ["needs_onnx", "part_models"]


@torch.no_grad()
def part_models(one: OneModule, images: Inputs) -> tuple[list[Model], list[Model]]:
    """The ONNX model of every base (images to logits and features) and of every unit of bridges (features to logits).

    They are exported apart, so that no part knows the batch of another: a bridge may run on some of the images.

    Args:
        one: the ensemble.
        images: an example; its batch size does not matter.
    """
    needs_onnx()
    two = two_of(images)
    features: dict[tuple[int, str], Tensor] = {}
    bases, bridges = [], []
    for k, base in enumerate(one.bases):
        _, *found = base(two)
        features.update({(k, tap): feature for tap, feature in zip(one.taps[k], found, strict=True)})
        bases.append(_exported(base, in_order(two), names_of(two)))
    for numbers, runner in zip(one.units, one.runners, strict=True):
        bridges.append(_exported(runner, [features[place] for place in one.reads[numbers[0]]]))
    return bases, bridges


def _exported(module: nn.Module, inputs: Sequence[Tensor], names: Sequence[str] | None = None) -> Model:
    from onnx import inliner

    wrapped = Positional(module, names).eval()
    # Plain memory order: the example's strides are no part of the program.
    example = tuple(tensor.contiguous() for tensor in inputs)
    batch = torch.export.Dim.DYNAMIC
    with quiet():
        try:
            program = torch.onnx.export(
                wrapped, example, dynamo=True, dynamic_shapes=(tuple({0: batch} for _ in example),), verbose=False
            )
        except Exception as error:
            raise refusal(error, wrapped, "torch.onnx") from error
    assert program is not None
    model = inliner.inline_local_functions(program.model_proto)
    _forget_origins(model.graph)
    return model


def _forget_origins(graph: Any) -> None:
    """Take out torch's notes on where each step came from: traces through the folders of whoever exported it."""
    for part in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        # To touch a field that is not set would set it.
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            _forget_origins(inner)


def needs_onnx(*names: str) -> None:
    """Say what to install where a package is not there, or does not load; by default all that writing needs.

    ONNX Runtime is loaded nowhere before this, with its telemetry off: from 1.31 on it writes a device id and events to
    the user's cache as soon as it is loaded, and sends them.
    """
    names = names or ("onnx", "onnxscript", "onnxruntime")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        # All are looked for before the first is loaded, which takes seconds.
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        if missing:
            raise ImportError(f"no {', '.join(missing)}")
        for name in names:
            module = importlib.import_module(name)
            if name == "onnxruntime":
                # Where the caller had loaded it before, this is the most that can be done.
                module.disable_telemetry_events()
    except ImportError as error:
        raise ModebridgeError(
            f"Expected {', '.join(names)} for .onnx files, but got '{error}'; pip install 'modebridge[onnx]'."
        ) from error
