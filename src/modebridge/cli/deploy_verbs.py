"""The verbs of the program that make, time and serve files."""

from __future__ import annotations

from typing import Annotated

import typer

from modebridge.cli.completion import complete_recipe, one_of
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
        str | None, typer.Option(help="As `mode-0,I-0-1-small`; what `advise` says for x1.2 by default.")
    ] = None,
    per_member: Annotated[bool, typer.Option("--per-member", help="Each member's probabilities go out too.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Always all members: no choice of bridges.")] = False,
    average_cost: AverageCost = None,
    threshold: Threshold = None,
    mean: MeanName = "probability",
    int8: Annotated[bool, typer.Option("--int8", help="Eight bits for CPUs; what that costs is printed.")] = False,
    grouped: Annotated[
        str,
        typer.Option(
            help="Bridges as one, in --plain files: auto, yes, no.", autocompletion=one_of("auto", "yes", "no")
        ),
    ] = "auto",
    aot: Annotated[bool, typer.Option("--aot", help="Compile a .pt2 with AOTInductor for this machine.")] = False,
    data: Data = None,
) -> None:
    """Write modes and bridges of a run folder as one file, compared with the library before it appears.

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
        bool, typer.Option("--examples", help="The three digits that come with the package, for files of the demo.")
    ] = False,
    bridges: Annotated[int | None, typer.Option(help="Ask so many bridges; all by default.", metavar="K")] = None,
    threshold: Threshold = None,
    megapixels: Annotated[float, typer.Option("--max-megapixels", help="Larger images are not unpacked.")] = 25.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line an image on standard output.")] = False,
) -> None:
    """Say what is on images, from an exported file; images that cannot be read are named and left out (exit code 1).

    Examples: `modebridge predict fast.onnx cat.png holiday/`, `modebridge predict fast.onnx --examples`.
    """
    from modebridge.cli import export_commands

    asked = [*(images or []), *(export_commands.examples() if examples else [])]
    export_commands.predict_files(
        file, asked, bridges=bridges, threshold=threshold, megapixels=megapixels, as_json=as_json
    )


def bench(
    target: Target = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="The networks of a recipe, untrained: time is the same.", autocompletion=complete_recipe),
    ] = None,
    batch: Annotated[str, typer.Option(help="Images a call.")] = "1,8,64,256",
    device: Device = "auto",
    ways: Annotated[
        str | None, typer.Option(help="Of eager, compiled, onnx; on a GPU eager, compiled, graphs.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Some rows alone, as `DE-2,DE-1 + 3 bridges I`.")] = None,
    seconds: Annotated[float, typer.Option(help="For each row at each batch size.")] = 2.0,
    threads: Annotated[int | None, typer.Option(help="Of the CPU; torch's choice by default.")] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Weights and images in bfloat16, on a GPU.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Even a result in DIR/bench that has more rows.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure latency and throughput of one network, deep ensembles and bridges, beside what FLOPs promise.

    Of a run folder it writes DIR/bench (Markdown, JSON) too. Examples: `modebridge bench runs/digits`,
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
    host: Annotated[str, typer.Option(help="127.0.0.1 answers this machine alone, 0.0.0.0 everyone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where to listen.")] = 8000,
    batch: Annotated[int, typer.Option(help="The most images that run together.")] = 32,
    timeout_ms: Annotated[float, typer.Option(help="How long the first image of a batch waits for others.")] = 2.0,
    max_mb: Annotated[float, typer.Option(help="The largest request, in MB.")] = 10.0,
    megapixels: Annotated[float, typer.Option("--max-megapixels", help="Larger images are not unpacked.")] = 25.0,
) -> None:
    """Serve an exported file over HTTP until stopped: POST an image to /predict; /health, /info, /metrics.

    Example: `modebridge serve fast.onnx`, then `curl --data-binary @cat.png http://127.0.0.1:8000/predict`.
    """
    from modebridge.cli import serve_command

    serve_command.serve_file(
        file, serve_command.ServeConfig(host, port, batch, timeout_ms, max_mb, max_megapixels=megapixels)
    )
