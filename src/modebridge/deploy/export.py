"""Export an ensemble as one file, compared with the library before it is saved, with its metadata inside."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modebridge.batches import check_batch, flatten, map_inputs, size_of, take_rows
from modebridge.deploy.deployed import Answer, DeployedEnsemble, check_format
from modebridge.deploy.inputs import ANY, Array, check_example, pixel_doubts
from modebridge.deploy.metadata import KEY, describe, metadata_json, seal
from modebridge.deploy.module import Calibration, EnsembleModule, export_program
from modebridge.deploy.onnx import write_onnx
from modebridge.ensembles import ALL, AnswerRule, Cascade, Ensemble, SetRule, average, cascaded, fit_temperature, scale
from modebridge.ensembles.decisions import class_scores
from modebridge.ensembles.forward import confidence_of
from modebridge.ensembles.temperature import sampled
from modebridge.errors import ModebridgeError, near
from modebridge.files.adapters import quiet
from modebridge.files.atomic import write_file
from modebridge.matching import are_tokens, image_size
from modebridge.nets import classes_last, second
from modebridge.nets.quirks import FAILED
from modebridge.types import Batch, Batches, Inputs

EXTRAS = ("members", "entropy", "mutual_information")
SHORTEST = 4
"""Sequences of which a half can be shown to an exporter: an axis of size 1 would become a constant."""
MARGIN = 1e-4
"""A confidence this close to a threshold may be on either side of it, due to rounding."""


def export(
    ensemble: Ensemble | Cascade,
    path: Path | str,
    example: Inputs | Batch,
    *,
    valid: Batches | Calibration | None = None,
    threshold: float | None = None,
    outputs: Sequence[str] = ("entropy", "mutual_information"),
    classes: Sequence[str] | None = None,
    info: Mapping[str, Any] | None = None,
    tolerance: float = 1e-5,
) -> DeployedEnsemble:
    """Export a bridged ensemble as one file that runs without your Python code.

    The file is written under a temporary name, run in its own runtime on the example and on random images, and
    compared with the library. Only then is it moved to `path`.

    Args:
        ensemble: modes, bridges and a temperature, or a cascade of them; not changed.
        path: the suffix chooses the format: .onnx for ONNX Runtime, .pt2 for torch.export.
        example: (B, ...) images as the network takes them, floats in [0, 1], or a dict of inputs by name, also
            integers. Their shapes and types become those of the file; sequences of four tokens or more stand for any
            length, if the networks can take it. Labels are ignored.
        valid: held-out data to fit the temperatures, and the rules that the ensemble has (`conformal`, `abstain`), or
            all of these; a calibrated ensemble keeps its own temperature for all members. Without it, what the ensemble
            has is used, also for the first base alone.
        threshold: makes an .onnx file a cascade: all members run only on images whose first base is less confident than
            this, and another threshold can be given in a call. None runs every member on every image.
        outputs: outputs besides `probabilities`, `used`, and the `sets` and `answered` of an ensemble with such rules:
            members, entropy, mutual_information.
        classes: class names; None for those of a model of transformers, else for numbers.
        info: further facts to store: `names` of the modes, then of the bridges; `scores`; `about`, a short description;
            `unit`, the cost of the network to use as the unit (`module_cost`), if it is not the first base; `pixels`,
            the range of its images, if the example does not show it.
        tolerance: maximum difference of a probability between the file and the library.

    Example::

        file = export(ensemble, "fast.onnx", images[:1])
        file(images).probabilities
    """
    place = check_format(path)
    if isinstance(ensemble, Cascade):
        if threshold is not None or valid is not None:
            raise ModebridgeError(
                "Expected a cascade to be exported with its own temperatures and the threshold of the cascade, but got "
                "another one or data; set cascade.threshold, or call cascade.calibrate(valid)."
            )
        threshold, first = ensemble.threshold, float(ensemble.first_temperature)
        sets, answers, ensemble = ensemble.sets, ensemble.answers, ensemble.ensemble
        valid = Calibration(first, float(ensemble.temperature), sets, answers)
    if threshold is not None and not (place.suffix == ".onnx" and threshold >= 0):
        raise ModebridgeError(
            f"Expected a threshold of at least 0, in an .onnx file, but got {threshold} for '{place.name}'; leave it "
            "out to run all members."
        )
    for name in outputs:
        if name not in EXTRAS:
            raise ModebridgeError(f"Expected outputs to name extra outputs, but got '{name}'; {near(name, EXTRAS)}")
    if not isinstance(ensemble, Ensemble):
        raise ModebridgeError(
            f"Expected an Ensemble or a Cascade to export, but got {type(ensemble).__name__}; a network alone is "
            "Ensemble(net, [net])."
        )
    given = check_example(example, "example")
    reference = copy.deepcopy(ensemble).cpu().float().eval()
    fitted = _calibration(reference, valid, threshold)
    meta = describe(reference, fitted, given, classes, info)
    ruled = [name for name, rule in (("sets", fitted.sets), ("answered", fitted.answers)) if rule is not None]
    extra = [name for name in EXTRAS if name in outputs]
    meta |= {"threshold": threshold, "outputs": ["probabilities", *extra, *ruled, "used"]}
    for doubt in pixel_doubts(meta["pixels"]) if "pixels" not in (info or {}) else ():
        warnings.warn(doubt, stacklevel=2)
    metadata_json(meta, place)  # checked before the long part
    batches, shorter = probe(given, reference), _shorter(given, reference)
    names = None if isinstance(given, Tensor) else list(given)
    module = EnsembleModule(reference, fitted, inputs=names, outputs=meta["outputs"])

    def write(scratch: Path) -> None:
        tensors, store = list(flatten(given).values()), None
        writer = write_onnx if place.suffix == ".onnx" else _write_pt2
        if shorter is not None:
            free = {name: {**entry, "shape": [ANY]} for name, entry in meta["inputs"].items()}
            with suppress(ModebridgeError):  # a network that needs one length
                store = writer(module, tensors, list(flatten(shorter).values()), {**meta, "inputs": free}, scratch)
                meta["inputs"] = free
                batches.append(shorter)
        store = store or writer(module, tensors, None, meta, scratch)
        store(metadata_json(meta, place))
        seal(scratch)
        file = DeployedEnsemble.load(scratch)

        def ask(images: Inputs, threshold: float) -> Array:
            return file(images, threshold=threshold if file.cascade else None).probabilities

        margin = max(MARGIN, tolerance)  # confidences may differ as much as probabilities may
        parity = largest_difference(ask, reference, fitted, batches, cascade=file.cascade, margin=margin)
        if not parity < tolerance:
            raise ModebridgeError(
                f"Expected the file's probabilities to be within {tolerance:g} of the library's, but got a difference "
                f"of {parity:.3g}, so nothing was written; raise tolerance if you can accept that."
            )
        for images in batches:
            for bound in (0.0, threshold, ALL) if file.cascade else (None,):  # every branch
                _check_decisions(file(images, threshold=bound), fitted)
        meta["parity"] = {"largest_difference": parity, "images": sum(size_of(batch) for batch in batches)}
        store(metadata_json(meta, place))
        seal(scratch)

    write_file(place, write)
    return DeployedEnsemble.load(place)


def _write_pt2(
    module: EnsembleModule,
    example: Sequence[Tensor],
    other: Sequence[Tensor] | None,
    meta: Mapping[str, Any],
    path: Path,
) -> Callable[[str], None]:
    """Export the ensemble as a program of torch, as `write_onnx`."""
    program = export_program(torch.export.export, "torch.export", module, example, other)

    def write(metadata: str) -> None:
        with quiet():
            torch.export.save(program, path, extra_files={KEY: metadata})

    return write


@torch.no_grad()
def _calibration(ensemble: Ensemble, valid: Batches | Calibration | None, threshold: float | None) -> Calibration:
    own, sets, answers = float(ensemble.temperature), ensemble.sets, ensemble.answers
    if isinstance(valid, Calibration):
        if not all(0 < one < float("inf") for one in valid[:2]):
            raise ModebridgeError(f"Expected temperatures to be positive, but got {valid[:2]}; fit them again.")
        return valid
    if valid is None:
        if threshold is not None and (sets or answers):
            raise ModebridgeError(
                "Expected held-out data to fit the sets and answers of a cascade, whose probabilities are not those of "
                "all members, but got none; pass valid."
            )
        return Calibration(own, own, sets, answers)
    pairs = [check_batch(item, "valid") for item in valid]
    if not pairs:
        raise ModebridgeError("Expected valid to have batches, but got none; pass the validation split.")
    rows = [_sampled(ensemble.table(check_example(images, "valid")), labels.cpu()) for images, labels in pairs]
    members, labels = torch.cat([each for each, _ in rows], dim=1), torch.cat([numbers for _, numbers in rows])
    full = own if ensemble.calibrated else fit_temperature(average(members), labels)
    first = full if len(members) == 1 else fit_temperature(members[0], labels)
    table = scale(average(members), full)
    if threshold is not None:
        if pairs[0][1].dim() > 1 and (sets or answers):
            raise ModebridgeError(
                "Expected a cascade of networks that classify places to have no sets or answers, since these hold for "
                "places and it chooses by image, but got some; leave out the threshold."
            )
        table = cascaded(scale(members[0], first), table, threshold)[0]
    if sets is not None:
        sets = SetRule.fit(table, labels, sets.coverage, sets.method, per_class=len(sets.limits) > 1)
    if answers is not None:
        answers = AnswerRule.fit(table, labels, answers.risk, answers.confidence)
    return Calibration(first, full, sets, answers)


def _sampled(members: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The members' probabilities (M, N, K) and labels (N,) to fit on: see `temperature.sampled`."""
    together, numbers = sampled(members.movedim(0, -2).flatten(-2), labels)
    return together.view(len(together), len(members), -1).movedim(1, 0), numbers


