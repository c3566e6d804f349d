"""Load and run an exported file, with the same interface for both formats."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from modebridge.deploy.inputs import Array, Arrays, checked, output_specs, range_doubt, specs_in
from modebridge.deploy.metadata import FORMAT, KEY, check_intact, read_metadata
from modebridge.errors import ModebridgeError, needed, quoting
from modebridge.files.adapters import quiet
from modebridge.types import Inputs


class Answer(NamedTuple):
    """The prediction of a file for a batch.

    Args:
        probabilities: (B, K), calibrated.
        used: (B,) number of members averaged for each image; every head of a bridge counts as one.
        members: (B, M, K) probabilities of each member before calibration; zeros where a member did not run. None if
            the file does not output them.
        entropy: (B,) entropy of the calibrated probabilities, in nats; None if the file does not output it.
        mutual_information: (B,) disagreement of the members: the entropy of their mean minus the mean of their
            entropies, before calibration, in nats; None if the file does not output it.
        sets: (B, K) whether a class is in the set that contains the true one as often as was asked for; None if the
            file has no such rule.
        answered: (B,) whether an image should be answered; the others are for a person. None if there is no such rule.
    """

    probabilities: Array
    used: Array
    members: Array | None = None
    entropy: Array | None = None
    mutual_information: Array | None = None
    sets: Array | None = None
    answered: Array | None = None

    def __repr__(self) -> str:
        shapes = {name: tuple(array.shape) for name, array in self._asdict().items() if array is not None}
        return f"Answer({', '.join(f'{name} {shape}' for name, shape in shapes.items())})"


class DeployedEnsemble:
    """An exported ensemble: maps images (or tokens, by name) to an answer. Thread-safe.

    >>> # file = DeployedEnsemble.load("fast.onnx"); file(images).probabilities
    """

    def __init__(self, path: Path, meta: dict[str, Any], run: Callable[[dict[str, Array]], list[Array]]) -> None:
        self.path, self.meta, self._run = path, meta, run
        self._specs = specs_in(meta)
        # Before format 6, a cascade could be without a threshold of its own.
        self.cascade: bool = meta.get("elastic", meta["threshold"] is not None)
        """Whether it takes a threshold."""
        self._doubted = False

    def __repr__(self) -> str:
        members, cost = len(self.meta["members"]), self.meta["cost"]["relative_flops"]
        how = f"cascade of {members} members, up to" if self.cascade else f"{members} members,"
        return f"DeployedEnsemble({self.path.name!r}, {how} x{cost:.2f})"

    @classmethod
    def load(cls, path: Path | str, *, threads: int | None = None) -> DeployedEnsemble:
        """Load a file written by `export`.

        Args:
            path: .onnx or .pt2. A .pt2 archive contains code: load only files you trust.
            threads: CPU threads per call; None for the runtime's default. Ignored for .pt2, which uses torch's setting.
        """
        place = check_format(path, "onnxruntime")
        # Both runtimes have their own exceptions for files that they do not support.
        with quoting(f"'{place}' to load", "check the file, update the runtime, or export it again"):
            if not place.is_file():
                what = "is not one" if place.exists() else "does not exist"
                raise ModebridgeError(
                    f"Expected '{place}' to be a file, but it {what}; create it with `modebridge export`."
                )
            check_intact(place)
            return cls(place, *(_onnx(place, threads) if place.suffix == ".onnx" else _pt2(place)))

    @property
    def parity(self) -> float:
        """The largest difference of a probability between the file and the library, measured when it was exported."""
        return float(self.meta["parity"]["largest_difference"])

    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images that the file takes; an error if it takes other inputs."""
        shape = self.meta["image"]
        if shape is not None and len(shape) == 3:
            return (shape[0], shape[1], shape[2])
        takes = ", ".join(f"{name} {spec.shape} of {spec.type}" for name, spec in self._specs.items())
        raise ModebridgeError(
            f"Expected a file that takes images (C, H, W), but '{self.path}' takes {takes}; run it in Python with "
            "DeployedEnsemble.load."
        )

    def check_whole(self) -> None:
        """Raise an error if the file classifies places, for which there is no answer in one line."""
        if self.meta["places"]:
            raise ModebridgeError(
                f"Expected a file that classifies whole images, but '{self.path}' classifies each of "
                f"{' x '.join(map(str, self.meta['places']))} places; run it in Python with DeployedEnsemble.load."
            )

    def __call__(self, images: Arrays | Inputs, *, threshold: float | None = None) -> Answer:
        """Predict for images (B, ...), floats in [0, 1], or for inputs by name.

        Args:
            images: a batch of any size, also empty; a dict if the file takes several inputs. Labels are ignored.
            threshold: only for a cascade: images whose first base is at least this confident use only that base. None
                for the threshold in the file, for which its sets and answers were fitted; 2 runs every member on
                every image.
        """
        feed = checked(images, self._specs)
        if not self._doubted and (doubt := range_doubt(feed, self.meta)):
            self._doubted = True
            warnings.warn(doubt, stacklevel=2)
        if threshold is not None:
            if not self.cascade:
                raise ModebridgeError(
                    f"Expected a cascade for a threshold, but '{self.path}' always runs all members; export one with "
                    "--threshold or --average-cost."
                )
            if not threshold >= 0:
                raise ModebridgeError(f"Expected threshold to be at least 0, but got {threshold}; 2 runs all members.")
            feed["threshold"] = np.array(threshold, np.float32)
        # Runtimes handle empty batches differently, so they never see one.
        if not len(feed[next(iter(self._specs))]):
            specs = output_specs(self.meta)
            return Answer(**{name: np.zeros((0, *spec.shape), spec.type) for name, spec in specs.items()})
        # Runtimes raise their own exceptions for tokens out of range or lack of memory.
        with quoting(f"'{self.path}' to run on these inputs", "check their values, or export it again"):
            return Answer(**dict(zip(self.meta["outputs"], self._run(feed), strict=True)))

    def predict_proba(self, images: Arrays | Inputs) -> Array:
        """The calibrated probabilities (B, K)."""
        return self(images).probabilities

    def predict(self, images: Arrays | Inputs) -> Array:
        """The most probable class of each image (B,); -1 for NaN, and where a file with a risk abstains."""
        answer = self(images)
        finite = np.isfinite(answer.probabilities).all(axis=1)
        answered = finite if answer.answered is None else finite & answer.answered
        return np.where(answered, answer.probabilities.argmax(axis=1), -1)

    def predict_sets(self, images: Arrays | Inputs) -> Array:
        """The classes of each image as a mask (B, K) that contains the true one with the coverage of the file."""
        sets = self(images).sets
        if sets is None:
            raise ModebridgeError(
                f"Expected a file with sets, but '{self.path}' has none; call `conformal(valid)` before `export`, "
                "or export a run with --coverage."
            )
        return sets

    def records(self, images: Arrays | Inputs, **options: Any) -> list[dict[str, Any]]:
        """The answer of a call for each image as plain data: class, index, probability, set, and all outputs."""
        self.check_whole()
        answer, records = self(images, **options)._asdict(), []
        tables = {name: table.tolist() for name, table in answer.items() if table is not None}
        for k, row in enumerate(tables["probabilities"]):
            index = row.index(max(row))
            top = {"class": self.meta["classes"][index], "index": index, "probability": row[index]}
            if "sets" in tables:
                top["set"] = list(compress(self.meta["classes"], tables["sets"][k]))
            records.append(top | {name: table[k] for name, table in tables.items() if name != "sets"})
        return records


