"""Load and run an exported file, with the same interface for all formats."""

from __future__ import annotations

import stat
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from modebridge.deploy.elastic_answer import Answer
from modebridge.deploy.file_seal import check_seal
from modebridge.deploy.inputs import Array, Arrays, checked, output_specs, specs_in
from modebridge.deploy.runtimes import OnnxFile, PackageFile
from modebridge.errors import ModebridgeError, first_line
from modebridge.types import Inputs

__all__ = ["Deployed", "UncheckedFileWarning"]


class UncheckedFileWarning(UserWarning):
    """A file without a seal, so it cannot be checked for damage."""


class Deployed:
    """An exported ensemble: maps images (or tokens, by name) to an answer. Thread-safe.

    >>> # file = Deployed.load("fast.onnx"); file(images).probabilities
    """

    def __init__(self, runtime: OnnxFile | PackageFile, path: Path) -> None:
        self._runtime = runtime
        self.meta = runtime.meta
        self.path = path
        self._specs = specs_in(runtime.meta)

    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images that the file takes; an error if it takes other inputs."""
        shape = self.meta["image"]
        if shape is None or len(shape) != 3:
            takes = ", ".join(f"{name} {spec.shape} of {spec.type}" for name, spec in self._specs.items())
            raise ModebridgeError(
                f"Expected a file that takes images (C, H, W), but '{self.path}' takes {takes}; "
                "run it in Python with Deployed.load."
            )
        return (shape[0], shape[1], shape[2])

    @classmethod
    def load(cls, path: Path | str, *, threads: int | None = None) -> Deployed:
        """Load a file written by `export`.

        Args:
            path: .onnx or .pt2. A .pt2 archive contains code: load only files you trust.
            threads: CPU threads per call; None for the runtime's default. Ignored for .pt2, which uses torch's setting.
        """
        place = Path(path)
        _check_is_file(place)
        if place.suffix not in (".onnx", ".pt2"):
            raise ModebridgeError(
                f"Expected a file ending in .onnx or .pt2, but got '{place}'; create one with `modebridge export`."
            )
        try:
            sealed = check_seal(place)
        except OSError as error:
            raise ModebridgeError(
                f"Expected to read '{place}', but got '{error.strerror}'; check its permissions."
            ) from error
        onnx = place.suffix == ".onnx"
        runtime: OnnxFile | PackageFile = OnnxFile(place, threads, sealed) if onnx else PackageFile(place, sealed)
        if not sealed:
            warnings.warn(
                f"'{place}' was written by an older modebridge without a SHA-256 and cannot be checked for damage; "
                "export it again to add one.",
                UncheckedFileWarning,
                stacklevel=2,
            )
        return cls(runtime, place)

    def __call__(
        self, images: Arrays | Inputs, *, bridges: int | None = None, threshold: float | None = None
    ) -> Answer[Array]:
        """Predict for images (B, ...), floats in [0, 1], or for inputs by name.

        Args:
            images: a batch of any size, also empty; a dict if the file takes several inputs. Labels are ignored.
            bridges: number of bridges to run; None for all.
            threshold: images whose first base is at least this confident use only that base. None for the threshold
                in the file; 2 runs every member on every image.
        """
        tables = checked(images, self._specs)
        if not self.meta["elastic"] and (bridges is not None or threshold is not None):
            raise ModebridgeError(
                "Expected an elastic file for bridges and threshold, but this one is not; export it with elastic=True."
            )
        if threshold is not None and not threshold >= 0:
            raise ModebridgeError(f"Expected threshold to be at least 0, but got {threshold}; 2 runs all members.")
        most = self.meta["bridges"]
        if bridges is not None and (not isinstance(bridges, int) or not 0 <= bridges <= most):
            raise ModebridgeError(f"Expected bridges to be from 0 to {most}, but got {bridges}; leave it out for all.")
        # Runtimes handle empty batches differently, so they never see one.
        if len(next(iter(tables.values()))):
            outputs = self._run(tables, most if bridges is None else int(bridges), threshold)
        else:
            outputs = {n: np.zeros((0, *spec.shape), spec.type) for n, spec in output_specs(self.meta).items()}
        members, entropy, mutual_information = map(outputs.get, ("members", "entropy", "mutual_information"))
        return Answer(outputs["probabilities"], members, entropy, mutual_information, outputs["used"])

    def _run(self, tables: Mapping[str, Array], bridges: int, threshold: float | None) -> Mapping[str, Array]:
        try:
            outputs = self._runtime.run(tables, bridges, threshold)
        except Exception as error:
            # Runtimes raise their own exceptions for tokens out of range, lack of memory, or a graph that does not fit.
            raise ModebridgeError(
                f"Expected '{self.path}' to run on these inputs, but got '{first_line(error)}'; check their values, "
                "or export it again."
            ) from error
        shape, classes = outputs["probabilities"].shape, self.meta["classes"]
        if shape[1:] != (len(classes),):
            raise ModebridgeError(
                f"Expected '{self.path}' to return probabilities of {len(classes)} classes, but got shape {shape}; "
                "export it again."
            )
        return outputs


def _check_is_file(place: Path) -> None:
    try:
        kind = place.stat().st_mode
    except FileNotFoundError as error:
        raise ModebridgeError(
            f"Expected '{place}' to be a file, but it does not exist; create it with `modebridge export`."
        ) from error
    except (OSError, ValueError) as error:
        raise ModebridgeError(f"Expected '{place}' to be a file, but got '{first_line(error)}'; check it.") from error
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "something else"
        raise ModebridgeError(
            f"Expected '{place}' to be a file, but it is {what}; give a file written by `modebridge export`."
        )
