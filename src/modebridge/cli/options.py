"""Arguments and options shared by several verbs, and all paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AverageCost",
    "Data",
    "Device",
    "Exported",
    "Folder",
    "GpusPerStage",
    "Images",
    "Json",
    "MeanName",
    "Modes",
    "NewFile",
    "On",
    "Out",
    "Page",
    "RecipeName",
    "RunOptions",
    "Seed",
    "Settings",
    "Target",
    "Threshold",
    "path",
]


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
On = Annotated[
    str | None,
    typer.Option(
        metavar="RAY",
        help="Run stages as Ray tasks: `ray` for this machine, or the address of a running cluster: `auto`, HOST:6379, "
        "ray://HOST:10001.",
    ),
]
GpusPerStage = Annotated[
    float | None, typer.Option(metavar="X", help="With --on: GPUs per stage; 0.5 runs two stages on each GPU.")
]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
AverageCost = Annotated[
    float | None,
    typer.Option(
        help="Target average cost, in multiples of one network. Confident images use only the first network.",
        metavar="X",
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        help="Images at least this confident use only the first network; 2 runs all members on every image.",
        metavar="T",
    ),
]
MeanName = Annotated[
    str,
    typer.Option(
        "--mean",
        help="How members are averaged: probability (as in the paper), or logarithmic (mean of log-probabilities).",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(parser=path, metavar="DIR", help="Run folder. Default: runs/RECIPE."),
]
Folder = Annotated[Path, typer.Argument(parser=path, help="A run folder.", metavar="DIR")]
NewFile = Annotated[
    Path, typer.Argument(parser=path, metavar="FILE", help="File to write: .onnx, or .pt2 for torch.export.")
]
Exported = Annotated[
    Path,
    typer.Argument(parser=path, metavar="FILE", help="A file written by `modebridge export`."),
]
Images = Annotated[
    list[Path] | None, typer.Argument(parser=path, metavar="IMAGES", help="Image files, or folders of images.")
]
Target = Annotated[
    str,
    typer.Argument(
        parser=lambda text: str(path(text)),
        metavar="DIR|FILE|RECIPE",
        help="A run folder, an exported file, or a recipe.",
    ),
]
Modes = Annotated[
    Path | None, typer.Option(parser=path, metavar="DIR", help="Use trained modes from a folder of checkpoints.")
]
Page = Annotated[Path | None, typer.Option(parser=path, metavar="FILE", help="Output file. Default: DIR/report.html.")]


@dataclass(frozen=True)
class RunOptions:
    """What to run and where, as given on the command line: the options that `run`, `plan` and `study` share."""

    recipe: str | None = None
    out: Path | None = None
    settings: Sequence[str] | None = None
    seed: int | None = None
    data: Path | None = None
    device: str = "auto"
    modes: Path | None = None
