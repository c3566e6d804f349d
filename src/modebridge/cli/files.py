"""The verbs `export`, `predict` and `serve`; what loads slowly is imported when a verb runs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from modebridge.cli.terminal import OPTIONS, Screen, here, listed, note, program, say, warn
from modebridge.errors import ModebridgeError, install, needed, plural

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
BATCH = 64
MEANING = {
    "entropy": "entropy: how unsure the prediction is, in nats.",
    "mutual_information": "mutual: how much the members disagree, in nats.",
    "used": "members: how many of them ran.",
}
"""Of the columns of `predict`."""
DIGIT = (1, 8, 8)
"""The shape of the demo's images."""


def path(text: str) -> Path:
    """Parse a path; an empty one is refused, since it would mean the current folder."""
    if not text:
        raise typer.BadParameter("Expected a path, but got an empty string; give a path, or leave it out.")
    return Path(text)


Folder = Annotated[Path, typer.Argument(parser=path, help="A run folder.", metavar="DIR")]
Exported = Annotated[Path, typer.Argument(parser=path, metavar="FILE", help="A file written by `modebridge export`.")]
Members = Annotated[
    str | None,
    typer.Option(
        help="Members, e.g. `mode-0,heads-0-others-small`; the page of a run lists them. Default: what `advise` "
        "recommends for a budget of 1.2.",
        metavar="NAMES",
    ),
]


def export(
    folder: Folder,
    file: Annotated[
        Path, typer.Argument(parser=path, metavar="FILE", help="File to write: .onnx, or .pt2 for torch.export.")
    ],
    members: Members = None,
    average_cost: Annotated[
        float | None,
        typer.Option(
            help="Write a cascade of this average cost, in multiples of one network: confident images use only the "
            "first network.",
            metavar="X",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Write a cascade with this threshold: images at least this confident use only the first network.",
            metavar="T",
        ),
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="Add sets with the true class, in this share of cases.", metavar="P")
    ] = None,
    risk: Annotated[
        float | None, typer.Option(help="Add whether to answer: at most this share of answers is wrong.", metavar="P")
    ] = None,
) -> None:
    """Export networks, heads or a distilled network of a run folder as one file, verified before it is saved.

    ```sh
    modebridge export runs/digits fast.onnx
    modebridge export runs/digits f.onnx --members mode-0,heads-0-others-small
    modebridge export runs/digits f.onnx --members mode-0,mode-1 --average-cost 1.2
    modebridge export runs/digits fast.onnx --coverage 0.9 --risk 0.02
    ```
    """
    from modebridge.cli.show import in_words, naming_damage
    from modebridge.deploy import export as export_ensemble
    from modebridge.deploy.deployed import check_format
    from modebridge.deploy.inputs import pixel_doubts
    from modebridge.runs import ensemble_of, existing
    from modebridge.runs.plan import doubts

    # First, because reading the members takes long.
    check_format(file)
    if threshold is not None and average_cost is not None:
        raise ModebridgeError("Expected --threshold or --average-cost, but got both; give one.")
    if threshold is not None and not 0 <= threshold <= 1:
        raise ModebridgeError(f"Expected --threshold to be a probability, from 0 to 1, but got {threshold}; change it.")
    run, names, replaced = existing(folder), listed("--members", members), file.is_file()
    note("Reading members and fitting temperatures ...")
    with naming_damage(run):
        options = {"average_cost": average_cost, "threshold": threshold, "coverage": coverage, "risk": risk}
        ensemble, notes = ensemble_of(run, names, **options)
    warn(*doubts(run))
    chosen = "" if names else ", as `advise` recommends (--members chooses others),"
    words = in_words(notes["names"], notes["setting"].recipe)
    say(f"Exporting {words}{chosen} and comparing the file with the library ...")
    what = {name: notes[name] for name in ("example", "threshold", "classes")}
    info = {name: notes[name] for name in ("names", "scores", "about", "unit", "pixels")}
    done = export_ensemble(ensemble, file, **what, valid=notes["fitted"], info=info)
    meta, scores, console = done.meta, done.meta["scores"], Screen()
    if console.print_data({"file": str(done.path), **meta}):
        return
    place = f"{done.path}{' (replaced)' if replaced else ''}"
    console.print(f"File: {place}, {done.path.stat().st_size / 1e6:.2f} MB", soft_wrap=True)
    console.print(f"Members: {' + '.join(meta['members'])}; cost x{meta['cost']['relative_flops']:.3f} of one network.")
    average = f", cost x{scores['relative_flops']:.3f} on average" if done.cascade else ""
    console.print(
        f"Test split: accuracy {100 * scores['accuracy']:.2f} %, NLL {scores['nll']:.4f} at temperature "
        f"{meta['temperature']:.3f}{average}."
    )
    if done.cascade:
        console.print(
            f"Threshold: {meta['threshold']:.4f}; images above it use only {meta['members'][0]}, the other "
            f"{100 * scores['deferred_share']:.1f} % of the test images use all members."
        )
    if (rule := meta["sets"]) is not None:
        console.print(f"Sets: coverage {rule['coverage']:g}, fitted on {rule['images']:,} validation images.")
    if (rule := meta["answers"]) is not None:
        console.print(
            f"Answers: {rule['answered']:.1%} of {rule['images']:,} validation images, from a probability of "
            f"{rule['threshold']:.4f}; at most {rule['risk']:g} wrong, with {rule['confidence']:.0%} confidence."
        )
    images = plural(meta["parity"]["images"], "image")
    console.print(f"Parity: the file's probabilities are within {done.parity:.1e} of the library's on {images}.")
    if pixel_doubts(meta["pixels"]):  # said when it was exported
        return
    shape = meta["image"] or ()
    use = f"classify images{', or --examples' if _examples(done.path, shape) else ''}"
    console.next_steps(
        (f"{program()} predict {here(done.path)} IMAGES", use) if len(shape) == 3 else None,
        (f"{program()} serve {here(done.path)}", f"answer over HTTP{_after('serve', 'starlette', 'uvicorn')}"),
    )


