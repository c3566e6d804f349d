"""The program `modebridge`."""

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
    Modes,
    NewFile,
    Out,
    Page,
    RecipeName,
    Seed,
    Settings,
    Target,
    Threshold,
)

__all__ = ["app"]

app = typer.Typer(
    help="Most of a deep ensemble's accuracy and calibration at nearly the cost of one forward pass.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _modebridge(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the trace of an error; also after the verb, or by MODEBRIDGE_DEBUG=1.")
    ] = False,
) -> None:
    # `debug` is read by the boundary, before anything can go wrong; it stands here for --help.
    if version:
        from modebridge import __version__
        from modebridge.cli.terminal import put

        put(__version__)
        raise typer.Exit


@app.command()
def run(
    recipe: RecipeName = None,
    out: Out = None,
    settings: Settings = None,
    seed: Seed = None,
    data: Data = None,
    modes: Modes = None,
    device: Device = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write RUN/tensorboard too (an extra).")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only show what is there and what would be trained.")] = False,
    as_json: Json = False,
) -> None:
    """Train modes, curves and bridges that are missing, score them, and write the report.

    Without a recipe it runs `digits`: hand-written digits carried in the package, no download, a minute or two on two
    cores. What is in the run folder is not trained again; a run that was stopped goes on. Started by `torchrun` it
    shares the work among processes. A recipe of your own that is a Python file is executed, as any program.

    Examples: `modebridge run`, `modebridge run cifar10-short --data ~/cifar --out runs/c10`,
    `modebridge run digits --set modes=3 --set norm=frn`.
    """
    from modebridge.cli import run_commands

    if plan:
        run_commands.show_plan(
            recipe, seed=seed, out=out, settings=settings or [], data=data, device=device, modes=modes, as_json=as_json
        )
        return
    run_commands.run(
        recipe,
        seed=seed,
        out=out,
        settings=settings or [],
        data=data,
        device=device,
        modes=modes,
        boards=tensorboard,
        as_json=as_json,
    )


@app.command()
def recipes(
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Count the work and time a few steps: how long each would take here.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List what can be run, and on what data; with --estimate how much work it is and how long that takes here."""
    from modebridge.cli import show_commands

    show_commands.list_recipes(estimate=estimate, as_json=as_json)


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="type1, type2, correspondence, r-position, r-ablation, bridge-size, ...")],
    recipe: RecipeName = None,
    out: Out = None,
    settings: Settings = None,
    seed: Seed = None,
    data: Data = None,
    device: Device = "auto",
    ood: Annotated[
        str | None,
        typer.Option(help="For shift: other images, as `letters,svhn=DIR,folder:PATH`.", metavar="SETS"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make one table or figure of the paper: type1, type2, correspondence, r-position, r-ablation, bridge-size,
    type-mix, mode-choice; or of what rows are worth on images that they were not trained for: shift.

    It uses what is in the run folder, trains what is missing, and writes RUN/studies/NAME (Markdown, JSON, LaTeX, SVG).
    """  # noqa: D205
    from modebridge.cli import run_commands
    from modebridge.cli.terminal import listed

    run_commands.study(
        name,
        recipe,
        seed=seed,
        out=out,
        settings=settings or [],
        data=data,
        device=device,
        as_json=as_json,
        others=listed("--ood", ood) or [],
    )


@app.command()
def cost(
    recipe: RecipeName = None,
    settings: Settings = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's own counting beside the true one.")] = False,
    as_json: Json = False,
) -> None:
    """Count FLOPs and parameters of networks, bridges and combinations, without training anything."""
    from modebridge.cli import run_commands, show_commands

    show_commands.show_cost(run_commands.chosen(recipe, settings or [], None, None)[0], paper=paper, as_json=as_json)


@app.command()
def report(
    folder: Folder,
    out: Page = None,
) -> None:
    """Write the page of a run folder again; needs neither the data set nor a GPU."""
    from modebridge.cli import show_commands

    show_commands.report_run(folder, out)


@app.command()
def advise(
    folder: Folder,
    budget: Annotated[float, typer.Option(help="What a forward pass may cost, in networks.")] = 1.2,
    by: Annotated[str, typer.Option(help="flops, params, or time (measured on this machine).")] = "flops",
    mean: MeanName = "probability",
    as_json: Json = False,
) -> None:
    """Say which modes and bridges to use under a budget, and for which images, chosen on validation data alone."""
    from modebridge.cli.advise_command import advise_run

    advise_run(folder, budget, by, mean, as_json)


@app.command()
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
    grouped: Annotated[str, typer.Option(help="Bridges as one, in --plain files: auto, yes, no.")] = "auto",
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


@app.command()
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


@app.command()
def bench(
    target: Target = None,
    recipe: Annotated[str | None, typer.Option(help="The networks of a recipe, untrained: time is the same.")] = None,
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


@app.command()
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
