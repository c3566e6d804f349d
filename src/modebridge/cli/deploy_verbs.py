"""The verbs that write, run, time and serve exported files."""

from __future__ import annotations

from typing import Annotated

import typer

from modebridge.cli.options import (
    AverageCost,
    Device,
    Exported,
    Folder,
    Images,
    Json,
    NewFile,
    Target,
    Threshold,
)

__all__ = ["bench", "export", "predict", "serve"]


def export(
    folder: Folder,
    file: NewFile,
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
    average_cost: AverageCost = None,
    threshold: Threshold = None,
) -> None:
    """Export modes and bridges of a run folder as one file, verified against the library before it is saved.

    Examples: `modebridge export runs/digits fast.onnx`,
    `modebridge export runs/digits fast.onnx --members mode-0,I-0-1-small --average-cost 1.05`.
    """
    from modebridge.cli import export_commands
    from modebridge.cli.terminal import listed

    export_commands.export_run(
        folder,
        file,
        members=listed("--members", members) or [],
        per_member=per_member,
        plain=plain,
        average_cost=average_cost,
        threshold=threshold,
    )


def predict(
    file: Exported,
    images: Images = None,
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
    from modebridge.cli import export_commands

    paths = [*(images or []), *(export_commands.examples() if examples else [])]
    export_commands.predict_files(file, paths, bridges=bridges, threshold=threshold, as_json=as_json)


def bench(
    target: Target,
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

    A recipe is timed without training: weights do not affect time. For a run folder, also writes DIR/bench (Markdown,
    JSON). Examples: `modebridge bench runs/digits`, `modebridge bench fast.onnx --batch 1,64`,
    `modebridge bench cifar10 --backends onnx`.
    """
    from modebridge.cli import bench_command

    bench_command.bench(
        target,
        batches=batch,
        device=device,
        backends=backends,
        only=only,
        seconds=seconds,
        bf16=bf16,
        as_json=as_json,
    )


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
        from modebridge.deploy import serve as server
    except ImportError as error:
        raise ModebridgeError(
            f"Expected Starlette and uvicorn for serving, but got '{error}'; pip install 'modebridge[serve]'."
        ) from error
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    server.serve(
        file,
        server.ServeConfig(host, port, batch, wait_ms, max_mb),
        ready=lambda: say(f"Serving {file} at {address}/predict (also /health, /info); press Ctrl-C to stop."),
    )
