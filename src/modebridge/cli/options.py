"""The arguments and options that verbs share, and all that are paths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modebridge.cli.completion import (
    complete_exported,
    complete_recipe,
    complete_run_folder,
    complete_target,
    one_of,
)

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
    "PerStage",
    "RecipeName",
    "Seed",
    "Settings",
    "Shared",
    "Target",
    "Threshold",
    "path",
]


def path(text: str) -> Path:
    """A path that a user gives; an empty one would be the current folder."""
    if not text:
        raise typer.BadParameter("Expected a path, but got an empty one; name a place, or leave it out.")
    return Path(text)


RecipeName = Annotated[
    str | None,
    typer.Argument(
        help="A name of `modebridge recipes`, or your own file (.toml; .py, which is executed: only run one that you "
        "trust); else that of the run folder, else digits.",
        autocompletion=complete_recipe,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace a setting, as `mode.epochs=3`; may be given again.", metavar="KEY=VALUE"),
]
Seed = Annotated[int | None, typer.Option(help="Of every random choice; 0 unless the recipe's file says otherwise.")]
Data = Annotated[
    Path | None,
    typer.Option(parser=path, metavar="DIR", help="The data set's official files; else MODEBRIDGE_DATA, else ./data."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", autocompletion=one_of("auto", "cpu", "cuda"))]
On = Annotated[
    str | None,
    typer.Option(
        metavar="RAY",
        help="Make stages as tasks of Ray: `ray` for this machine, or a running cluster's address: `auto`, HOST:6379, "
        "ray://HOST:10001.",
    ),
]
GpusPerStage = Annotated[
    float | None, typer.Option(metavar="X", help="With --on: the share of a GPU per stage; 0.5 puts two on a card.")
]
PerStage = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="At most N artefacts per stage of training: bridges, else one stage, become work for several GPUs.",
    ),
]
Shared = Annotated[
    Path | None,
    typer.Option(parser=path, metavar="DIR", help="With --on: a folder that every node sees, for checkpoints."),
]
Json = Annotated[bool, typer.Option("--json", help="Results as JSON on standard output.")]
AverageCost = Annotated[
    float | None, typer.Option(help="In networks: surer images get the first network alone.", metavar="X")
]
Threshold = Annotated[
    float | None, typer.Option(help="Surer images get the first network alone; 2 asks all members.", metavar="T")
]
MeanName = Annotated[
    str,
    typer.Option(
        "--mean",
        help="Of members: of their probability, the paper's, or logarithmic, of their logits.",
        autocompletion=one_of("probability", "logarithmic"),
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        parser=path,
        metavar="DIR",
        help="The run folder; runs/RECIPE by default.",
        autocompletion=complete_run_folder,
    ),
]
Folder = Annotated[
    Path, typer.Argument(parser=path, help="A run folder.", metavar="DIR", autocompletion=complete_run_folder)
]
NewFile = Annotated[
    Path, typer.Argument(parser=path, metavar="FILE", help="To be written: .onnx, or .pt2 for torch.export.")
]
Exported = Annotated[
    Path,
    typer.Argument(parser=path, metavar="FILE", help="Made by `modebridge export`.", autocompletion=complete_exported),
]
Images = Annotated[
    list[Path] | None, typer.Argument(parser=path, metavar="IMAGES...", help="Files, or folders of them.")
]
Target = Annotated[
    Path | None,
    typer.Argument(
        parser=path, metavar="DIR|FILE", help="A run folder or an exported file.", autocompletion=complete_target
    ),
]
Modes = Annotated[
    Path | None, typer.Option(parser=path, metavar="DIR", help="Use these trained modes: a folder of checkpoints.")
]
Page = Annotated[Path | None, typer.Option(parser=path, metavar="FILE", help="The page; DIR/report.html by default.")]
