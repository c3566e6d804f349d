"""One writer per format: each writes the file and returns a function that stores the final metadata."""

from __future__ import annotations

import shutil
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from modebridge.batches import take_rows
from modebridge.deploy.file_seal import seal_archive, write_sealed_onnx
from modebridge.deploy.metadata import KEY, metadata_json
from modebridge.deploy.one_module import OneModule
from modebridge.deploy.onnx_builder import Model, graphs_in
from modebridge.deploy.onnx_graph import compose
from modebridge.deploy.quantise import quantised
from modebridge.deploy.torch_exporters import export_module, export_parts
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs

__all__ = ["Seal", "write_onnx", "write_package"]

Seal: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Stores the final metadata in the file."""

MOST = 2**31 - 2**20
"""Maximum size of an ONNX file, in bytes."""


def write_onnx(
    module: OneModule, example: Inputs, meta: Mapping[str, Any], path: Path, calibration: Inputs | None
) -> Seal:
    """Write the ensemble as ONNX.

    Args:
        module: the ensemble.
        example: images, or several inputs by name.
        meta: metadata of the file.
        path: path of the file.
        calibration: images to calibrate int8 activations on; None for float32.
    """
    import onnx

    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    if size > MOST:
        raise ModebridgeError(
            f"Expected the weights to fit in one ONNX file of 2 GB, but got {size / 2**30:.1f} GB; export to .pt2."
        )
    bases, bridges = export_parts(_onnx_model, "torch.onnx", module, example)
    if calibration is not None:
        bases, bridges = quantised(module, bases, bridges, calibration)
    with torch.no_grad():
        _, features = module.run_bases(take_rows(example, slice(1)))
    shapes = {place: feature.shape[1:] for place, feature in features.items()}
    model = compose(bases, bridges, module, shapes, meta)
    onnx.checker.check_model(model)

    def seal(final: Mapping[str, Any]) -> None:
        onnx.helper.set_model_props(model, {KEY: metadata_json(final, path)})
        write_sealed_onnx(path, model.SerializeToString())

    seal(meta)
    return seal


def _onnx_model(module: nn.Module, example: tuple[Tensor, ...], dynamic_shapes: Any) -> Model:
    from onnx import inliner

    program = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=dynamic_shapes, verbose=False)
    assert program is not None
    model = inliner.inline_local_functions(program.model_proto)
    # Remove torch's notes on the origin of each node, which contain paths of the exporting machine.
    for graph in graphs_in(model.graph):
        for part in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
            part.ClearField("metadata_props")
            part.ClearField("doc_string")
    return model


@torch.no_grad()
def write_package(module: OneModule, example: Inputs, meta: Mapping[str, Any], path: Path) -> Seal:
    """Write the ensemble as a .pt2 archive; the arguments are those of `write_onnx`.

    A plain archive has one program, `model`, from images to the members' probabilities (M, B, K). An elastic archive
    has one program per base and per bridge (`base0`, `bridge0`), and the reader runs those it needs: a graph of
    torch.export cannot skip images depending on computed values.
    """
    if meta["aot"] and shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ModebridgeError(
            "Expected a C++ compiler for AOTInductor, but found neither g++ nor clang++; install one, or leave out aot."
        )
    try:
        from torch.export.pt2_archive._package import package_pt2
    except ImportError as error:
        raise ModebridgeError(
            f"Expected torch 2.8 or newer for .pt2 files, but got {torch.__version__}; install it or use .onnx."
        ) from error
    if meta["elastic"]:
        bases, bridges = export_parts(torch.export.export, "torch.export", module, example)
        programs = {f"base{k}": base for k, base in enumerate(bases)}
        programs |= {f"bridge{j}": bridge for j, bridge in enumerate(bridges)}
    else:
        programs = {"model": export_module(torch.export.export, "torch.export", _Members(module), example)}
    parts: dict[str, Any] = {"exported_programs": programs}
    if meta["aot"]:
        parts = {"aoti_files": {name: _compiled(program) for name, program in programs.items()}}
    plan = {"taps": module.taps, "reads": module.reads}

    def seal(final: Mapping[str, Any]) -> None:
        text = metadata_json({**final, "plan": plan}, path)
        with warnings.catch_warnings(action="ignore"):
            package_pt2(str(path), **parts, extra_files={KEY: text})
        seal_archive(path)

    seal(meta)
    return seal


class _Members(nn.Module):
    def __init__(self, one: OneModule) -> None:
        super().__init__()
        self.one = one

    def forward(self, images: Inputs) -> Tensor:
        return self.one.members(images)


def _compiled(program: Any) -> Any:
    """A program compiled with AOTInductor for this machine."""
    args, kwargs = program.example_inputs
    # Parts of one architecture have the same code, and the compiler derives its file names from the code, in a cache
    # shared by all programs. Without a unique name, one part would overwrite the weights of another.
    name = f"part{uuid.uuid4().hex}"
    options = {"aot_inductor.package": True, "aot_inductor.model_name_for_generated_files": name}
    with warnings.catch_warnings(action="ignore"):
        return torch._inductor.aot_compile(program.module(), args, kwargs, options=options)
