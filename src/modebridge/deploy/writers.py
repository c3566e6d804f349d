"""One writer per format: each writes the file and returns a function that stores the final metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from modebridge.batches import some_of
from modebridge.deploy.file_seal import seal_archive, write_sealed_onnx
from modebridge.deploy.metadata import KEY, metadata_json
from modebridge.deploy.one_module import OneModule
from modebridge.deploy.onnx_graph import compose
from modebridge.deploy.onnx_parts import part_models
from modebridge.deploy.pt2_archive import make_package
from modebridge.deploy.quantise import quantised
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
    bases, bridges = part_models(module, example)
    if calibration is not None:
        bases, bridges = quantised(module, bases, bridges, calibration)
    with torch.no_grad():
        _, features = module.run_bases(some_of(example, slice(1)))
    shapes = {place: feature.shape[1:] for place, feature in features.items()}
    model = compose(bases, bridges, module, shapes, meta)
    onnx.checker.check_model(model)

    def seal(final: Mapping[str, Any]) -> None:
        onnx.helper.set_model_props(model, {KEY: metadata_json(final, path)})
        write_sealed_onnx(path, model.SerializeToString())

    seal(meta)
    return seal


def write_package(module: OneModule, example: Inputs, meta: Mapping[str, Any], path: Path) -> Seal:
    """Write the ensemble as a .pt2 archive; the arguments are those of `write_onnx`."""
    plan = {"taps": module.taps, "reads": module.reads}
    pack = make_package(module, example, elastic=meta["elastic"], aot=meta["aot"])

    def seal(final: Mapping[str, Any]) -> None:
        pack(path, {KEY: metadata_json({**final, "plan": plan}, path)})
        seal_archive(path)

    seal(meta)
    return seal
