"""Export an ensemble as one file, compared with the library before it is saved, with its metadata inside."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from modebridge.batches import check_batch, flatten, map_inputs, size_of, take_rows
from modebridge.deploy.deployed import DeployedEnsemble, needs_onnx
from modebridge.deploy.inputs import OUTPUTS, Array, check_example
from modebridge.deploy.metadata import describe, metadata_json, seal
from modebridge.deploy.module import EnsembleModule, Temperatures, fit_temperatures
from modebridge.deploy.onnx import write_onnx
from modebridge.deploy.pt2 import write_pt2
from modebridge.ensembles import Ensemble, average, cascaded, scale
from modebridge.errors import ModebridgeError, near, plural
from modebridge.files.atomic import write_file
from modebridge.nets.quirks import FAILED
from modebridge.scoring import ALL
from modebridge.types import Batch, Batches, Inputs

EXTRAS = tuple(name for name in OUTPUTS if name not in ("probabilities", "used"))

MARGIN = 1e-4
"""A confidence this close to a threshold may be on either side of it, due to rounding."""

Ask: TypeAlias = Callable[[Inputs, int | None, float | None], Array]
"""Maps images (B, ...), a number of bridges and a threshold to probabilities (B, K)."""


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
    tensors = list(flatten(given).values())

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
        return module(*flatten(images).values())[0].numpy()

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


def probe(example: Inputs, ensemble: Ensemble) -> list[Inputs]:
    """Batches to compare on: rows of the example and random ones, in several sizes including one.

    Random inputs on which the ensemble fails (such as meaningless sequences of tokens) are left out.
    """
    random = _random(example)
    batches = [batch for batch in (random, take_rows(random, slice(1))) if _runs(ensemble, batch)]
    batches += [take_rows(example, rows) for rows in (slice(64), slice(1), slice(64, 256))]
    return [batch for batch in batches if size_of(batch)]


def _random(example: Inputs, count: int = 7) -> Inputs:
    """Random floats in [0, 1]; for integers, shifted rows of the example, since other values may not be valid."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(count) % size_of(example)

    def some(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return torch.rand(count, *tensor.shape[1:], generator=generator)
        chosen = tensor[rows]
        # Each row is rolled by a different amount, the same in every input, so that masks stay with their tokens.
        return torch.stack([row.roll(k, 0) for k, row in enumerate(chosen)]) if chosen.dim() > 1 else chosen

    return map_inputs(some, example)


@torch.no_grad()
def _runs(ensemble: Ensemble, batch: Inputs) -> bool:
    try:
        return bool(ensemble.members(batch).isfinite().all())
    except FAILED:
        return False


def expected(
    members: Tensor, heads: Sequence[int], temperatures: Temperatures, bridges: int, threshold: float = ALL
) -> Tensor:
    """The prediction of the library: every member has run, and those that a file would skip are dropped."""
    kept = members[: len(members) - sum(heads[bridges:])]
    long = scale(average(kept), temperatures.by_bridges[bridges])
    return cascaded(scale(members[0], temperatures.first), long, threshold)[0]


@torch.no_grad()
def largest_difference(
    ask: Ask,
    ensemble: Ensemble,
    temperatures: Temperatures,
    batches: Sequence[Inputs],
    *,
    cascade: bool,
    margin: float = MARGIN,
) -> float:
    """The largest difference of a probability over all batches and, with a cascade, over all ways to run it.

    An image whose confidence is within `margin` of a threshold may go either way, so both predictions are accepted.
    """
    worst, heads = 0.0, [bridge.heads for bridge, _ in ensemble.reads]
    for number, images in enumerate(batches):
        members = ensemble.members(images)
        sure = scale(members[0], temperatures.first).amax(dim=-1)
        ways: list[tuple[int | None, float | None]] = [(None, None)]
        if cascade:
            ways.append((None, _between(sure)))
            # Every number of bridges, on the first batch only; the full ensemble covers them on the others.
            ways += [(j, None) for j in range(len(heads))] if number == 0 else []
        for bridges, threshold in ways:
            output = torch.from_numpy(ask(images, bridges, threshold))
            count = len(heads) if bridges is None else bridges
            limit = ALL if threshold is None else threshold
            wanted = expected(members, heads, temperatures, count, limit)
            tied = ((sure - limit).abs() <= margin)[:, None]
            either = [
                torch.where(tied, expected(members, heads, temperatures, count, way), wanted) for way in (0.0, ALL)
            ]
            differences = torch.stack([(output - one).abs().amax(dim=-1) for one in either])
            # NaN counts as infinity.
            worst = max(worst, float(differences.amin(dim=0).nan_to_num(nan=float("inf")).max()))
    return worst


def _between(confidences: Tensor) -> float:
    """A threshold in the widest gap between confidences of the first base, where rounding matters least."""
    top = confidences.sort().values
    if len(top) == 1:
        return float(top[0]) / 2
    gap = int(top.diff().argmax())
    return float(top[gap] + top[gap + 1]) / 2