def _after(extra: str, *modules: str) -> str:
    """What to install first, if some modules of an extra are not installed."""
    return "" if all(map(find_spec, modules)) else f", after {install(extra)}"


def predict(
    file: Exported,
    images: Annotated[
        list[Path] | None, typer.Argument(parser=path, metavar="IMAGES", help="Image files, or folders of images.")
    ] = None,
    examples: Annotated[
        bool,
        typer.Option(
            "--examples",
            help="Use the images in the folder examples/ beside the file, or for a file of the demo three digits.",
        ),
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="For a cascade: images at least this confident use only the first network; 2 runs all members on "
            "every image.",
            metavar="T",
        ),
    ] = None,
) -> None:
    """Classify images with an exported file. Unreadable images are reported and skipped (exit code 1).

    Images are cropped in the middle to the proportions that the file takes, and resized.

    With --json, prints one line per image.

    ```sh
    modebridge predict fast.onnx cat.png holiday/
    modebridge predict fast.onnx --examples
    ```
    """
    import numpy as np

    from modebridge.deploy import DeployedEnsemble
    from modebridge.deploy.inputs import from_path, pixel_doubts
    from modebridge.report import plain_table

    if not images and not examples:
        raise ModebridgeError("Expected images, but got none; give files or folders, or add --examples.")
    deployed, console = DeployedEnsemble.load(file), Screen()
    shape = deployed.image_shape()
    warn(*pixel_doubts(deployed.meta["pixels"]))
    paths = [*(images or []), *(example_images(file, shape) if examples else [])]
    # Check the threshold before reading the first image.
    deployed(np.zeros((0, *shape), np.float32), threshold=threshold)
    columns = {"probability": "prob.", "sets": "set", "answered": "answered", "entropy": "entropy"}
    columns |= {"mutual_information": "mutual", "used": "members"}
    alone = ("mutual_information", "used") if len(deployed.meta["members"]) == 1 else ()
    shown = [name for name in columns if name in (*deployed.meta["outputs"], "probability") and name not in alone]
    table = plain_table("image", "class", *(columns[name] for name in shown), text=(0, 1))
    files = [file for path in paths for file in _image_files(path)]
    unique, bad = len({file.name for file in files}) == len(files), 0
    for start in range(0, len(files), BATCH):
        batch = []
        for image in files[start : start + BATCH]:
            try:
                batch.append((image, from_path(image, shape)))
            except ModebridgeError as error:
                bad += 1
                say(f"{image}: {error}", fold=False)  # a program may read it
        pixels = np.array([one for _, one in batch], np.float32).reshape(-1, *shape)
        for (image, _), record in zip(batch, deployed.records(pixels, threshold=threshold), strict=True):
            if OPTIONS.json:
                console.print(json.dumps({"file": str(image), **record}), soft_wrap=True)
            texts = {"used": str(record["used"]), "sets": ", ".join(record.get("set", ()))}
            texts["answered"] = "yes" if record.get("answered") else "no"
            texts |= {"mutual_information": "-"} if record["used"] == 1 else {}
            cells = [texts[name] if name in texts else f"{record[name]:.4f}" for name in shown]
            table.add_row(image.name if unique else here(image), record["class"], *cells)
    if table.row_count and not OPTIONS.json:
        console.print(table)
        console.print(" ".join(MEANING[name] for name in shown if name in MEANING), style="dim")
    if bad:
        say(f"Skipped {bad} of {plural(len(files), 'image')} that could not be read.")
        raise typer.Exit(1)


