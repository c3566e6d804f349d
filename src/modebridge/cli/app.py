"""The program `modebridge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modebridge.cli.deploy import bench, export, predict, serve
from modebridge.cli.options import (
    Data,
    Device,
    Folder,
    Json,
    Out,
    RecipeName,
    Seed,
    Settings,
    path,
)
from modebridge.cli.share import pull, push

app = typer.Typer(
    help="Part of a deep ensemble's gain at nearly the cost of one forward pass.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # typer's own flags are None by default, and to convert that it would import pydantic, a tenth of a second.
        "default_map": dict.fromkeys(("help", "install_completion", "show_completion"), False),
    },
)


@app.callback(invoke_without_command=True)
def _modebridge(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; works after the verb too, or set MODEBRIDGE_DEBUG=1.")
    ] = False,
) -> None:
    # `debug` is parsed by the boundary, before anything can fail; it is declared here for --help.
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
    modes: Annotated[
        Path | None, typer.Option(parser=path, metavar="DIR", help="Use trained modes from a folder of checkpoints.")
    ] = None,
    device: Device = "auto",
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also log to RUN/tensorboard (needs the `tensorboard` extra).")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what exists and what would be trained, then exit.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="RAY",
            help="Run stages as Ray tasks: `ray` for this machine, or the address of a running cluster: `auto`, "
            "HOST:6379, ray://HOST:10001.",
        ),
    ] = None,
    gpus_per_stage: Annotated[
        float | None, typer.Option(metavar="X", help="With --on: GPUs per stage; 0.5 runs two stages on each GPU.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train missing modes, curves and bridges, evaluate them, and write the report.

    The default recipe is `digits`: handwritten digits that ship with the package, no download, a minute or two on two
    cores. Artifacts in the run folder are reused, and an interrupted run resumes. Under `torchrun`, processes share
    the work; with --on, stages run in parallel on a Ray cluster. A recipe that is a Python file is executed like any
    other program.

    Examples: `modebridge run`, `modebridge run cifar10-short --data ~/cifar --out runs/c10`,
    `modebridge run digits --set modes=3 --set norm=frn`.
    """
    from modebridge.cli import run as runs

    options = runs.RunOptions(recipe, out, settings, seed, data, device, modes)
    if plan:
        runs.show_plan(options, as_json=as_json)
        return
    runs.run(options, boards=tensorboard, as_json=as_json, on=on, gpus=gpus_per_stage)


@app.command()
def recipes(as_json: Json = False) -> None:
    """List the recipes and the data they need."""
    from modebridge.cli import show

    show.list_recipes(as_json=as_json)


@app.command()
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="type1, type2, correspondence, r-position, r-ablation, bridge-size, type-mix, mode-choice, swa, "
            "comparison (all methods side by side), shift.",
        ),
    ],
    recipe: RecipeName = None,
    out: Out = None,
    settings: Settings = None,
    seed: Seed = None,
    data: Data = None,
    device: Device = "auto",
    ood: Annotated[
        str | None,
        typer.Option(
            help="For `shift`: out-of-distribution sets, e.g. `letters,svhn=DIR,folder:PATH`.", metavar="SETS"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Reproduce one table or figure of the paper, or evaluate under distribution shift.

    Trains only what the run folder does not have yet, and writes RUN/studies/NAME (Markdown, JSON, LaTeX, SVG).

    Examples: `modebridge study type1`, `modebridge study shift --ood letters`.
    """
    from modebridge.cli import run as runs
    from modebridge.cli.terminal import listed

    options = runs.RunOptions(recipe, out, settings, seed, data, device)
    runs.study(name, options, as_json=as_json, others=listed("--ood", ood) or [])


@app.command()
def cost(
    recipe: RecipeName = None,
    settings: Settings = None,
    paper: Annotated[bool, typer.Option("--paper", help="Also show costs as counted in the paper.")] = False,
    as_json: Json = False,
) -> None:
    """Count FLOPs and parameters of networks, bridges and ensembles, without training."""
    from modebridge.cli import run as runs
    from modebridge.cli import show

    show.show_cost(runs.chosen(runs.RunOptions(recipe, settings=settings))[0], paper=paper, as_json=as_json)


@app.command()
def report(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option(parser=path, metavar="FILE", help="Output file. Default: DIR/report.html.")
    ] = None,
) -> None:
    """Regenerate the HTML report of a run folder; needs neither the data set nor a GPU."""
    from modebridge.cli import show

    show.report_run(folder, out)


@app.command()
def advise(
    folder: Folder,
    budget: Annotated[
        float, typer.Option(help="Maximum cost of a forward pass, in multiples of one network.", metavar="X")
    ] = 1.2,
    cost_unit: Annotated[str, typer.Option(help="Unit of cost: flops or params.")] = "flops",
    cascades: Annotated[
        bool,
        typer.Option("--cascades", help="Also consider cascades, where confident images use only the first network."),
    ] = False,
    max_epochs: Annotated[
        float | None,
        typer.Option(help="Maximum training, in epochs of one network; no limit by default.", metavar="EPOCHS"),
    ] = None,
    trained_modes: Annotated[
        int | None,
        typer.Option(help="Number of modes already trained; by default those given with --modes.", metavar="N"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Recommend members for a cost budget: the most that fit, then the lowest NLL on validation data.

    Example: `modebridge advise runs/digits --budget 1.2 --trained-modes 2 --max-epochs 100`.
    """
    from modebridge.cli import show

    show.advise_run(
        folder,
        budget,
        cost_unit=cost_unit,
        cascades=cascades,
        max_epochs=max_epochs,
        trained_modes=trained_modes,
        as_json=as_json,
    )


for _verb in (export, predict, bench, serve, push, pull):
    app.command()(_verb)
