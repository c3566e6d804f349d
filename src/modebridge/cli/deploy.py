"""The verbs `export`, `predict`, `bench` and `serve`; libraries that load slowly are imported when a verb runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modebridge.cli.options import Device, Exported, Folder, Json, Threshold, path

if TYPE_CHECKING:
    from modebridge.deploy import DeployedEnsemble

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
BATCH = 64


def export(
    folder: Folder,
    file: Annotated[
        Path, typer.Argument(parser=path, metavar="FILE", help="File to write: .onnx, or .pt2 for torch.export.")
    ],
    members: Annotated[
        str | None,
        typer.Option(
            help="Members to export, e.g. `mode-0,I-0-1-small`. Default: what `advise` recommends for a budget of 1.2.",
            metavar="NAMES",
        ),
    ] = None,
    per_member: Annotated[
        bool, typer.Option("--per-member", help="Also output the probabilities of each member.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Always run all members, as .pt2 files do; a little faster.")
    ] = False,
    average_cost: Annotated[
        float | None,
        typer.Option(
            help="Target average cost, in multiples of one network. Confident images use only the first network.",
            metavar="X",
        ),
    ] = None,
    threshold: Threshold = None,
) -> None:
    """Export modes and bridges of a run folder as one file, verified against the library before it is saved.

    Examples: `modebridge export runs/digits fast.onnx`,
    `modebridge export runs/digits fast.onnx --members mode-0,I-0-1-small --average-cost 1.05`.
    """
    from modebridge.cli.show import naming_damage
    from modebridge.cli.terminal import listed, note, say
    from modebridge.deploy import export as export_ensemble
    from modebridge.deploy.export import check_format
    from modebridge.errors import ModebridgeError
    from modebridge.runs import ensemble_of, existing

    # First, because reading the members takes long.
    check_format(file)
    plain = plain or file.suffix != ".onnx"
    options = {"--average-cost": average_cost, "--threshold": threshold}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1 or (plain and given):
        raise ModebridgeError(
            f"Expected --average-cost or --threshold, for an .onnx file without --plain, but got {' and '.join(given)} "
            f"for '{file}'; leave out what does not apply."
        )
    run, names = existing(folder), listed("--members", members)
    note("Reading members and fitting temperatures ...")
    with naming_damage(run):
        ensemble, notes = ensemble_of(run, names, average_cost=average_cost, threshold=threshold)
    say(f"Exporting {' + '.join(notes['names'])} and comparing the file with the library ...")
    done = export_ensemble(
        ensemble,
        file,
        notes["example"],
        valid=notes["temperatures"],
        threshold=notes["threshold"],
        plain=plain,
        outputs=["entropy", "mutual_information", *(["members"] if per_member else [])],
        classes=notes["classes"],
        info={name: notes[name] for name in ("names", "scores", "about", "unit")},
    )
    _describe(done)


def _describe(done: DeployedEnsemble) -> None:
    from modebridge.cli.terminal import Screen
    from modebridge.errors import plural

    meta, scores, console = done.meta, done.meta["scores"], Screen()
    console.print(f"File: {done.path}, {done.path.stat().st_size / 1e6:.2f} MB", soft_wrap=True)
    some = meta["elastic"] and meta["bridges"]
    ways = f"with 0 to {plural(meta['bridges'], 'bridge')}" if some else "all members"
    flops, cascade = meta["cost"]["relative_flops"], meta["threshold"] is not None
    console.print(f"Members: {' + '.join(meta['members'])} ({ways}); x{flops:.3f} FLOPs of one network.")
    average = f", x{scores['relative_flops']:.3f} FLOPs on average" if cascade else ""
    console.print(
        f"Test split: accuracy {100 * scores['accuracy']:.2f} %, NLL {scores['nll']:.4f} at temperature "
        f"{meta['temperature']:.3f}{average}."
    )
    if cascade:
        console.print(
            f"Threshold: {meta['threshold']:.4f}; images above it use only {meta['members'][0]}, the other "
            f"{100 * scores['deferred_share']:.1f} % of the test images use all members."
        )
    images = plural(meta["parity"]["images"], "image")
    console.print(f"Parity: the file's probabilities are within {done.parity:.1e} of the library's on {images}.")


def predict(
    file: Exported,
    images: Annotated[
        list[Path] | None, typer.Argument(parser=path, metavar="IMAGES", help="Image files, or folders of images.")
    ] = None,
    examples: Annotated[
        bool, typer.Option("--examples", help="Use the three digits that ship with the package, for files of the demo.")
    ] = False,
    bridges: Annotated[int | None, typer.Option(help="Number of bridges to use; all by default.", metavar="K")] = None,
    threshold: Threshold = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per image.")] = False,
) -> None:
    """Classify images with an exported file. Unreadable images are reported and skipped (exit code 1).

    Examples: `modebridge predict fast.onnx cat.png holiday/`, `modebridge predict fast.onnx --examples`.
    """
    import json

    import numpy as np

    from modebridge.cli.terminal import Screen, put, say
    from modebridge.deploy import DeployedEnsemble
    from modebridge.deploy.inputs import from_path
    from modebridge.errors import ModebridgeError, plural
    from modebridge.report import plain_table

    paths = [*(images or []), *(example_images() if examples else [])]
    if not paths:
        raise ModebridgeError(
            "Expected images, but got none; give files or folders, or add --examples for the three digits that ship "
            "with the package."
        )
    deployed = DeployedEnsemble.load(file)
    shape = deployed.image_shape()
    # Check the options before reading the first image.
    deployed(np.zeros((0, *shape), np.float32), bridges=bridges, threshold=threshold)
    columns = {"probability": "prob.", "entropy": "entropy", "mutual_information": "mutual", "used": "members"}
    shown = [name for name in columns if name in (*deployed.meta["outputs"], "probability")]
    table = plain_table("image", "class", *(columns[name] for name in shown), text=(0, 1))
    files = [file for path in paths for file in _image_files(path)]
    bad = 0
    for start in range(0, len(files), BATCH):
        batch = []
        for image in files[start : start + BATCH]:
            try:
                batch.append((image, from_path(image, shape)))
            except (ModebridgeError, OSError) as error:
                bad += 1
                system = f"Expected a readable file, but got '{getattr(error, 'strerror', error)}'; check it."
                # Not wrapped: a program may read it.
                say(f"{image}: {system if isinstance(error, OSError) else error}", fold=False)
        pixels = np.array([one for _, one in batch], np.float32).reshape(-1, *shape)
        records = deployed.records(pixels, bridges=bridges, threshold=threshold)
        for (image, _), record in zip(batch, records, strict=True):
            if as_json:
                put(json.dumps({"file": str(image), **record}))
            cells = [str(record[name]) if name == "used" else f"{record[name]:.4f}" for name in shown]
            table.add_row(str(image), record["class"], *cells)
    if table.row_count and not as_json:
        Screen().print(table)
    if bad:
        say(f"Skipped {bad} of {plural(len(files), 'image')} that could not be read.")
        raise typer.Exit(1)


def example_images() -> list[Path]:
    """The digits that ship with the package, each named after its class."""
    import modebridge.data

    return sorted((Path(modebridge.data.__file__).parent / "examples").glob("*.png"))


def _image_files(path: Path) -> list[Path]:
    """A file itself, or the images in a folder; a folder without any stands for itself."""
    import os

    walk = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    return sorted(file for file in walk if file.suffix.lower() in ENDINGS) or [path]


def bench(
    target: Annotated[
        str,
        typer.Argument(
            parser=lambda text: str(path(text)),
            metavar="DIR|FILE|RECIPE",
            help="A run folder, an exported file, or a recipe.",
        ),
    ],
    batch: Annotated[str, typer.Option(help="Batch sizes.", metavar="SIZES")] = "1,8,64,256",
    device: Device = "auto",
    backends: Annotated[
        str | None,
        typer.Option(help="How to run: eager, compiled, onnx; on a GPU eager, compiled, graphs.", metavar="NAMES"),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Time only these rows, e.g. `DE-2,DE-1 + 3 bridges I`; saves nothing.", metavar="ROWS"),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds per row and batch size.", metavar="S")] = 2.0,
    bf16: Annotated[bool, typer.Option("--bf16", help="Use bfloat16 weights and images (GPU only).")] = False,
    as_json: Json = False,
) -> None:
    """Measure latency and throughput of one network, deep ensembles and bridges, and compare with their FLOPs.

    A recipe is timed without training: weights do not affect time. For a run folder, also writes DIR/bench.
    Examples: `modebridge bench runs/digits`, `modebridge bench fast.onnx --batch 1,64`,
    `modebridge bench cifar10 --backends onnx`.
    """
    from modebridge.cli.bench import bench_target

    options = {"device": device, "backends": backends, "only": only, "seconds": seconds, "bf16": bf16}
    bench_target(target, batch, **options, as_json=as_json)  # type: ignore[arg-type]


def serve(
    file: Exported,
    host: Annotated[
        str, typer.Option(help="Address to bind: 127.0.0.1 for this machine only, 0.0.0.0 for all interfaces.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", metavar="N", min=1, max=65535)] = 8000,
    batch: Annotated[int, typer.Option(help="Maximum batch size.", metavar="N", min=1)] = 32,
    wait_ms: Annotated[
        float, typer.Option(help="How long the first image of a batch waits for others, in milliseconds.", min=0)
    ] = 2.0,
    max_mb: Annotated[float, typer.Option(help="Maximum request size, in MB.", metavar="MB", min=0)] = 10.0,
) -> None:
    """Serve an exported file over HTTP: POST an image to /predict; see also /health and /info.

    Example: `modebridge serve fast.onnx`, then `curl --data-binary @cat.png http://127.0.0.1:8000/predict`.
    """
    from modebridge.cli.terminal import say
    from modebridge.errors import ModebridgeError

    try:
        from modebridge.deploy.serve import ServeConfig
        from modebridge.deploy.serve import serve as serve_file
    except ImportError as error:
        raise ModebridgeError(
            f"Expected Starlette and uvicorn for serving, but got '{error}'; pip install 'modebridge[serve]'."
        ) from error
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    serve_file(
        file,
        ServeConfig(host, port, batch, wait_ms, max_mb),
        ready=lambda: say(f"Serving {file} at {address}/predict (also /health, /info); press Ctrl-C to stop."),
    )
