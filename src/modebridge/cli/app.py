"""The program `modebridge`."""

from __future__ import annotations

from typing import Annotated

import typer

from modebridge.cli import deploy_verbs, share_verbs
from modebridge.cli.options import (
    Data,
    Device,
    Folder,
    GpusPerStage,
    Json,
    MeanName,
    Modes,
    On,
    Out,
    Page,
    PerStage,
    RecipeName,
    Seed,
    Settings,
    Shared,
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
    on: On = None,
    gpus_per_stage: GpusPerStage = None,
    per_stage: PerStage = None,
    shared: Shared = None,
    as_json: Json = False,
) -> None:
    """Train modes, curves and bridges that are missing, score them, and write the report.

    Without a recipe it runs `digits`: hand-written digits carried in the package, no download, a minute or two on two
    cores. What is in the run folder is not trained again; a run that was stopped goes on. Started by `torchrun` it
    shares the work among processes; with --on the stages run side by side on a Ray cluster. A recipe of your own that
    is a Python file is executed, as any program.

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
        cluster=run_commands.Cluster(on, gpus_per_stage, per_stage, shared),
    )


@app.command()
def plan(
    recipe: RecipeName = None,
    gpus: Annotated[int, typer.Option(metavar="N", help="Say how long it takes on 1, 2, 4, ... N of them.")] = 8,
    tflops: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="What one GPU sustains in training, in TFLOP/s, two per multiply-add; measured on this machine by "
            "default.",
        ),
    ] = None,
    per_stage: PerStage = None,
    out: Out = None,
    settings: Settings = None,
    seed: Seed = None,
    data: Data = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Say how long a run takes on several GPUs, and where more of them are of no use.

    Counts the work of every stage, follows the longest path through them, and simulates who makes what when. Nothing is
    trained but a few batches to measure this machine; on a CPU a core takes the place of a GPU. What is in the run
    folder is not counted.

    Examples: `modebridge plan digits --gpus 2`, `modebridge plan in1k --gpus 64 --tflops 300`.
    """
    from modebridge.cli.plan_command import plan_run

    plan_run(
        recipe,
        gpus,
        tflops,
        per_stage=per_stage,
        seed=seed,
        out=out,
        settings=settings or [],
        data=data,
        device=device,
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
    type-mix, mode-choice, swa, comparison (all methods side by side); or of what rows are worth on images that they
    were not trained for: shift.

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
    train: Annotated[
        float | None, typer.Option(help="What may be trained, in epochs of one network; no limit by default.")
    ] = None,
    have: Annotated[
        int | None, typer.Option(help="How many modes are trained already; by default those given with --modes.")
    ] = None,
    mean: MeanName = "probability",
    as_json: Json = False,
) -> None:
    """Say which members to use under a budget, and for which images, chosen on validation data alone.

    Example: `modebridge advise runs/digits --budget 1.2 --have 2 --train 100`.
    """
    from modebridge.cli.advise_command import advise_run

    advise_run(folder, budget, by, mean, as_json, train, have)


for _verb in (deploy_verbs.export, deploy_verbs.predict, deploy_verbs.bench, deploy_verbs.serve):
    app.command()(_verb)
app.command()(share_verbs.push)
app.command()(share_verbs.pull)
