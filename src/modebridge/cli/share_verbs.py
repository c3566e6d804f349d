"""The verbs that share ensembles: push and pull."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modebridge.cli.options import Folder, Json, MeanName, path

__all__ = ["pull", "push"]


def push(
    folder: Folder,
    repo: Annotated[str | None, typer.Argument(metavar="OWNER/NAME", help="Name on the hub.")] = None,
    only_folder: Annotated[
        Path | None,
        typer.Option("--folder", parser=path, metavar="DIR", help="Only write this folder; upload nothing."),
    ] = None,
    members: Annotated[
        str | None,
        typer.Option(
            help="Members to share, e.g. `mode-0,I-0-1-small`. Default: what `advise` recommends for a budget of 1.2, "
            "without cascades.",
            metavar="NAMES",
        ),
    ] = None,
    mean: MeanName = "probability",
    license: Annotated[str, typer.Option(help="License of the weights, e.g. apache-2.0 or mit.", metavar="ID")] = "",
    datasets: Annotated[
        str | None, typer.Option("--dataset", help="Data sets on the hub, separated by commas.", metavar="NAMES")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    as_json: Json = False,
) -> None:
    """Share modes, students and bridges of a run folder on the Hugging Face Hub, with a model card of their scores.

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
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Name on the hub.")],
    folder: Annotated[
        Path | None, typer.Argument(parser=path, metavar="DIR", help="Folder to write. Default: ./NAME.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit. Default: main.")] = None,
    as_json: Json = False,
) -> None:
    """Download a shared ensemble from the Hugging Face Hub to a folder, and verify it.

    Example: `modebridge pull me/digits-bridge`, then `modebridge.load("digits-bridge")` in Python.
    """
    from modebridge.cli import share_commands

    share_commands.pull_repo(repo, folder, revision=revision, as_json=as_json)
