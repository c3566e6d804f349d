"""Exported files as others make them: with other metadata, or as an earlier version wrote them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import onnx


def metadata_in(path: Path) -> dict[str, Any]:
    """All that a file says of itself, the plan of a .pt2 archive too."""
    if path.suffix == ".onnx":
        return json.loads({one.key: one.value for one in onnx.load(path).metadata_props}["modebridge"])
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(_extra(archive)))


def with_metadata(source: Path, target: Path, text: str) -> Path:
    """The same file with another text for its metadata, and without a seal."""
    if source.suffix == ".onnx":
        model = onnx.load(source)
        onnx.helper.set_model_props(model, {"modebridge": text})
        onnx.save(model, target)
        return target
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, text if name == _extra(old) else old.read(name))
    return target


def unsealed(source: Path, target: Path) -> Path:
    """The file as a version without seals wrote it."""
    metadata = metadata_in(source)
    del metadata["seal"]
    return with_metadata(source, target, json.dumps(metadata))


def _extra(archive: zipfile.ZipFile) -> str:
    return next(name for name in archive.namelist() if name.endswith("/extra/modebridge"))
