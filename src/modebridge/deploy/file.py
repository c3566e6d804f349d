"""A deployed file, read and asked: the same call whatever the format."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from modebridge.batches import size_of
from modebridge.deploy.about import FORMAT, KEY
from modebridge.deploy.answer import Answer, check_bridges, staged, uncertainty
from modebridge.deploy.exporting import in_order
from modebridge.deploy.inputs import Array, Arrays, checked, specs_in
from modebridge.deploy.onnx import needs_onnx
from modebridge.deploy.temperatures import Temperatures
from modebridge.ensembles import scale
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs

__all__ = ["Deployed"]


class _Runtime(Protocol):
    """What runs a file."""

    def run(self, inputs: Mapping[str, Array], bridges: int, threshold: float | None) -> Mapping[str, Array]:
        """The outputs by name; a threshold of None is the file's own."""
        ...


class Deployed:
    """An exported ensemble: images (or tokens, by name) in, an answer out. Several threads may ask it.

    >>> # file = Deployed.load("fast.onnx"); file(images).probabilities
    """

    def __init__(self, runtime: _Runtime, meta: dict[str, Any], path: Path) -> None:
        self._runtime = runtime
        self.meta = meta
        self.path = path
        self._specs = specs_in(meta)

    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a file that takes images; one that takes anything else is refused."""
        shape = self.meta["image"]
        if shape is None or len(shape) != 3:
            takes = ", ".join(f"{name} {one.shape} of {one.type}" for name, one in self._specs.items())
            raise ModebridgeError(
                f"Expected a file that takes images (C, H, W), but '{self.path.name}' takes {takes}; "
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
        if not place.is_file():
            raise ModebridgeError(f"Expected '{place}' to be a file, but there is none; make it: modebridge export.")
        if place.suffix == ".onnx":
            runtime: Any = _Onnx(place, threads)
        elif place.suffix == ".pt2":
            runtime = _Package(place)
        else:
            raise ModebridgeError(f"Expected a file ending in .onnx or .pt2, but got '{place.name}'.")
        meta: dict[str, Any] = runtime.meta
        if not meta:
            raise ModebridgeError(
                f"Expected '{place}' to be written by modebridge, but it has no metadata of it; export it again."
            )
        if meta["format"] > FORMAT:
            raise ModebridgeError(
                f"Expected a file of format {FORMAT} or older, but got {meta['format']}; install a newer modebridge."
            )
        return cls(runtime, meta, place)

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
        count = check_bridges(bridges, self.meta["bridges"])
        # Runtimes differ in what they do with a batch of none: its answer is known.
        found = self._runtime.run(tables, count, threshold) if len(next(iter(tables.values()))) else self._nothing()
        return Answer(
            found["probabilities"],
            found.get("members"),
            found.get("entropy"),
            found.get("mutual_information"),
            found["used"],
        )

    def _nothing(self) -> dict[str, Array]:
        classes, members = len(self.meta["classes"]), len(self.meta["members"])
        shapes = {"probabilities": (0, classes), "members": (0, members, classes)}
        return {
            name: np.zeros(shapes.get(name, (0,)), np.int64 if name == "used" else np.float32)
            for name in self.meta["outputs"]
        }


class _Onnx:
    """A session of ONNX Runtime on the CPU."""

    def __init__(self, path: Path, threads: int | None) -> None:
        needs_onnx("onnxruntime")
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Threads that wait for the next call by spinning take the cores from whatever runs between two calls.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            # ONNX Runtime has an exception class of its own for every kind of bad file.
            raise ModebridgeError(
                f"Expected '{path}' to be an ONNX file, but got '{str(error).splitlines()[0]}'; get it again."
            ) from error
        self.meta: dict[str, Any] = json.loads(self.session.get_modelmeta().custom_metadata_map.get(KEY, "{}"))
        self._names = [output.name for output in self.session.get_outputs()]

    def run(self, inputs: Mapping[str, Array], bridges: int, threshold: float | None) -> Mapping[str, Array]:
        feed = dict(inputs)
        if self.meta["elastic"]:
            feed["bridges"] = np.array(bridges, np.int64)
            if threshold is not None:
                feed["threshold"] = np.array(threshold, np.float32)
        return dict(zip(self._names, self.session.run(None, feed), strict=True))


class _Package:
    """The programs of a .pt2 archive, run as far as they are needed."""

    def __init__(self, path: Path) -> None:
        try:
            from torch.export.pt2_archive._package import load_pt2

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = load_pt2(str(path))
        except Exception as error:
            raise ModebridgeError(
                f"Expected '{path}' to be a .pt2 archive, but got '{str(error).splitlines()[0]}'; get it again."
            ) from error
        self.meta: dict[str, Any] = json.loads(found.extra_files.get(KEY, "{}"))
        programs: dict[str, Any] = {name: program.module() for name, program in found.exported_programs.items()}
        self.programs: dict[str, Any] = programs | dict(found.aoti_runners)
        self.plan: dict[str, Any] = self.meta.pop("plan", {})

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Array], bridges: int, threshold: float | None) -> Mapping[str, Array]:
        batch = {name: torch.from_numpy(table) for name, table in inputs.items()}
        if not self.meta["elastic"]:
            members = self.programs["model"](*batch.values())
            used = torch.full((size_of(batch),), len(members))
            answer = scale(members.mean(dim=0), self.meta["temperature"])
            return self._tables(Answer(answer, members.transpose(0, 1), *uncertainty(answer, members, used), used))
        # In plain memory order, in which the programs were made: a compiled one takes it on trust.
        reads = self.plan["reads"]
        return self._tables(
            staged(
                batch,
                lambda k, some: self.programs[f"base{k}"](*in_order(some)),
                lambda found: [
                    self.programs[f"bridge{j}"](*[found[k, tap].contiguous() for k, tap in reads[j]])
                    for j in range(bridges)
                ],
                taps=self.plan["taps"],
                members=len(self.meta["members"]),
                temperatures=Temperatures(self.meta["first_temperature"], tuple(self.meta["temperatures"])),
                count=bridges,
                threshold=self.meta["threshold"] if threshold is None else threshold,
            )
        )

    def _tables(self, answer: Answer[Tensor]) -> dict[str, Array]:
        found = answer._asdict()
        return {name: found[name].numpy() for name in self.meta["outputs"]}
