"""The verbs `export` and `predict`."""

from __future__ import annotations

import json
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.table import Table

import modebridge.data
from modebridge.cli.show_commands import existing, naming_damage, plain_table
from modebridge.cli.terminal import Screen, note, put, say
from modebridge.deploy import Answer, Deployed, Exported, UncheckedFileWarning, export
from modebridge.deploy.export import check_format
from modebridge.deploy.image_decoding import from_path
from modebridge.ensembles import check_mean
from modebridge.errors import ModebridgeError, plural
from modebridge.runs import ensemble_of, find_recipe_of, some_images

__all__ = ["examples", "export_run", "predict_files"]

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
BATCH = 64
EXPECTED = "Expected a file or a folder"


def export_run(
    path: Path,
    file: Path,
    *,
    members: Sequence[str],
    per_member: bool,
    plain: bool,
    grouped: str,
    average_cost: float | None,
    threshold: float | None,
    mean: str,
    int8: bool,
    data: Path | None,
    aot: bool,
) -> None:
    """Export members of a run folder as one file and describe it."""
    if grouped not in ("auto", "yes", "no"):
        raise ModebridgeError(f"Expected --grouped to be auto, yes or no, but got '{grouped}'; choose one.")
    if plain and (average_cost is not None or threshold is not None):
        name = "--average-cost" if average_cost is not None else "--threshold"
        raise ModebridgeError(f"Expected {name} without --plain, but got both; leave one out.")
    if average_cost is not None and threshold is not None:
        raise ModebridgeError("Expected --average-cost or --threshold, but got both; leave one out.")
    kind = check_mean(mean)
    # First, because reading the members takes long.
    check_format(file, int8=int8, aot=aot)
    folder = existing(path)
    note("Reading members and fitting temperatures ...")
    with naming_damage(folder):
        ensemble, notes = ensemble_of(
            folder, members or None, average_cost=average_cost, threshold=threshold, mean=kind, cascades=not plain
        )
        recipe, seed = find_recipe_of(folder)
    calibration, labelled = some_images(recipe, data, seed) if int8 else (None, None)
    say(f"Exporting {' + '.join(notes['names'])} and comparing the file with the library ...")
    done = export(
        ensemble,
        file,
        notes.pop("example"),
        **notes,
        members=per_member,
        elastic=not plain,
        check=labelled,
        int8=calibration,
        grouped="auto" if grouped == "auto" else grouped == "yes",
        aot=aot,
    )
    _describe(done)


def _describe(done: Exported) -> None:
    meta = done.meta
    console = Screen()
    console.print(f"File: {done.path}, {done.bytes / 1e6:.2f} MB, {done.format}, {meta['precision']}", soft_wrap=True)
    elastic = meta["elastic"] and meta["bridges"]
    ways = f"elastic, 0 to {plural(meta['bridges'], 'bridge')}" if elastic else "all members, always"
    flops = meta["cost"]["relative_flops"]
    console.print(f"Members: {' + '.join(meta['members'])} ({ways}); x{flops:.3f} FLOPs of one network.")
    scores = meta["scores"]
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
    if meta["mean"] != "probability":
        console.print(f"Mean: {meta['mean']}.")
    parity = meta["parity"]
    images = plural(parity["images"], "image")
    console.print(f"Parity: the file's probabilities are within {done.parity:.1e} of the library's on {images}.")
    if done.int8 is not None:
        console.print(f"{done.int8.sentence}")


