"""One writer a format: the file under a passing name, and how to put the metadata in once it has been checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from modebridge.batches import some_of
from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.deploy.file_seal import seal_archive, write_sealed_onnx
from modebridge.deploy.inputs import InputSpec
from modebridge.deploy.metadata import KEY, metadata_json
from modebridge.deploy.one_module import OneModule
from modebridge.deploy.onnx_graph import Layout, compose
from modebridge.deploy.onnx_parts import part_models
from modebridge.deploy.pt2_archive import make_package
from modebridge.deploy.quantise import quantised
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs

__all__ = ["Seal", "Wishes", "write_onnx", "write_package"]

Seal: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Puts the final metadata into the file."""

MOST = 2**31 - 2**20
"""Bytes that fit into one ONNX file."""


@dataclass(frozen=True)
class Wishes:
    """What the file is to be; see `export`."""

    inputs: Mapping[str, InputSpec]
    classes: int
    temperatures: Temperatures
    threshold: float
    members: bool
    uncertainty: bool
    elastic: bool
    calibration: Inputs | None = None
    aot: bool = False


def write_onnx(one: OneModule, example: Inputs, wishes: Wishes, meta: Mapping[str, Any], path: Path) -> Seal:
    """Write the ensemble as ONNX; the arguments are the module, images, what it is to be, its metadata, where."""
    import onnx

    size = sum(tensor.numel() * tensor.element_size() for tensor in one.state_dict().values())
    if size > MOST:
        raise ModebridgeError(
            f"Expected the weights to fit into one ONNX file of 2 GB, but got {size / 2**30:.1f} GB; export to .pt2."
        )
    bases, bridges = part_models(one, example)
    if wishes.calibration is not None:
        bases, bridges = quantised(one, bases, bridges, wishes.calibration)
    layout = Layout(
        inputs=wishes.inputs,
        taps=one.taps,
        shapes=_shapes(one, example),
        reads=one.reads,
        units=one.units,
        classes=wishes.classes,
        temperatures=wishes.temperatures,
        threshold=wishes.threshold,
        members=wishes.members,
        uncertainty=wishes.uncertainty,
        elastic=wishes.elastic,
    )
    model = compose(bases, bridges, layout)
    onnx.checker.check_model(model)

    def seal(metadata: Mapping[str, Any]) -> None:
        onnx.helper.set_model_props(model, {KEY: metadata_json(metadata, path)})
        write_sealed_onnx(path, model.SerializeToString())

    seal(meta)
    return seal


def write_package(one: OneModule, example: Inputs, wishes: Wishes, meta: Mapping[str, Any], path: Path) -> Seal:
    """Write the ensemble as a .pt2 archive; the arguments are those of `write_onnx`."""
    plan = {"taps": one.taps, "reads": one.reads}
    pack = make_package(one, example, elastic=wishes.elastic, aot=wishes.aot)

    def seal(final: Mapping[str, Any]) -> None:
        pack(path, {KEY: metadata_json({**final, "plan": plan}, path)})
        seal_archive(path)

    seal(meta)
    return seal


@torch.no_grad()
def _shapes(one: OneModule, example: Inputs) -> list[list[tuple[int, ...]]]:
    return [[tuple(feature.shape[1:]) for feature in base(some_of(example, slice(1)))[1:]] for base in one.bases]
