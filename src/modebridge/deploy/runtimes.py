"""Runtimes for exported files: ONNX Runtime, and torch for .pt2 archives; each checks the file it loads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from modebridge.batches import size_of
from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.deploy.elastic_answer import Answer, staged, uncertainty
from modebridge.deploy.inputs import Array, Spec, output_specs, specs_in
from modebridge.deploy.metadata import KEY, read_metadata
from modebridge.deploy.torch_exporters import in_order
from modebridge.ensembles import Mean, average, scale
from modebridge.errors import ModebridgeError, first_line

__all__ = ["OnnxFile", "PackageFile", "needs_onnx"]

KINDS = {"float32": "tensor(float)", "int64": "tensor(int64)", "int32": "tensor(int32)", "bool": "tensor(bool)"}
"""Names of types in ONNX Runtime."""


class OnnxFile:
    """An ONNX Runtime session on the CPU.

    Args:
        path: path of the file.
        threads: threads per call; None for the runtime's default.
        sealed: whether the file has a valid seal.
    """

    def __init__(self, path: Path, threads: int | None, sealed: bool) -> None:
        needs_onnx("onnxruntime")
        import onnxruntime as ort

        options = ort.SessionOptions()
        # No messages on stderr: errors are raised as exceptions.
        options.log_severity_level = 4
        # Threads that spin while waiting for the next call take CPU time from other work.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            text = self.session.get_modelmeta().custom_metadata_map.get(KEY)
            # An input with a default is an "overridable initializer".
            inputs = [*self.session.get_inputs(), *self.session.get_overridable_initializers()]
            graph = {v.name: (v.type, v.shape[1:]) for v in (*inputs, *self.session.get_outputs())}
        except Exception as error:
            # ONNX Runtime has its own exception class for each kind of bad file, and names may not be UTF-8.
            raise ModebridgeError(
                f"Expected '{path}' to be an ONNX file, but got '{first_line(error)}'; download it again."
            ) from error
        self.meta = read_metadata(text, path, sealed=sealed)
        _check_graph(graph, self.meta, path)

    def run(self, inputs: Mapping[str, Array], bridges: int, threshold: float | None) -> Mapping[str, Array]:
        """The outputs by name; a threshold of None uses the one in the file."""
        feed = dict(inputs)
        if self.meta["elastic"]:
            feed["bridges"] = np.array(bridges, np.int64)
            if threshold is not None:
                feed["threshold"] = np.array(threshold, np.float32)
        names = self.meta["outputs"]
        return dict(zip(names, self.session.run(names, feed), strict=True))


def _check_graph(graph: Mapping[str, tuple[str, Any]], metadata: Mapping[str, Any], path: Path) -> None:
    """Refuse a graph whose inputs or outputs, by type and shape without the batch axis, do not match the metadata."""
    scalars = {"bridges": Spec((), "int64"), "threshold": Spec((), "float32")} if metadata["elastic"] else {}
    specs = {**specs_in(metadata), **scalars, **output_specs(metadata)}
    wanted = {name: (KINDS[spec.type], list(spec.shape)) for name, spec in specs.items()}
    for name in {**wanted, **graph}:
        if wanted.get(name) != graph.get(name):
            declared, actual = ("{} {}".format(*where[name]) if name in where else "none" for where in (wanted, graph))
            raise ModebridgeError(
                f"Expected '{name}' in the graph of '{path}' to be {declared}, as in its metadata, but got {actual}; "
                "export it again."
            )


def needs_onnx(*names: str) -> None:
    """Check that packages are installed and load, by default all that exporting needs.

    ONNX Runtime is first loaded here, with telemetry off: since 1.31, it writes a device id and events to the user's
    cache as soon as it is loaded, and sends them.
    """
    names = names or ("onnx", "onnxscript", "onnxruntime")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        # Find all packages before loading the first, which takes seconds.
        missing = [name for name in names if find_spec(name) is None]
        if missing:
            raise ImportError(f"no {', '.join(missing)}")
        for name in names:
            module = import_module(name)
            if name == "onnxruntime":
                # If the caller loaded it before, this is all that can be done.
                module.disable_telemetry_events()
    except ImportError as error:
        raise ModebridgeError(
            f"Expected {', '.join(names)} for .onnx files, but got '{error}'; pip install 'modebridge[onnx]'."
        ) from error


class PackageFile:
    """The programs of a .pt2 archive; only those needed run.

    Args:
        path: path of the file.
        sealed: whether the file has a valid seal.
    """

    def __init__(self, path: Path, sealed: bool) -> None:
        try:
            from torch.export.pt2_archive._package import PT2ArchiveReader, load_pt2

            with PT2ArchiveReader(str(path)) as archive:
                entry = f"extra/{KEY}"
                text = archive.read_string(entry) if entry in archive.get_file_names() else None
            # Checked before the programs are loaded, since they are code: files of other tools are never loaded.
            self.meta = read_metadata(text, path, sealed=sealed)
            with warnings.catch_warnings(action="ignore"):
                archived = load_pt2(str(path))
                programs: dict[str, Any] = {name: p.module() for name, p in archived.exported_programs.items()}
        except ModebridgeError:
            raise
        except Exception as error:
            raise ModebridgeError(
                f"Expected '{path}' to be a .pt2 archive, but got '{first_line(error)}'; download it again."
            ) from error
        self.programs: dict[str, Any] = programs | dict(archived.aoti_runners)
        self.plan: dict[str, Any] = self.meta.pop("plan", {})
        # Older files do not have it; they use the mean of probabilities.
        self._mean: Mean = self.meta.get("mean", "probability")
        parts = [f"base{k}" for k in range(self.meta["bases"])] + [f"bridge{j}" for j in range(self.meta["bridges"])]
        wanted = ["model"] if not self.meta["elastic"] else parts if self.plan else ["plan"]
        missing = [name for name in wanted if name not in self.programs]
        if missing:
            raise ModebridgeError(
                f"Expected '{path}' to hold what its metadata lists, but '{missing[0]}' is missing; export it again."
            )

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Array], bridges: int, threshold: float | None) -> Mapping[str, Array]:
        """The outputs by name; a threshold of None uses the one in the file."""
        batch = {name: torch.from_numpy(table) for name, table in inputs.items()}
        if not self.meta["elastic"]:
            members = self.programs["model"](*batch.values())
            used = torch.full((size_of(batch),), len(members))
            answer = scale(average(members, self._mean), self.meta["temperature"])
            return self._tables(Answer(answer, members.transpose(0, 1), *uncertainty(answer, members, used), used))
        # Contiguous, as when the programs were exported: compiled programs do not check the memory layout.
        reads = self.plan["reads"]
        return self._tables(
            staged(
                batch,
                lambda k, some: self.programs[f"base{k}"](*in_order(some)),
                lambda features: [
                    self.programs[f"bridge{j}"](*[features[k, tap].contiguous() for k, tap in reads[j]])
                    for j in range(bridges)
                ],
                taps=self.plan["taps"],
                members=len(self.meta["members"]),
                temperatures=Temperatures(self.meta["first_temperature"], tuple(self.meta["temperatures"])),
                count=bridges,
                threshold=self.meta["threshold"] if threshold is None else threshold,
                mean=self._mean,
            )
        )

    def _tables(self, answer: Answer[Tensor]) -> dict[str, Array]:
        tables = answer._asdict()
        return {name: tables[name].numpy() for name in self.meta["outputs"]}
