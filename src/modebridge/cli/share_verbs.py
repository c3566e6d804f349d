"""The verbs of the program that share: push and pull."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modebridge.cli.options import Folder, Json, MeanName, path

__all__ = ["pull", "push"]


def push(
    folder: Folder,
    repo: Annotated[str | None, typer.Argument(metavar="OWNER/NAME", help="The name on the hub.")] = None,
    only_folder: Annotated[
        Path | None,
        typer.Option("--folder", parser=path, metavar="DIR", help="Only write the folder there; upload nothing."),
    ] = None,
    members: Annotated[
        str | None, typer.Option(help="As `mode-0,I-0-1-small`; by default what `advise` recommends for x1.2.")
    ] = None,
    mean: MeanName = "probability",
    license: Annotated[str, typer.Option(help="Of the weights, as the hub spells it: apache-2.0, mit.")] = "",
    datasets: Annotated[
        str | None, typer.Option("--dataset", help="Names of the data sets on the hub, separated by commas.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    as_json: Json = False,
) -> None:
    """Share modes, students and bridges of a run folder on the Hugging Face hub, with a model card of their scores.

    Writes safetensors, config.json and README.md; `modebridge.load("OWNER/NAME")` loads them. Uploading needs the extra
    `hub` and `hf auth login`.

    Examples: `modebridge push runs/digits me/digits-bridge --license apache-2.0`,
    `modebridge push runs/digits --folder shared --members distilled-0`.
    """
    from modebridge.cli import share_commands
    from modebridge.cli.terminal import listed

    share_commands.push_run(
        folder,
        repo,
        only_folder,
        members=listed("--members", members) or [],
        mean=mean,
        license=license,
        datasets=listed("--dataset", datasets) or [],
        private=private,
        as_json=as_json,
    )


def pull(
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The name on the hub.")],
    folder: Annotated[
        Path | None, typer.Argument(parser=path, metavar="DIR", help="The folder to write; ./NAME by default.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit; main by default.")] = None,
    as_json: Json = False,
) -> None:
    """Download what was pushed to the Hugging Face hub, check that it is whole, and put it in a folder.

    Example: `modebridge pull me/digits-bridge`, then `modebridge.load("digits-bridge")` in Python.
    """
    from modebridge.cli import share_commands

    share_commands.pull_repo(repo, folder, revision=revision, as_json=as_json)
