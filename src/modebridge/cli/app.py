"""The program `modebridge`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["app", "main"]

app = typer.Typer(
    help="Most of a deep ensemble's accuracy and calibration at nearly the cost of one forward pass.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _modebridge(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        from modebridge import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="What to run.")] = "digits",
    seed: Annotated[int, typer.Option(help="Of every random choice.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A run folder: results, and weights to go on from.")] = None,
) -> None:
    """Train modes, curves and bridges, and show what the bridges are worth.

    Without a recipe it runs `digits`: hand-written digits carried in the package, no download, a minute or two on two
    cores.
    """
    from modebridge.cli.show import show_run

    try:
        show_run(recipe, seed, out)
    except KeyboardInterrupt:
        # At once: a plain exit would wait for the networks that are being trained on other threads.
        Console(stderr=True).print("modebridge: stopped.")
        os._exit(130)


def main() -> None:
    """Run the program; a user's mistake is one sentence on stderr and exit code 2, never a stack trace."""
    from modebridge.errors import ModebridgeError

    try:
        app()
    except ModebridgeError as error:
        Console(stderr=True).print(f"modebridge: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
