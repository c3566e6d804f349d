"""Export a part of an ensemble as an ONNX model with torch.onnx."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.deploy.onnx_builder import Model
from modebridge.errors import ModebridgeError

__all__ = ["needs_onnx", "onnx_model"]


def onnx_model(module: nn.Module, example: tuple[Tensor, ...], dynamic_shapes: Any) -> Model:
    """The ONNX model of a module with positional inputs; an `Exporter`."""
    from onnx import inliner

    program = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=dynamic_shapes, verbose=False)
    assert program is not None
    model = inliner.inline_local_functions(program.model_proto)
    _strip_origins(model.graph)
    return model


def _strip_origins(graph: Any) -> None:
    """Remove torch's notes on the origin of each node, which contain paths of the exporting machine."""
    for part in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        # Accessing an unset field would set it.
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            _strip_origins(inner)


def needs_onnx(*names: str) -> None:
    """Check that packages are installed and load, by default all that exporting needs.

    ONNX Runtime is first loaded here, with telemetry off: since 1.31, it writes a device id and events to the user's
    cache as soon as it is loaded, and sends them.
    """
    names = names or ("onnx", "onnxscript", "onnxruntime")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        # Find all packages before loading the first, which takes seconds.
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        if missing:
            raise ImportError(f"no {', '.join(missing)}")
        for name in names:
            module = importlib.import_module(name)
            if name == "onnxruntime":
                # If the caller loaded it before, this is all that can be done.
                module.disable_telemetry_events()
    except ImportError as error:
        raise ModebridgeError(
            f"Expected {', '.join(names)} for .onnx files, but got '{error}'; pip install 'modebridge[onnx]'."
        ) from error