def predict_files(
    file: Path,
    images: Sequence[Path],
    *,
    bridges: int | None,
    threshold: float | None,
    megapixels: float,
    as_json: bool,
) -> None:
    """Classify image files with an exported file; unreadable ones are reported on stderr and skipped."""
    if not images:
        raise ModebridgeError(
            "Expected images, but got none; give files or folders, or add --examples for the three digits that ship "
            "with the package."
        )
    deployed = _opened(file)
    shape, classes = deployed.image_shape(), deployed.meta["classes"]
    bad = 0
    rows: list[dict[str, Any]] = []
    waiting: list[tuple[Path, Any]] = []

    def predict() -> None:
        if waiting:
            answer = deployed(np.stack([pixels for _, pixels in waiting]), bridges=bridges, threshold=threshold)
            for k, (path, _) in enumerate(waiting):
                record = _record(path, answer, k, classes)
                rows.append(record)
                if as_json:
                    put(json.dumps(record))
            waiting.clear()

    # Check the options before reading the first image, not at the first full batch.
    deployed(np.zeros((0, *shape), np.float32), bridges=bridges, threshold=threshold)
    for path, problem in _image_files(images):
        if problem is None:
            try:
                waiting.append((path, from_path(path, shape, max_megapixels=megapixels)))
            except ModebridgeError as error:
                problem = str(error)
            except OSError as error:
                problem = f"Expected a readable file, but got '{error.strerror}'; check its permissions."
            except ImportError as error:
                raise ModebridgeError(
                    "Expected Pillow to read image files, but it is not installed; pip install 'modebridge[images]'."
                ) from error
        if problem is not None:
            bad += 1
            # Not wrapped: a program may read it.
            say(f"{path}: {problem}", fold=False)
        if len(waiting) == BATCH:
            predict()
    predict()
    if not as_json and rows:
        Screen().print(_table(rows))
    if bad:
        say(f"Skipped {bad} of {plural(bad + len(rows), 'image')} that could not be read.")
        raise typer.Exit(1)


def _opened(file: Path) -> Deployed:
    """Load the file; warn in one line if it is too old to be checked."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UncheckedFileWarning)
        deployed = Deployed.load(file)
    for warning in caught:
        say(f"Note: {warning.message}", style="yellow")
    return deployed


def examples() -> list[Path]:
    """The digits that ship with the package, each named after its class."""
    return sorted((Path(modebridge.data.__file__).parent / "examples").glob("*.png"))


def _image_files(paths: Sequence[Path]) -> Iterator[tuple[Path, str | None]]:
    """Every file, also those in folders, with a message if it cannot be read."""
    for path in paths:
        problem = _problem(path)
        if problem is not None or not path.is_dir():
            yield path, problem
            continue
        unreadable: list[OSError] = []
        inside = [
            Path(folder) / name
            for folder, _, names in os.walk(path, onerror=unreadable.append)
            for name in names
            if Path(name).suffix.lower() in ENDINGS
        ]
        for error in unreadable:
            yield Path(error.filename), f"Expected a folder, but got '{error.strerror}'; check its permissions."
        yield from ((file, _problem(file)) for file in sorted(inside))
        if not inside and not unreadable:
            yield path, "Expected images in this folder, but it has none; give the files by name."


def _problem(path: Path) -> str | None:
    """Why a path is neither a regular file nor a folder; None if it is one."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return f"{EXPECTED}, but it does not exist; check the name."
    except (OSError, ValueError) as error:
        return f"{EXPECTED}, but got '{getattr(error, 'strerror', error)}'; check the name and its permissions."
    # Reading a pipe or a device might never end.
    return None if stat.S_ISREG(kind) or stat.S_ISDIR(kind) else f"{EXPECTED}, but it is neither; check the name."


def _record(path: Path, answer: Answer[Any], k: int, classes: Sequence[str]) -> dict[str, Any]:
    table = answer.probabilities[k]
    top = int(table.argmax())
    record: dict[str, Any] = {
        "file": str(path),
        "class": classes[top],
        "probability": float(table[top]),
        "probabilities": [float(one) for one in table],
        "used": int(answer.used[k]),
    }
    for name in ("entropy", "mutual_information"):
        values = getattr(answer, name)
        if values is not None:
            record[name] = float(values[k])
    if answer.members is not None:
        record["members"] = answer.members[k].tolist()
    return record


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    columns = {"probability": "prob.", "entropy": "entropy", "mutual_information": "mutual", "used": "members"}
    shown = [key for key in columns if key in rows[0]]
    table = plain_table("image", "class", *(columns[key] for key in shown), text=(0, 1))
    for row in rows:
        cells = [str(row[key]) if key == "used" else f"{row[key]:.4f}" for key in shown]
        table.add_row(row["file"], row["class"], *cells)
    return table
