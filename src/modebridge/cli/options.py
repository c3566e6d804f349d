"""Arguments and options shared by several verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def path(text: str) -> Path:
    """Parse a path; an empty one is refused, since it would mean the current folder."""
    if not text:
        raise typer.BadParameter("Expected a path, but got an empty string; give a path, or leave it out.")
    return Path(text)


RecipeName = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe name (see `modebridge recipes`) or a file: .toml, or .py, which is executed, so run only files "
        "you trust. Default: the recipe of the run folder, else digits.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting, e.g. `mode.epochs=3`; repeatable.", metavar="KEY=VALUE"),
]
Seed = Annotated[
    int | None, typer.Option(help="Random seed. Default: the seed in the recipe file, else 0.", metavar="N")
]
Data = Annotated[
    Path | None,
    typer.Option(
        parser=path,
        metavar="DIR",
        help="Folder with the official files of the data set. Default: $MODEBRIDGE_DATA, else ./data.",
    ),
]
Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
Threshold = Annotated[
    float | None,
    typer.Option(
        help="Images at least this confident use only the first network; 2 runs all members on every image.",
        metavar="T",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(parser=path, metavar="DIR", help="Run folder. Default: runs/RECIPE."),
]
Folder = Annotated[Path, typer.Argument(parser=path, help="A run folder.", metavar="DIR")]
Exported = Annotated[
    Path,
    typer.Argument(parser=path, metavar="FILE", help="A file written by `modebridge export`."),
]
