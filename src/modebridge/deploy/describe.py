"""The metadata of an exported file: plain data, stored in the file as JSON."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from modebridge import trees
from modebridge.batches import IMAGES, shapes_of, take_rows
from modebridge.bridges import Bridge
from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.deploy.file_seal import SEAL
from modebridge.deploy.inputs import Spec, specs_of
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError, first_line
from modebridge.modes import Mode
from modebridge.nets import call
from modebridge.nets.flops import FAILED
from modebridge.scoring.cost import Cost, combination_cost, feature_shapes
from modebridge.types import Inputs

__all__ = ["describe"]


def describe(
    ensemble: Ensemble,
    temperatures: Temperatures,
    example: Inputs,
    *,
    classes: Sequence[str] | None,
    names: Sequence[str] | None,
    scores: Mapping[str, Any] | None,
    about: str | None,
    unit: Cost | None = None,
) -> dict[str, Any]:
    """The metadata of an ensemble: its members, weights, versions, and its cost in multiples of the first base.

    Args:
        ensemble: the ensemble to export.
        temperatures: temperature per number of bridges.
        example: a batch.
        classes: class names; None for numbers.
        names: names of the modes and bridges; None numbers the modes.
        scores: scores to store.
        about: a short description.
        unit: the cost of the network to use as the unit, if it is not the first base.
    """
    count = _classes(ensemble, example)
    labels = [str(k) for k in range(count)] if classes is None else [str(name) for name in classes]
    if len(labels) != count:
        raise ModebridgeError(
            f"Expected one name per class, {count} names, but got {len(labels)}; leave them out for numbers."
        )
    bridges = [bridge for bridge in ensemble.bridges if isinstance(bridge, Bridge)]
    unnamed = [f"mode-{k}" for k in range(len(ensemble.bases))] + [bridge.name for bridge in bridges]
    parts = unnamed if names is None else list(names)
    if len(parts) != len(unnamed):
        raise ModebridgeError(
            f"Expected one name per mode and bridge, {len(unnamed)} names, but got {len(parts)}; "
            "give modes first, then bridges."
        )
    heads = [bridge.heads for bridge in bridges]
    several = {"heads": heads} if max(heads, default=1) > 1 else {}
    members: list[str] = []
    for name, count in zip(parts, [1] * len(ensemble.bases) + heads, strict=True):
        members += [name] if count == 1 else [f"{name}/{k}" for k in range(count)]
    base = ensemble.bases[0]
    shapes = feature_shapes(base, example, [tap for bridge in bridges for tap in bridge.taps])
    fed = [(bridge, [shapes[tap] for _, tap in bridge.places]) for bridge in bridges]
    by_bridges = [combination_cost(base, example, len(ensemble.bases), fed[:j]) for j in range(len(bridges) + 1)]
    if unit is not None:
        by_bridges = [
            replace(total, relative_flops=total.flops / unit.flops, relative_params=total.params / unit.params)
            for total in by_bridges
        ]
    whole = by_bridges[-1]
    specs = specs_of(example)
    # A single float input is the image, whatever the network calls it.
    image = next(iter(specs.values())) if [spec.type for spec in specs.values()] == ["float32"] else None
    return {
        "format": _format(ensemble, image is not None and IMAGES in specs),
        "seal": SEAL,
        "about": about or "",
        "created": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "classes": labels,
        "image": list(image.shape) if image is not None else None,
        "inputs": {name: {"shape": list(spec.shape), "type": spec.type} for name, spec in specs.items()},
        "normalisation": _normalisation(ensemble, image),
        "members": members,
        "bases": len(ensemble.bases),
        "bridges": len(bridges),
        **several,
        "taps": [bridge.tap for bridge in bridges],
        "temperature": temperatures.by_bridges[-1],
        "temperatures": list(temperatures.by_bridges),
        "first_temperature": temperatures.first,
        "mean": ensemble.mean,
        "calibrated": ensemble.calibrated,
        "cost": {"relative_flops": whole.relative_flops, "relative_params": whole.relative_params, "flops": whole.flops}
        | {"base_flops": by_bridges[0].flops / len(ensemble.bases) if unit is None else unit.flops}
        | {"by_bridges": [part.relative_flops for part in by_bridges]},
        "scores": dict(scores or {}),
        "modes": [Mode.from_module(base).id for base in ensemble.bases],
        "weights": trees.fingerprint(ensemble.state_dict()),
        "versions": _versions(),
    }


def _format(ensemble: Ensemble, images: bool) -> int:
    """The oldest format version that covers the file, so that older readers can load it; see `metadata.FORMAT`.

    Readers of 0.1 know only one input, `images`.
    """
    if any(bridge.heads > 1 for bridge in ensemble.bridges if isinstance(bridge, Bridge)):
        return 4
    if ensemble.mean != "probability":
        return 3
    return 1 if images else 2


def _classes(ensemble: Ensemble, example: Inputs) -> int:
    base = ensemble.bases[0]
    try:
        with torch.no_grad():
            return int(call(base, take_rows(example, slice(1))).shape[-1])
    except FAILED as error:
        raise ModebridgeError(
            f"Expected {type(base).__name__} to run on one row of the example, {shapes_of(example)}, "
            f"but got '{first_line(error)}'; check its shape and type, and that the network accepts any batch size."
        ) from error


def _normalisation(ensemble: Ensemble, image: Spec | None) -> dict[str, Any]:
    """Mean and std, if the network has attributes of these names, as ours do; otherwise they are unknown."""
    if image is None:
        return {"input": "by name, as the network takes them"}
    constants: dict[str, Any] = {}
    base: nn.Module = ensemble.bases[0]
    for name in ("mean", "std"):
        value = getattr(base, name, None)
        if isinstance(value, Tensor) and value.numel() <= 4:
            constants[name] = [round(float(number), 6) for number in value.flatten()]
    if len(constants) == 2:
        return {"input": "floats in [0, 1]; mean and std are applied inside", **constants}
    return {"input": "not known: images go to the network as they are given, floats in [0, 1] from image files"}


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("modebridge", "onnx", "onnxscript", "onnxruntime"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
