"""The program `modebridge`: its own options, and its verbs; what loads slowly is imported when a verb runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from modebridge.cli import terminal
from modebridge.cli.files import Folder, export, path, predict, serve
from modebridge.cli.share import pull, push

ANYWHERE = ("--json", "--debug")
"""Options of the program that may also stand after the verb."""

RecipeName = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe name (see `modebridge recipes`), a run folder, or a file: .toml, or .py, which is executed, so "
        "run only files you trust. Default: the recipe of the run folder, else digits.",
    ),
]
Out = Annotated[Path | None, typer.Option(parser=path, metavar="DIR", help="Run folder. Default: runs/RECIPE.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting, e.g. `mode.epochs=3`; repeatable.", metavar="KEY=VALUE"),
]
Seed = Annotated[
    int | None, typer.Option(help="Random seed. Default: the seed in the recipe file, else 0.", metavar="N", min=0)
]
Data = Annotated[
    Path | None,
    typer.Option(
        parser=path,
        metavar="DIR",
        help="Folder with the official files of the data set. Default: $MODEBRIDGE_DATA, else ./data.",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", metavar="DEVICE")]

RUN, LOOK, SHIP, SHARE = "Run", "Look", "Ship", "Share"
"""The groups of verbs in the help."""


class Plain:
    """Help without the types of flags and arguments, which their names tell."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
            if isinstance(param, TyperArgument):
                param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        return params


class Verb(Plain, TyperCommand):
    """A command of the program."""


class Program(Plain, TyperGroup):
    """Takes the options of the program before and after the verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ours = [word for word in args[:end] if word in ANYWHERE]
        others = [word for word in args[:end] if word not in ANYWHERE]
        return super().parse_args(ctx, [*ours, *others, *args[end:]])


app = typer.Typer(
    cls=Program,
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print results as JSON; works with every verb, before or after it.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="MODEBRIDGE_DEBUG", help="Show tracebacks; before or after the verb.")
    ] = False,
) -> None:
    terminal.OPTIONS.json, terminal.OPTIONS.debug = as_json, debug
    if version:
        from modebridge import __version__

        terminal.Screen().print(__version__)
        raise typer.Exit


@app.command(cls=Verb, rich_help_panel=RUN)
def run(
    recipe: RecipeName = None,
    out: Out = None,
    settings: Settings = None,
    seed: Seed = None,
    data: Data = None,
    modes: Annotated[
        Path | None,
        typer.Option(
            parser=path, metavar="DIR", help="Use trained networks from a folder of checkpoints, the best one first."
        ),
    ] = None,
    as_named: Annotated[
        bool, typer.Option("--as-named", help="With --modes: in the order of their names instead.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Train networks that the folder has again, if the settings changed.")
    ] = False,
    device: Device = "auto",
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
) -> None:
    """Train what is missing, score every combination, and write the page.

    The default recipe is `digits`: handwritten digits that ship with the package, no download, half a minute on two
    cores. What the run folder has is reused, and an interrupted run resumes. Under `torchrun`, processes share the
    work; with --on, stages run in parallel on a Ray cluster. A recipe that is a Python file is executed like any other
    program.

    ```sh
    modebridge run
    modebridge run my_recipe.py --modes checkpoints/
    modebridge run digits --set methods=paper
    modebridge run cifar10-short --data ~/cifar --out runs/c10
    ```
    """
    from modebridge.cli import run as runs

    options = runs.RunOptions(recipe, out, settings, seed, data, device, modes, as_named, replace)
    if plan:
        runs.show_plan(options)
    else:
        runs.run(options, on)


@app.command(cls=Verb, rich_help_panel=RUN)
def recipes() -> None:
    """List the recipes and the data they need."""
    from modebridge.cli import show

    show.list_recipes()


@app.command(cls=Verb, rich_help_panel=RUN)
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
            help="For `shift`: out-of-distribution sets, e.g. `scrambled,cifar100,folder:PATH`.", metavar="SETS"
        ),
    ] = None,
) -> None:
    """Reproduce one table or figure of the paper, or evaluate under distribution shift.

    Trains only what the run folder does not have yet, and writes RUN/studies/NAME (Markdown, JSON, CSV, SVG).

    ```sh
    modebridge study comparison digits
    modebridge study type1
    modebridge study shift --ood scrambled
    ```
    """
    from modebridge.cli import run as runs

    options = runs.RunOptions(recipe, out, settings, seed, data, device)
    runs.study(name, options, terminal.listed("--ood", ood) or [])


@app.command(cls=Verb, rich_help_panel=LOOK)
def cost(
    recipe: RecipeName = None,
    settings: Settings = None,
    paper: Annotated[bool, typer.Option("--paper", help="Also show costs as counted in the paper.")] = False,
) -> None:
    """Count FLOPs and parameters of networks, bridges and ensembles, without training.

    ```sh
    modebridge cost runs/digits
    modebridge cost cifar10 --paper
    ```
    """
    from modebridge.cli import run as runs, show

    show.show_cost(runs.chosen(runs.RunOptions(recipe, settings=settings))[0], paper=paper)


@app.command(cls=Verb, rich_help_panel=LOOK)
def report(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option(parser=path, metavar="FILE", help="Output file. Default: DIR/report.html.")
    ] = None,
) -> None:
    """Write the page of a run folder again; needs neither the data set nor a GPU."""
    from modebridge.cli import show

    show.report_run(folder, out)


@app.command(cls=Verb, rich_help_panel=LOOK)
def advise(
    folder: Folder,
    budget: Annotated[
        float, typer.Option(help="Maximum cost of a forward pass, in multiples of one network.", metavar="X")
    ] = 1.2,
    cost_unit: Annotated[str, typer.Option(help="flops or params.", metavar="UNIT")] = "flops",
    cascades: Annotated[
        bool,
        typer.Option("--cascades", help="Also consider cascades, where confident images use only the first network."),
    ] = False,
    max_loss: Annotated[
        float | None,
        typer.Option(
            help="Consider cascades whose accuracy is at most this many points (percent) below that of all members, "
            "with 95 % confidence.",
            metavar="POINTS",
        ),
    ] = None,
) -> None:
    """Recommend members for a cost budget, on validation data.

    Takes the largest combination that is significantly better than one network, corrected for how many were compared,
    unless the best is significantly better than it, or something cheaper is as good.

    ```sh
    modebridge advise runs/digits --budget 1.2
    ```
    """
    from modebridge.cli import show

    show.advise_run(folder, budget, cost_unit, cascades, max_loss)


@app.command(cls=Verb, rich_help_panel=LOOK)
def bench(
    target: Annotated[
        Path,
        typer.Argument(parser=path, metavar="DIR|FILE|RECIPE", help="A run folder, an exported file, or a recipe."),
    ],
    batch: Annotated[str, typer.Option(help="Batch sizes.", metavar="SIZES")] = "1,64",
    device: Device = "auto",
) -> None:
    """Measure latency and throughput beside FLOPs, in torch and in ONNX Runtime.

    Of a run folder or a recipe: one network, one network with its heads or its bridge, and two networks, with random
    weights, since time does not depend on them.

    ```sh
    modebridge bench runs/digits
    modebridge bench fast.onnx --batch 1,8
    ```
    """
    from modebridge.cli.bench import bench_target

    bench_target(target, batch, device)


for _panel, _verbs in {SHIP: (export, predict, serve), SHARE: (push, pull)}.items():
    for _verb in _verbs:
        app.command(cls=Verb, rich_help_panel=_panel)(_verb)
