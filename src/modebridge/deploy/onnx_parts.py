"""The parts of an ensemble as ONNX models, by torch.onnx."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.deploy.one_module import OneModule
from modebridge.deploy.onnx_builder import Model
from modebridge.deploy.torch_exporters import export_parts
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs

__all__ = ["needs_onnx", "part_models"]


def part_models(module: OneModule, example: Inputs) -> tuple[list[Model], list[Model]]:
    """The ONNX model of every base and of every unit of bridges; see `export_parts`."""
    needs_onnx()
    return export_parts(_model, "torch.onnx", module, example)


def _model(module: nn.Module, example: tuple[Tensor, ...], shapes: Any) -> Model:
    from onnx import inliner

    program = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=shapes, verbose=False)
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
