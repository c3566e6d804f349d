"""Export an ensemble as one file, compared with the library before it is saved, with its metadata inside."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modebridge.batches import check_batch, size_of, take_rows
from modebridge.deploy.deployed import DeployedEnsemble, needs_onnx
from modebridge.deploy.inputs import OUTPUTS, check_example
from modebridge.deploy.metadata import describe, metadata_json, seal
from modebridge.deploy.module import EnsembleModule, Temperatures, fit_temperatures
from modebridge.deploy.onnx import write_onnx
from modebridge.deploy.parity import MARGIN, largest_difference, probe
from modebridge.deploy.pt2 import write_pt2
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError, near, plural
from modebridge.files.atomic import write_file
from modebridge.scoring import ALL
from modebridge.types import Batch, Batches, Inputs

__all__ = ["check_format", "export"]

EXTRAS = tuple(name for name in OUTPUTS if name not in ("probabilities", "used"))


def export(
    ensemble: Ensemble,
    path: Path | str,
    example: Inputs | Batch,
    *,
    valid: Batches | Temperatures | None = None,
    threshold: float | None = None,
    plain: bool = False,
    outputs: Sequence[str] = ("entropy", "mutual_information"),
    classes: Sequence[str] | None = None,
    info: Mapping[str, Any] | None = None,
    tolerance: float = 1e-5,
) -> DeployedEnsemble:
    """Export a bridged ensemble as one file that runs without your Python code.

    The file is written under a temporary name, run in its own runtime on the example and on random images, and
    compared with the library. Only then is it moved to `path`.

    Args:
        ensemble: modes, bridges and a temperature; not changed.
        path: the suffix chooses the format: .onnx for ONNX Runtime, .pt2 for torch.export.
        example: (B, ...) images as the network takes them, floats in [0, 1], or a dict of inputs by name, also
            integers. Their shapes and types become those of the file. Labels are ignored.
        valid: held-out data to fit one temperature per number of bridges, or these temperatures; a calibrated ensemble
            keeps its own for all members. Without it, the temperature of the ensemble is used for all.
        threshold: default confidence threshold of the file; None runs every member on every image.
        plain: always run all members. Otherwise an .onnx file can run fewer bridges, or the first base alone on
            confident images; .pt2 files are always plain.
        outputs: outputs besides `probabilities` and `used`: members, entropy, mutual_information.
        classes: class names; None for numbers.
        info: further facts to store: `names` of the modes, then of the bridges; `scores`; `about`, a short description;
            `unit`, the cost of the network to use as the unit (`module_cost`), if it is not the first base.
        tolerance: maximum difference of a probability between the file and the library.
    """
    place = Path(path)
    check_format(place)
    cascade = place.suffix == ".onnx" and not plain
    if threshold is not None and not (cascade and threshold >= 0):
        raise ModebridgeError(
            f"Expected a threshold of at least 0, in an .onnx file that is not plain, but got {threshold} for "
            f"'{place.name}'; leave it out to run all members."
        )
    for name in outputs:
        if name not in EXTRAS:
            raise ModebridgeError(f"Expected outputs to name extra outputs, but got '{name}'; {near(name, EXTRAS)}")
    given = check_example(example, "example")
    reference = copy.deepcopy(ensemble).cpu().float().eval()
    temperatures = _temperatures(reference, valid)
    meta = describe(reference, temperatures, given, classes, info)
    meta |= {"threshold": threshold, "elastic": cascade}
    meta["outputs"] = ["probabilities", *(name for name in EXTRAS if name in outputs), "used"]
    # Check the metadata before the long part.
    metadata_json(meta, place)
    batches = probe(given, reference)
    module = _module(reference, temperatures, given, meta["outputs"], batches, tolerance)
    tensors = list(given.values()) if isinstance(given, Mapping) else [given]

    def write(scratch: Path) -> None:
        onnx = place.suffix == ".onnx"
        store = write_onnx(module, tensors, meta, scratch) if onnx else write_pt2(module, tensors, scratch)
        store(metadata_json(meta, place))
        seal(scratch)
        file = DeployedEnsemble.load(scratch)

        def ask(images: Inputs, bridges: int | None, threshold: float | None) -> Any:
            return file(images, bridges=bridges, threshold=ALL if cascade and threshold is None else threshold)[0]

        # Confidences may differ as much as probabilities may.
        margin = max(MARGIN, tolerance)
        parity = largest_difference(ask, reference, temperatures, batches, cascade=cascade, margin=margin)
        if not parity < tolerance:
            raise ModebridgeError(
                f"Expected the file's probabilities to be within {tolerance:g} of the library's, but got a difference "
                f"of {parity:.3g}, so nothing was written; raise tolerance if you can accept that."
            )
        meta["parity"] = {"largest_difference": parity, "images": sum(size_of(batch) for batch in batches)}
        store(metadata_json(meta, place))
        seal(scratch)

    write_file(place, write)
    return DeployedEnsemble.load(place)


def check_format(place: Path) -> None:
    """Refuse a wrong suffix and missing packages."""
    if place.suffix not in (".onnx", ".pt2"):
        raise ModebridgeError(
            f"Expected the file to end in .onnx or .pt2, but got '{place.name}'; the suffix chooses the format."
        )
    if place.suffix == ".onnx":
        needs_onnx()


def _module(
    reference: Ensemble,
    temperatures: Temperatures,
    example: Inputs,
    outputs: Sequence[str],
    batches: Sequence[Inputs],
    tolerance: float,
) -> EnsembleModule:
    """The ensemble with batch norms folded, unless that changes its predictions."""
    options: Any = {"inputs": None if isinstance(example, Tensor) else list(example), "outputs": outputs}
    module = EnsembleModule(reference, temperatures.by_bridges[-1], **options)

    @torch.no_grad()
    def ask(images: Inputs, bridges: int | None, threshold: float | None) -> Any:
        return module(*(images.values() if isinstance(images, Mapping) else [images]))[0].numpy()

    few = [take_rows(batch, slice(8)) for batch in batches]
    if largest_difference(ask, reference, temperatures, few, cascade=False) < tolerance:
        return module
    # Folding relies on the graph that torch.fx traced; if a network does something else, its norms are kept.
    return EnsembleModule(reference, temperatures.by_bridges[-1], **options, folded=False)


@torch.no_grad()
def _temperatures(ensemble: Ensemble, valid: Batches | Temperatures | None) -> Temperatures:
    heads = [bridge.heads for bridge, _ in ensemble.reads]
    own = float(ensemble.temperature)
    if valid is None:
        return Temperatures(own, (own,) * (len(heads) + 1))
    if isinstance(valid, Temperatures):
        if len(valid.by_bridges) != len(heads) + 1 or not all(
            0 < one < float("inf") for one in (valid.first, *valid[1])
        ):
            raise ModebridgeError(
                f"Expected a positive temperature for each of 0 to {plural(len(heads), 'bridge')}, but got "
                f"{tuple(valid)}; fit them again."
            )
        return valid
    pairs = [check_batch(item, "valid") for item in valid]
    if not pairs:
        raise ModebridgeError("Expected valid to have batches, but got none; pass the validation split.")
    members = torch.cat([ensemble.members(check_example(images, "valid")) for images, _ in pairs], dim=1)
    fitted = fit_temperatures(members, torch.cat([labels.cpu() for _, labels in pairs]), heads)
    if not ensemble.calibrated:
        return fitted
    alone = own if len(ensemble.bases) == 1 and not heads else fitted.first
    return Temperatures(alone, (*fitted.by_bridges[:-1], own))