def _onnx(path: Path, threads: int | None) -> tuple[dict[str, Any], Callable[[dict[str, Array]], list[Array]]]:
    """The metadata of a file, and a function that runs it in ONNX Runtime on the CPU."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    # No messages on stderr: errors are raised as exceptions.
    options.log_severity_level = 4
    # Threads that spin while waiting for the next call take CPU time from other work.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    # All formats so far run with the images alone.
    meta = read_metadata(session.get_modelmeta().custom_metadata_map[KEY], path, oldest=1)
    return meta, lambda feed: list(session.run(meta["outputs"], feed))


def _pt2(path: Path) -> tuple[dict[str, Any], Callable[[Mapping[str, Array]], list[Array]]]:
    """The metadata of a file, and a function that runs its program in torch, which is code that `export` wrote."""
    extra = {KEY: ""}
    with quiet():
        program = torch.export.load(path, extra_files=extra).module()
    meta = read_metadata(extra[KEY], path, oldest=FORMAT)

    @torch.no_grad()
    def run(feed: Mapping[str, Array]) -> list[Array]:
        return [table.numpy() for table in program(*[torch.from_numpy(feed[name]) for name in meta["inputs"]])]

    return meta, run


def check_format(path: Path | str, *names: str) -> Path:
    """The path of a file; refuse a wrong suffix, and .onnx without some packages, by default all that exporting needs.

    ONNX Runtime is first loaded here, with telemetry off: since 1.31, it writes a device id and events to the user's
    cache as soon as it is loaded, and sends them.
    """
    if not isinstance(path, str | Path):
        raise ModebridgeError(
            f"Expected the path of a file, but got {type(path).__name__}; pass the ensemble before it."
        )
    place = Path(path)
    if place.suffix not in (".onnx", ".pt2"):
        hint = "`modebridge export DIR FILE.onnx` makes one" if place.is_dir() else "the suffix is that of its format"
        raise ModebridgeError(f"Expected a file ending in .onnx or .pt2, but got '{place}'; {hint}.")
    names = (names or ("onnx", "onnxscript", "onnxruntime")) if place.suffix == ".onnx" else ()
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with needed(f"{', '.join(names)} for .onnx files", "onnx"):
        for name in names:
            module = import_module(name)
            if name == "onnxruntime":
                # If the caller loaded it before, this is all that can be done.
                module.disable_telemetry_events()
    return place
