"""The verbs that write, run, time and serve exported files."""

from __future__ import annotations

from typing import Annotated

import typer

from modebridge.cli.options import (
    AverageCost,
    Data,
    Device,
    Exported,
    Folder,
    Images,
    Json,
    MeanName,
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
        bool, typer.Option("--plain", help="Always run all members; the number of bridges is fixed.")
    ] = False,
    average_cost: AverageCost = None,
    threshold: Threshold = None,
    mean: MeanName = "probability",
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantize to 8 bits for CPUs, and print the loss in accuracy.")
    ] = False,
    grouped: Annotated[
        str,
        typer.Option(
            help="In --plain files, fuse bridges into grouped operations: auto, yes or no.",
        ),
    ] = "auto",
    aot: Annotated[bool, typer.Option("--aot", help="Compile a .pt2 file with AOTInductor for this machine.")] = False,
    data: Data = None,
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
        grouped=grouped,
        average_cost=average_cost,
        threshold=threshold,
        mean=mean,
        int8=int8,
        data=data,
        aot=aot,
    )


def predict(
    file: Exported,
    images: Images = None,
    examples: Annotated[
        bool, typer.Option("--examples", help="Use the three digits that ship with the package, for files of the demo.")
    ] = False,
    bridges: Annotated[int | None, typer.Option(help="Number of bridges to use; all by default.", metavar="K")] = None,
    threshold: Threshold = None,
    megapixels: Annotated[float, typer.Option("--max-megapixels", help="Refuse larger images.", metavar="X")] = 25.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per image.")] = False,
) -> None:
    """Classify images with an exported file. Unreadable images are reported and skipped (exit code 1).

    Examples: `modebridge predict fast.onnx cat.png holiday/`, `modebridge predict fast.onnx --examples`.
    """
    from modebridge.cli import export_commands

    paths = [*(images or []), *(export_commands.examples() if examples else [])]
    export_commands.predict_files(
        file, paths, bridges=bridges, threshold=threshold, megapixels=megapixels, as_json=as_json
    )


def bench(
    target: Target = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Time the untrained networks of a recipe; weights do not affect time."),
    ] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes.", metavar="SIZES")] = "1,8,64,256",
    device: Device = "auto",
    ways: Annotated[
        str | None,
        typer.Option(help="Ways to run: eager, compiled, onnx; on a GPU eager, compiled, graphs.", metavar="WAYS"),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Time only these rows, e.g. `DE-2,DE-1 + 3 bridges I`.", metavar="ROWS")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds per row and batch size.", metavar="S")] = 2.0,
    threads: Annotated[
        int | None, typer.Option(help="Number of CPU threads; torch's default if not given.", metavar="N")
    ] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Use bfloat16 weights and images (GPU only).")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace results in DIR/bench even if they have more rows.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure latency and throughput of one network, deep ensembles and bridges, and compare with their FLOPs.

    For a run folder, also writes DIR/bench (Markdown, JSON). Examples: `modebridge bench runs/digits`,
    `modebridge bench fast.onnx --batch 1,64`, `modebridge bench --recipe cifar10 --ways onnx`.
    """
    from modebridge.cli import bench_command

    bench_command.bench(
        target,
        recipe=recipe,
        batches=batch,
        device=device,
        ways=ways,
        only=only,
        seconds=seconds,
        threads=threads,
        bf16=bf16,
        overwrite=overwrite,
        as_json=as_json,
    )


def serve(
    file: Exported,
    host: Annotated[
        str, typer.Option(help="Address to bind: 127.0.0.1 for this machine only, 0.0.0.0 for all interfaces.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", metavar="N")] = 8000,
    batch: Annotated[int, typer.Option(help="Maximum batch size.", metavar="N")] = 32,
    timeout_ms: Annotated[
        float, typer.Option(help="How long the first image of a batch waits for others, in milliseconds.", metavar="MS")
    ] = 2.0,
    max_mb: Annotated[float, typer.Option(help="Maximum request size, in MB.", metavar="MB")] = 10.0,
    megapixels: Annotated[float, typer.Option("--max-megapixels", help="Refuse larger images.", metavar="X")] = 25.0,
) -> None:
    """Serve an exported file over HTTP: POST an image to /predict; see also /health, /info, /metrics.

    Example: `modebridge serve fast.onnx`, then `curl --data-binary @cat.png http://127.0.0.1:8000/predict`.
    """
    from modebridge.cli import serve_command

    serve_command.serve_file(
        file, serve_command.ServeConfig(host, port, batch, timeout_ms, max_mb, max_megapixels=megapixels)
    )