def example_images(file: Path, shape: Sequence[int]) -> list[Path]:
    """The images beside a file, or for a file of the demo the package's digits; each is named after its class."""
    found = _examples(file, shape)
    if not found:
        sizes = " x ".join(map(str, shape))
        raise ModebridgeError(
            f"Expected example images for '{file}', but there is no folder examples/ beside it, and the package only "
            f"has digits of 1 x 8 x 8, while the file takes images of {sizes}; give files or folders."
        )
    return found


def _examples(file: Path, shape: Sequence[int]) -> list[Path]:
    import modebridge.data

    digits = Path(modebridge.data.__file__).parent / "examples"
    folders = [file.parent / "examples", *([digits] if tuple(shape) == DIGIT else [])]
    return next(filter(None, (sorted(folder.glob("*.png")) for folder in folders)), [])


def _image_files(path: Path) -> list[Path]:
    """A file itself, or the images in a folder; a folder without any stands for itself."""
    walk = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    return sorted(file for file in walk if file.suffix.lower() in ENDINGS) or [path]


def serve(
    file: Exported,
    host: Annotated[
        str,
        typer.Option(help="Address: 127.0.0.1 for this machine only, 0.0.0.0 for all interfaces.", metavar="ADDRESS"),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", metavar="N", min=1, max=65535)] = 8000,
    max_mb: Annotated[float, typer.Option(help="Maximum request size, in MB.", metavar="MB")] = 10.0,
) -> None:
    """Serve an exported file over HTTP: POST an image to /predict; see also /health and /info.

    ```sh
    modebridge serve fast.onnx
    curl --data-binary @cat.png http://127.0.0.1:8000/predict
    ```
    """
    with needed("Starlette and uvicorn for serving", "serve"):
        from modebridge.deploy.serve import ServeConfig, serve as serve_file
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    serve_file(
        file,
        ServeConfig(host, port, max_mb=max_mb),
        ready=lambda: say(f"Serving {file} at {address}/predict (also /health, /info); press Ctrl-C to stop."),
    )
