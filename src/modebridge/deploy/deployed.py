"""A deployed file, read and asked: the same call whatever the format."""

from __future__ import annotations

import stat
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from modebridge.deploy.elastic_answer import Answer
from modebridge.deploy.file_seal import check_seal
from modebridge.deploy.inputs import Array, Arrays, checked, specs_in
from modebridge.deploy.runtimes import OnnxFile, PackageFile, Runtime
from modebridge.errors import ModebridgeError, first_line
from modebridge.types import Inputs

__all__ = ["Deployed", "UncheckedFileWarning"]


class UncheckedFileWarning(UserWarning):
    """A file without a seal: whether it is as it was written nobody can say."""


class Deployed:
    """An exported ensemble: images (or tokens, by name) in, an answer out. Several threads may ask it.

    >>> # file = Deployed.load("fast.onnx"); file(images).probabilities
    """

    def __init__(self, runtime: Runtime, path: Path) -> None:
        self._runtime = runtime
        self.meta = runtime.meta
        self.path = path
        self._specs = specs_in(runtime.meta)

    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a file that takes images; one that takes anything else is refused."""
        shape = self.meta["image"]
        if shape is None or len(shape) != 3:
            takes = ", ".join(f"{name} {spec.shape} of {spec.type}" for name, spec in self._specs.items())
            raise ModebridgeError(
                f"Expected a file that takes images (C, H, W), but '{self.path}' takes {takes}; "
                "ask it in Python, with Deployed.load."
            )
        return (shape[0], shape[1], shape[2])

    @classmethod
    def load(cls, path: Path | str, *, threads: int | None = None) -> Deployed:
        """Read a file that `export` wrote.

        Args:
            path: .onnx or .pt2; a .pt2 archive is code: load only what you trust.
            threads: CPU threads of one call; None takes the runtime's choice (of .pt2 files torch's).
        """
        place = Path(path)
        _check_there(place)
        if place.suffix not in (".onnx", ".pt2"):
            raise ModebridgeError(
                f"Expected a file ending in .onnx or .pt2, but got '{place}'; make one: modebridge export."
            )
        try:
            sealed = check_seal(place)
        except OSError as error:
            raise ModebridgeError(
                f"Expected to read '{place}', but got '{error.strerror}'; check the file's permissions."
            ) from error
        onnx = place.suffix == ".onnx"
        runtime: Runtime = OnnxFile(place, threads, sealed) if onnx else PackageFile(place, sealed)
        if not sealed:
            warnings.warn(
                f"'{place}' was written by an earlier modebridge, without the SHA-256 that would show damage; "
                "export it again to have it checked.",
                UncheckedFileWarning,
                stacklevel=2,
            )
        return cls(runtime, place)

    def __call__(
        self, images: Arrays | Inputs, *, bridges: int | None = None, threshold: float | None = None
    ) -> Answer[Array]:
        """The answer for images (B, ...), floats in [0, 1], of the file's shape; or for its inputs by name.

        Args:
            images: any number of them, none too; a dict where the file takes several inputs; labels are left out.
            bridges: how many of the bridges run; None runs all.
            threshold: images whose first base is at least this confident get its answer alone; None is the file's own,
                and 2 runs every member for every image.
        """
        tables = checked(images, self._specs)
        if not self.meta["elastic"] and (bridges is not None or threshold is not None):
            raise ModebridgeError(
                "Expected bridges and threshold for elastic files only, but this one is not; export it with elastic."
            )
        if threshold is not None and not threshold >= 0:
            raise ModebridgeError(f"Expected threshold to be a number of at least 0, but got {threshold}; 2 asks all.")
        most = self.meta["bridges"]
        if bridges is not None and (not isinstance(bridges, int) or not 0 <= bridges <= most):
            raise ModebridgeError(
                f"Expected bridges to be between 0 and {most}, but got {bridges}; leave it out for all."
            )
        # Runtimes differ in what they do with a batch of none: its answer is known.
        if len(next(iter(tables.values()))):
            outputs = self._run(tables, most if bridges is None else int(bridges), threshold)
        else:
            outputs = self._nothing()
        members, entropy, mutual_information = map(outputs.get, ("members", "entropy", "mutual_information"))
        return Answer(outputs["probabilities"], members, entropy, mutual_information, outputs["used"])

    def _run(self, tables: Mapping[str, Array], bridges: int, threshold: float | None) -> Mapping[str, Array]:
        try:
            outputs = self._runtime.run(tables, bridges, threshold)
        except Exception as error:
            # A runtime has exceptions of its own for tokens out of range, no memory, or a graph that does not fit.
            raise ModebridgeError(
                f"Expected '{self.path}' to run on these inputs, but got '{first_line(error)}'; check their values, "
                "or export it again."
            ) from error
        shape, classes = outputs["probabilities"].shape, self.meta["classes"]
        if shape[1:] != (len(classes),):
            raise ModebridgeError(
                f"Expected '{self.path}' to give probabilities of its {len(classes)} classes, but got shape {shape}; "
                "export it again."
            )
        return outputs

    def _nothing(self) -> dict[str, Array]:
        classes, members = len(self.meta["classes"]), len(self.meta["members"])
        shapes = {"probabilities": (0, classes), "members": (0, members, classes)}
        return {
            name: np.zeros(shapes.get(name, (0,)), np.int64 if name == "used" else np.float32)
            for name in self.meta["outputs"]
        }


def _check_there(place: Path) -> None:
    try:
        kind = place.stat().st_mode
    except FileNotFoundError as error:
        raise ModebridgeError(
            f"Expected '{place}' to be a file, but there is none; make it: modebridge export."
        ) from error
    except (OSError, ValueError) as error:
        raise ModebridgeError(f"Expected '{place}' to be a file, but got '{first_line(error)}'; check it.") from error
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "something else"
        raise ModebridgeError(f"Expected '{place}' to be a file, but it is {what}; name a file of modebridge export.")
