"""Export an ensemble as one file, compared with the library before it is saved, with its metadata inside."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from modebridge.batches import flatten, map_inputs, size_of, take_rows
from modebridge.deploy.deployed import Answer, DeployedEnsemble, check_format
from modebridge.deploy.inputs import ANY, Array, check_example, pixel_doubts
from modebridge.deploy.metadata import KEY, describe, metadata_json, seal
from modebridge.deploy.module import Calibration, EnsembleModule, Tensors, export_program
from modebridge.deploy.onnx import write_onnx
from modebridge.ensembles import ALL, Cascade, Ensemble, average, cascaded, scale
from modebridge.ensembles.decisions import class_scores
from modebridge.ensembles.forward import confidence_of
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
TOLERANCE, ROUNDING, ROUGHEST = 1e-5, 10, 0.01
"""How much probabilities may differ: this, or a multiple of what float32 itself does, up to a limit."""
MARGIN = 1e-4
"""A confidence this close to a threshold may be on either side of it, due to rounding."""

Ask: TypeAlias = Callable[[Inputs, float], Array]
"""Maps images and a threshold to probabilities, as a file does."""


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
    tolerance: float | None = None,
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
        tolerance: maximum difference of a probability between the file and the library on the example. None is 1e-5,
            or where float32 itself is coarser, ten times its difference from float64; so it is for random images.

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
        if place.suffix != ".onnx":
            raise ModebridgeError(
                f"Expected a cascade to be exported to .onnx, which stops early, but got '{place.name}'; change the "
                "suffix, or export its `ensemble`, which runs all members."
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
    fitted = Calibration.of(reference, valid, threshold)
    meta = describe(reference, fitted, given, classes, info)
    ruled = [name for name, rule in (("sets", fitted.sets), ("answered", fitted.answers)) if rule is not None]
    extra = [name for name in EXTRAS if name in outputs]
    meta |= {"threshold": threshold, "outputs": ["probabilities", *extra, *ruled, "used"]}
    for doubt in pixel_doubts(meta["pixels"]) if "pixels" not in (info or {}) else ():
        warnings.warn(doubt, stacklevel=2)
    metadata_json(meta, place)  # checked before the long part
    (real, random), shorter = probe(given, reference), _shorter(given, reference)
    names = None if isinstance(given, Tensor) else list(given)
    module = EnsembleModule(reference, fitted, inputs=names, outputs=meta["outputs"])

    def write(scratch: Path) -> None:
        examples, store = [list(flatten(one).values()) for one in (given, shorter) if one is not None], None
        writer = write_onnx if place.suffix == ".onnx" else _write_pt2
        if shorter is not None:
            free = {name: {**entry, "shape": [ANY]} for name, entry in meta["inputs"].items()}
            with suppress(ModebridgeError):  # a network that needs one length
                store = writer(module, examples, {**meta, "inputs": free}, scratch)
                meta["inputs"] = free
                real.append(shorter)
        store = store or writer(module, examples[:1], meta, scratch)
        store(metadata_json(meta, place))
        seal(scratch)
        file = DeployedEnsemble.load(scratch)

        def ask(images: Inputs, threshold: float) -> Array:
            return file(images, threshold=threshold if file.cascade else None).probabilities

        library, limit = Library(reference, fitted, file.cascade), TOLERANCE if tolerance is None else tolerance
        parity = library.check(ask, real, limit, strict=tolerance is not None)
        parity = max(parity, library.check(ask, random, max(limit, TOLERANCE), strict=False))
        for images in (*real, *random):
            for bound in (0.0, threshold, ALL) if file.cascade else (None,):  # every branch
                _check_decisions(file(images, threshold=bound), fitted)
        meta["parity"] = {"largest_difference": parity, "images": sum(map(size_of, (*real, *random)))}
        store(metadata_json(meta, place))
        seal(scratch)

    write_file(place, write)
    return DeployedEnsemble.load(place)


def _write_pt2(
    module: EnsembleModule, examples: Sequence[Tensors], meta: Mapping[str, Any], path: Path
) -> Callable[[str], None]:
    """Export the ensemble as a program of torch, as `write_onnx`."""
    program = export_program(torch.export.export, "torch.export", module, examples)

    def write(metadata: str) -> None:
        with quiet():
            torch.export.save(program, path, extra_files={KEY: metadata})

    return write


def probe(example: Inputs, ensemble: Ensemble) -> tuple[list[Inputs], list[Inputs]]:
    """Batches to compare on: rows of the example, and random ones, each in several sizes including one.

    Random inputs on which the ensemble fails are left out.
    """
    generator, rows = torch.Generator().manual_seed(0), torch.arange(7) % size_of(example)

    def some(tensor: Tensor) -> Tensor:
        # Integers are those of the example, since others may not be valid.
        return torch.rand(tensor[rows].shape, generator=generator) if tensor.is_floating_point() else tensor[rows]

    random = map_inputs(some, example)
    batches = [take_rows(example, rows) for rows in (slice(64), slice(1), slice(64, 256))]
    runs = [batch for batch in (random, take_rows(random, slice(1))) if _runs(ensemble, batch)]
    return [batch for batch in batches if size_of(batch)], runs


@torch.no_grad()
def _runs(ensemble: Ensemble, batch: Inputs) -> bool:
    with suppress(*FAILED):
        return bool(ensemble.table(batch).isfinite().all())
    return False


def _shorter(example: Inputs, ensemble: Ensemble) -> Inputs | None:
    """Shorter sequences of tokens; None for other inputs, and for networks that cannot take them."""
    if not are_tokens(example) or (length := image_size(example)[1]) < SHORTEST:
        return None
    cut = map_inputs(lambda tensor: tensor[:, : length // 2].contiguous(), example)
    return cut if _runs(ensemble, cut) else None


class Library(NamedTuple):
    """What the library says, to compare files with."""

    ensemble: Ensemble
    fitted: Calibration
    cascade: bool

    def tables(self, images: Inputs) -> tuple[Tensor, Tensor]:
        """The calibrated probabilities of the first base alone, and of all members, as exact as the ensemble is."""
        dtype = self.ensemble.temperature.dtype
        members = self.ensemble.table(map_inputs(lambda x: x.to(dtype) if x.is_floating_point() else x, images))
        return scale(members[0], self.fitted.first), scale(average(members), self.fitted.full)

    def ask(self, images: Inputs, threshold: float) -> Array:
        return second(cascaded(*self.tables(images), threshold)[0]).numpy()

    def check(self, ask: Ask, batches: Sequence[Inputs], tolerance: float, *, strict: bool) -> float:
        """The largest difference of a file; more than the tolerance raises an error.

        Unless that is strict, a file, which adds up in another order, may differ `ROUNDING` times as much as the
        library in float32 differs from itself in float64.
        """
        if (found := self.difference(ask, batches, tolerance)) < tolerance:
            return found
        advice = "update the runtime, or in Python pass a larger tolerance= if you can accept that"
        if self.difference(self.ask, batches) > TOLERANCE:
            advice = "two runs of the library differ too, so switch off what is random in the network, such as dropout"
        elif not strict:
            with suppress(*FAILED):  # a network that needs float32
                exact = self._replace(ensemble=copy.deepcopy(self.ensemble).double())
                tolerance = max(tolerance, min(ROUNDING * self.difference(exact.ask, batches, ROUGHEST), ROUGHEST))
            if (found := self.difference(ask, batches, tolerance)) < tolerance:
                return found
        raise ModebridgeError(
            f"Expected the file's probabilities to be within {tolerance:.3g} of the library's, but got a difference of "
            f"{found:.3g}, so nothing was written; {advice}."
        )

    @torch.no_grad()
    def difference(self, ask: Ask, batches: Sequence[Inputs], margin: float = MARGIN) -> float:
        """The largest difference of a probability over all batches and, for a cascade, with a threshold in their midst.

        An image whose confidence is within a margin of a threshold may go either way, so both answers are accepted.
        """
        worst, margin = 0.0, max(margin, MARGIN)  # confidences may differ as much as probabilities may
        for images in batches:
            first, full = self.tables(images)
            confidence = confidence_of(first)
            for threshold in (ALL, *([_between(confidence)] if self.cascade else [])):
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