def probe(example: Inputs, ensemble: Ensemble) -> list[Inputs]:
    """Batches to compare on: rows of the example and random ones, in several sizes including one.

    Random inputs on which the ensemble fails are left out.
    """
    generator, rows = torch.Generator().manual_seed(0), torch.arange(7) % size_of(example)

    def some(tensor: Tensor) -> Tensor:
        # Integers are those of the example, since others may not be valid.
        return torch.rand(tensor[rows].shape, generator=generator) if tensor.is_floating_point() else tensor[rows]

    random = map_inputs(some, example)
    batches = [take_rows(example, rows) for rows in (slice(64), slice(1), slice(64, 256))]
    batches = [batch for batch in batches if size_of(batch)]
    for batch in (take_rows(random, slice(1)), random):
        with suppress(*FAILED), torch.no_grad():
            if ensemble.table(batch).isfinite().all():
                batches.insert(0, batch)
    return batches


@torch.no_grad()
def _shorter(example: Inputs, ensemble: Ensemble) -> Inputs | None:
    """Shorter sequences of tokens; None for other inputs, and for networks that cannot take them."""
    if not are_tokens(example) or (length := image_size(example)[1]) < SHORTEST:
        return None
    cut = map_inputs(lambda tensor: tensor[:, : length // 2].contiguous(), example)
    with suppress(*FAILED):
        return cut if bool(ensemble.table(cut).isfinite().all()) else None
    return None


@torch.no_grad()
def largest_difference(
    ask: Callable[[Inputs, float], Array],
    ensemble: Ensemble,
    fitted: Calibration,
    batches: Sequence[Inputs],
    *,
    cascade: bool,
    margin: float = MARGIN,
) -> float:
    """The largest difference of a probability over all batches and, for a cascade, with a threshold in their midst.

    `ask` maps images and a threshold to probabilities. An image whose confidence is within `margin` of a threshold may
    go either way, so both predictions are accepted.
    """
    worst = 0.0
    for images in batches:
        members = ensemble.table(images)
        first, full = scale(members[0], fitted.first), scale(average(members), fitted.full)
        confidence = confidence_of(first)
        for threshold in (ALL, *([_between(confidence)] if cascade else [])):
            output = classes_last(torch.from_numpy(ask(images, threshold)))
            wanted, _ = cascaded(first, full, threshold)
            tied = ((confidence - threshold).abs() <= margin).view(-1, *[1] * (first.dim() - 1))
            accepted = torch.stack([torch.where(tied, one, wanted) for one in (first, full)])
            differences = (output - accepted).abs().amax(dim=-1).amin(dim=0)
            # NaN counts as infinity.
            worst = max(worst, float(differences.nan_to_num(nan=float("inf")).max()))
    return worst


def _check_decisions(answer: Answer, fitted: Calibration) -> None:
    """Raise an error if the decisions of a file are not those of the rules, except within rounding of a limit."""
    table = classes_last(torch.from_numpy(answer.probabilities))
    checks: list[tuple[Array | None, Tensor, Tensor]] = []
    if fitted.sets is not None:
        limits = torch.tensor(fitted.sets.limits)
        distances = (class_scores(table, fitted.sets.method) - limits).abs() / limits.abs().clamp_min(1e-9)
        checks.append((answer.sets, second(fitted.sets(table)), second(distances)))
    if fitted.answers is not None:
        distances = (table.amax(dim=-1) - fitted.answers.threshold).abs()
        checks.append((answer.answered, fitted.answers(table), distances))
    for given, wanted, distances in checks:
        if bool(((torch.from_numpy(given) != wanted) & (distances > MARGIN)).any()):
            raise ModebridgeError(
                "Expected the file's sets and answers to be those of its rules, but they differ, so nothing was "
                "written; update onnxruntime, or export without rules."
            )


def _between(confidences: Tensor) -> float:
    """A threshold in the widest gap between confidences of the first base, where rounding matters least."""
    top = confidences.sort().values
    if len(top) == 1:
        return float(top[0]) / 2
    gap = int(top.diff().argmax())
    return float(top[gap] + top[gap + 1]) / 2
