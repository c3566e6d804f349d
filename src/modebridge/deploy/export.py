"""Export an ensemble as one file, compared with the library before it is saved, with its metadata inside."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from modebridge.batches import LABELS, check_batch, shapes_of, size_of, take_rows
from modebridge.bridges import Bridge
from modebridge.deploy.bridge_temperatures import Temperatures, fit_temperatures
from modebridge.deploy.deployed import Deployed
from modebridge.deploy.describe import describe
from modebridge.deploy.elastic_answer import ALL
from modebridge.deploy.inputs import check_example, specs_of
from modebridge.deploy.metadata import metadata_json
from modebridge.deploy.one_module import OneModule
from modebridge.deploy.parity import MARGIN, largest_difference, probe
from modebridge.deploy.quantise import Int8Cost, compare
from modebridge.deploy.runtimes import needs_onnx
from modebridge.deploy.writers import write_onnx, write_package
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.nets import FilterResponseNorm
from modebridge.progress import shows_progress
from modebridge.scoring import Cost
from modebridge.types import Batch, Batches, Inputs, Progress

__all__ = ["Exported", "check_format", "export"]

STEPS = 4
"""Steps that a progress bar counts."""


@dataclass(frozen=True)
class Exported:
    """An exported file.

    Args:
        path: path of the file.
        format: "onnx" or "pt2".
        parity: largest difference of a probability between the file and the library.
        bytes: size of the file.
        meta: metadata of the file.
        int8: effect of int8 on scores, if requested and labels were given.
    """

    path: Path
    format: str
    parity: float
    bytes: int
    meta: dict[str, Any] = field(repr=False)
    int8: Int8Cost | None = None


@shows_progress("export", "steps")
def export(
    ensemble: Ensemble,
    path: Path | str,
    example: Inputs | Batch,
    *,
    members: bool = False,
    uncertainty: bool = True,
    elastic: bool = True,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    scores: Mapping[str, Any] | None = None,
    about: str | None = None,
    tolerance: float = 1e-5,
    check: Inputs | Batch | None = None,
    valid: Batches | None = None,
    temperatures: Temperatures | None = None,
    threshold: float | None = None,
    int8: Inputs | None = None,
    grouped: bool | Literal["auto"] = "auto",
    aot: bool = False,
    unit: Cost | None = None,
    progress: bool | Progress | None = None,
) -> Exported:
    """Export a bridged ensemble as one file that runs without your Python code.

    The file is written under a temporary name, run in its own runtime on the example, the images of `check` and random
    ones, and compared with the library. Only then is it moved to `path`.

    Args:
        ensemble: modes, bridges and a temperature; not changed.
        path: the suffix chooses the format: .onnx for ONNX Runtime, .pt2 for torch.export.
        example: (B, ...) images as the network takes them, floats in [0, 1], or a dict of inputs by name, also
            integers. Their shapes and types become those of the file. Labels are ignored.
        members: also output the probabilities of each member.
        uncertainty: also output entropy and mutual information.
        elastic: let the file run with fewer bridges, or with the first base alone on confident images.
        classes: class names; None for numbers.
        names: names of the modes, then of the bridges; None numbers the modes and uses the names of the bridges. The
            heads of a bridge are numbered, as NAME/0.
        scores: scores to store in the file, for example on the test split.
        about: a short description to store in the file.
        tolerance: maximum difference of a probability between the file and the library, in fp32.
        check: more images to compare on, or images and labels; int8 files are scored on the labelled images.
        valid: held-out data to fit one temperature per number of bridges; a calibrated ensemble keeps its own
            temperature. Without it, the temperature of the ensemble is used for all.
        temperatures: temperatures fitted before, instead of `valid`.
        threshold: default confidence threshold of the file; None runs every member on every image.
        int8: calibration images; quantises weights and activations to 8 bits (.onnx only).
        grouped: run bridges of one architecture at one tap as one; "auto" does so where it was measured to be faster:
            with filter response norm, not with batch norm (docs/deploy.md). Never in elastic files.
        aot: compile with AOTInductor (.pt2 only; needs a C++ compiler).
        unit: cost of the network to use as the unit (`module_cost`); None for the first base of the ensemble.
        progress: show a progress bar; None shows it in terminals and notebooks. A function is called instead, with
            every step.
    """
    assert callable(progress)
    place = Path(path)
    kind = place.suffix.removeprefix(".")
    check_format(place, int8=int8 is not None, aot=aot)
    given = check_example(example, "example")
    specs = specs_of(given)
    if elastic and grouped is True:
        raise ModebridgeError(
            "Expected elastic=False for grouped bridges, but elastic is True; an elastic file can run any number of "
            "bridges, so it runs them one by one."
        )
    if threshold is not None and not elastic:
        raise ModebridgeError("Expected elastic=True for a threshold, but elastic is False; change one of them.")
    progress("preparing", 0, STEPS, 0.0)
    reference = copy.deepcopy(ensemble).cpu().float().eval()
    images, pair = _images(check)
    fitted = _temperatures(reference, valid, temperatures)
    ranges = None if int8 is None else check_example(int8, "int8")
    for what, other in (("check", images), ("int8", ranges)):
        if other is not None and specs_of(other) != specs:
            raise ModebridgeError(
                f"Expected the images of {what} to have the shape and type of the example, {shapes_of(given)}, but got "
                f"{shapes_of(other)}; convert them."
            )
    meta = describe(reference, fitted, given, classes=classes, names=names, scores=scores, about=about, unit=unit)
    batches = probe(given, images, reference)
    meta |= {"threshold": threshold, "elastic": elastic, "precision": "fp32" if int8 is None else "int8", "aot": aot}
    extras = {"members": members, "entropy": uncertainty, "mutual_information": uncertainty}
    meta["outputs"] = ["probabilities", *[name for name, wanted in extras.items() if wanted], "used"]
    # Check the metadata before the long part, under the path that the user gave.
    metadata_json(meta, place)
    # As measured, grouping speeds up the many small operations of filter response norm but not folded convolutions.
    small = any(isinstance(layer, FilterResponseNorm) for layer in reference.bridges.modules())
    together = not elastic and (small if grouped == "auto" else grouped)
    module = OneModule(reference, fitted, grouped=together)
    few = [take_rows(batch, slice(8)) for batch in batches]
    if largest_difference(lambda some, *_: module(some).numpy(), reference, fitted, few, elastic=False) >= tolerance:
        # Folding relies on the graph that torch.fx traced; if a network does something else, its norms are kept.
        module = OneModule(reference, fitted, folded=False, grouped=together)
    scratch = place.with_name(f".{place.stem}-{secrets.token_hex(6)}{place.suffix}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        progress("writing", 1, STEPS, 0.0)
        if kind == "onnx":
            seal = write_onnx(module, given, meta, scratch, ranges)
        else:
            seal = write_package(module, given, meta, scratch)
        progress("comparing", 2, STEPS, 0.0)
        file = Deployed.load(scratch)

        def ask(images: Any, bridges: int | None, threshold: float | None) -> Any:
            return file(images, bridges=bridges, threshold=ALL if elastic and threshold is None else threshold)[0]

        # Confidences may differ as much as probabilities may.
        margin = max(MARGIN, tolerance)
        parity = largest_difference(ask, reference, fitted, batches, elastic=elastic, margin=margin)
        if int8 is None and not parity < tolerance:
            raise ModebridgeError(
                f"Expected the file's probabilities to be within {tolerance:g} of the library's, but got a difference "
                f"of {parity:.3g}, so nothing was written; raise tolerance if you can accept that."
            )
        price = compare(reference, fitted, file, pair) if int8 is not None and pair is not None else None
        meta["parity"] = {"largest_difference": parity, "images": sum(size_of(batch) for batch in batches)}
        meta |= {} if price is None else {"int8": price.as_dict()}
        progress("saving", 3, STEPS, 0.0)
        seal(meta)
        scratch.replace(place)
        progress("saving", STEPS, STEPS, 0.0)
    except OSError as error:
        raise ModebridgeError(
            f"Expected to write '{place}', but got '{error}'; check the permissions and the free disk space."
        ) from error
    finally:
        scratch.unlink(missing_ok=True)
    return Exported(place, kind, parity, place.stat().st_size, meta, price)


def check_format(place: Path, *, int8: bool = False, aot: bool = False) -> None:
    """Refuse a wrong suffix, options that the format does not support, and missing packages."""
    if place.suffix not in (".onnx", ".pt2"):
        raise ModebridgeError(
            f"Expected the file to end in .onnx or .pt2, but got '{place.name}'; the suffix chooses the format."
        )
    if int8 and place.suffix != ".onnx":
        raise ModebridgeError(f"Expected an .onnx file for int8, but got '{place.name}'; use .onnx.")
    if aot and place.suffix != ".pt2":
        raise ModebridgeError(f"Expected a .pt2 file for aot, but got '{place.name}'; use .pt2.")
    if place.suffix == ".onnx":
        needs_onnx()


def _images(check: Inputs | Batch | None) -> tuple[Inputs | None, Batch | None]:
    if check is None:
        return None, None
    images = check_example(check, "check")
    labelled = any(name in check for name in LABELS) if isinstance(check, Mapping) else not isinstance(check, Tensor)
    return images, (images, check_batch(check, "check")[1].cpu()) if labelled else None


@torch.no_grad()
def _temperatures(ensemble: Ensemble, valid: Batches | None, given: Temperatures | None) -> Temperatures:
    heads = tuple(bridge.heads for bridge in ensemble.bridges if isinstance(bridge, Bridge))
    if given is not None:
        fitted = replace(given, heads=heads)
        fitted.check(len(heads))
        return fitted
    if valid is None:
        return Temperatures.same(float(ensemble.temperature), len(heads), heads)
    pairs = [check_batch(item, "valid") for item in valid]
    if not pairs:
        raise ModebridgeError("Expected valid to have batches, but got none; pass the validation split.")
    members = torch.cat([ensemble.members(check_example(images, "valid")) for images, _ in pairs], dim=1)
    labels = torch.cat([labels.cpu() for _, labels in pairs])
    fitted = fit_temperatures(members, labels, len(ensemble.bases), ensemble.mean, heads)
    if not ensemble.calibrated:
        return fitted
    full = float(ensemble.temperature)
    first = full if len(ensemble.bases) == 1 and not heads else fitted.first
    return Temperatures(first, (*fitted.by_bridges[:-1], full), heads)
