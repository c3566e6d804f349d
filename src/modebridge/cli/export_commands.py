"""The verbs `export` and `predict`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer

import modebridge.data
from modebridge.cli.show import existing, naming_damage, plain_table
from modebridge.cli.terminal import Screen, note, put, say
from modebridge.deploy import Answer, DeployedEnsemble, export
from modebridge.deploy.export import check_format
from modebridge.deploy.images import from_path
from modebridge.errors import ModebridgeError, plural
from modebridge.runs import ensemble_of

__all__ = ["examples", "export_run", "predict_files"]

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
BATCH = 64


def export_run(
    path: Path,
    file: Path,
    *,
    members: Sequence[str],
    per_member: bool,
    plain: bool,
    average_cost: float | None,
    threshold: float | None,
) -> None:
    """Export members of a run folder as one file and describe it."""
    # First, because reading the members takes long.
    check_format(file)
    plain = plain or file.suffix != ".onnx"
    given = [f"--{name}" for name, value in (("average-cost", average_cost), ("threshold", threshold)) if value]
    if len(given) > 1 or (plain and given):
        raise ModebridgeError(
            f"Expected --average-cost or --threshold, for an .onnx file without --plain, but got {' and '.join(given)} "
            f"for '{file}'; leave out what does not apply."
        )
    folder = existing(path)
    note("Reading members and fitting temperatures ...")
    with naming_damage(folder):
        ensemble, notes = ensemble_of(
            folder, members or None, average_cost=average_cost, threshold=threshold, cascades=not plain
        )
    say(f"Exporting {' + '.join(notes['names'])} and comparing the file with the library ...")
    extra = ("members", "entropy", "mutual_information") if per_member else ("entropy", "mutual_information")
    done = export(
        ensemble,
        file,
        notes["example"],
        valid=notes["temperatures"],
        threshold=notes["threshold"],
        plain=plain,
        outputs=extra,
        classes=notes["classes"],
        info={name: notes[name] for name in ("names", "scores", "about", "unit")},
    )
    _describe(done)


def _describe(done: DeployedEnsemble) -> None:
    meta, scores, console = done.meta, done.meta["scores"], Screen()
    console.print(f"File: {done.path}, {done.path.stat().st_size / 1e6:.2f} MB", soft_wrap=True)
    elastic = meta["elastic"] and meta["bridges"]
    ways = f"elastic, 0 to {plural(meta['bridges'], 'bridge')}" if elastic else "all members, always"
    flops = meta["cost"]["relative_flops"]
    console.print(f"Members: {' + '.join(meta['members'])} ({ways}); x{flops:.3f} FLOPs of one network.")
    average = f", x{scores['relative_flops']:.3f} FLOPs on average" if meta["threshold"] is not None else ""
    console.print(
        f"Test split: accuracy {100 * scores['accuracy']:.2f} %, NLL {scores['nll']:.4f} at temperature "
        f"{meta['temperature']:.3f}{average}."
    )
    if meta["threshold"] is not None:
        console.print(
            f"Threshold: {meta['threshold']:.4f}; images above it use only {meta['members'][0]}, the other "
            f"{100 * scores['deferred_share']:.1f} % of the test images use all members."
        )
    images = plural(meta["parity"]["images"], "image")
    console.print(f"Parity: the file's probabilities are within {done.parity:.1e} of the library's on {images}.")


def predict_files(
    file: Path, images: Sequence[Path], *, bridges: int | None, threshold: float | None, as_json: bool
) -> None:
    """Classify image files with an exported file; unreadable ones are reported on stderr and skipped."""
    if not images:
        raise ModebridgeError(
            "Expected images, but got none; give files or folders, or add --examples for the three digits that ship "
            "with the package."
        )
    deployed = DeployedEnsemble.load(file)
    shape, classes = deployed.image_shape(), deployed.meta["classes"]
    bad = 0
    rows: list[dict[str, Any]] = []
    waiting: list[tuple[Path, Any]] = []

    def predict() -> None:
        if waiting:
            answer = deployed(np.stack([pixels for _, pixels in waiting]), bridges=bridges, threshold=threshold)
            for k, (path, _) in enumerate(waiting):
                rows.append(_record(path, answer, k, classes))
                if as_json:
                    put(json.dumps(rows[-1]))
            waiting.clear()

    # Check the options before reading the first image, not at the first full batch.
    deployed(np.zeros((0, *shape), np.float32), bridges=bridges, threshold=threshold)
    for path in _image_files(images):
        try:
            waiting.append((path, from_path(path, shape)))
        except (ModebridgeError, OSError, ValueError) as error:
            bad += 1
            why = error if isinstance(error, ModebridgeError) else getattr(error, "strerror", error)
            sentence = str(why) if why is error else f"Expected a readable file, but got '{why}'; check it."
            # Not wrapped: a program may read it.
            say(f"{path}: {sentence}", fold=False)
        if len(waiting) == BATCH:
            predict()
    predict()
    if not as_json and rows:
        columns = {"probability": "prob.", "entropy": "entropy", "mutual_information": "mutual", "used": "members"}
        shown = [key for key in columns if key in rows[0]]
        table = plain_table("image", "class", *(columns[key] for key in shown), text=(0, 1))
        for row in rows:
            cells = [str(row[key]) if key == "used" else f"{row[key]:.4f}" for key in shown]
            table.add_row(row["file"], row["class"], *cells)
        Screen().print(table)
    if bad:
        say(f"Skipped {bad} of {plural(bad + len(rows), 'image')} that could not be read.")
        raise typer.Exit(1)


def examples() -> list[Path]:
    """The digits that ship with the package, each named after its class."""
    return sorted((Path(modebridge.data.__file__).parent / "examples").glob("*.png"))


def _image_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Every file, also those in folders; a folder without images, or that cannot be read, stands for itself."""
    for path in paths:
        inside = [
            Path(folder) / name
            for folder, _, names in os.walk(path)
            for name in names
            if Path(name).suffix.lower() in ENDINGS
        ]
        yield from sorted(inside) or [path]


def _record(path: Path, answer: Answer, k: int, classes: Sequence[str]) -> dict[str, Any]:
    table = answer.probabilities[k]
    top = int(table.argmax())
    record = {"file": str(path), "class": classes[top], "probability": float(table[top])}
    others = {name: values[k].tolist() for name, values in answer._asdict().items() if values is not None}
    return record | others
