"""Print the figures of the house: its size, and how much a reader or a call has to go through."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import warnings
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "modebridge"


def tracked(pattern: str) -> list[Path]:
    """The tracked files that match a pattern of git."""
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.splitlines() if (path := ROOT / name).exists()]


def lines_of(files: list[Path]) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in files)


def files_in_fit_bridge() -> list[str]:
    """Our files whose functions run in `fit_bridge(net, modes, data, budget=)` on a small network."""
    import torch
    from torch import nn

    import modebridge as mb

    warnings.simplefilter("ignore")  # these networks are not trained

    def small() -> nn.Module:
        layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

    images, labels = torch.rand(24, 1, 8, 8), torch.arange(24) % 3
    data = [(images[:12], labels[:12]), (images[12:], labels[12:])]
    modes = [mb.Mode.from_module(small()) for _ in range(2)]
    config = mb.TrainConfig(epochs=1)
    mb.fit_bridge(small(), modes, data, budget=0.3, config=config)  # imports everything
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        mb.fit_bridge(small(), modes, data, budget=0.3, config=config)
    finally:
        sys.setprofile(None)
    return sorted(str(Path(name).relative_to(SOURCE)) for name in seen if name.startswith(str(SOURCE)))


def cli_options() -> dict[str, int]:
    """The number of options and arguments of every verb, without --help."""
    import typer

    from modebridge.cli.app import app

    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    return {name: sum(parameter.name != "help" for parameter in verb.params) for name, verb in group.commands.items()}


def recipe_keys() -> list[str]:
    """The keys of a recipe file, `mode.epochs` counted as one."""
    from modebridge.recipes import find_recipe

    recipe = find_recipe("digits")
    keys: list[str] = []
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        nested = [f"{field.name}.{inner.name}" for inner in dataclasses.fields(value)] if _is_record(value) else []
        keys += nested or [field.name]
    return keys


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def main() -> None:
    import modebridge as mb

    source, tests = tracked("src/*.py"), tracked("tests/*.py")
    used, options, keys = files_in_fit_bridge(), cli_options(), recipe_keys()
    size = sum(path.stat().st_size for path in tracked("*")) / 1e6
    parameters = {name: len(inspect.signature(getattr(mb, name)).parameters) for name in ("fit_bridge", "export")}
    rows = [
        # 21,000 and 14,000 for the core, 900 and 500 for decisions, 1,000 and 500 for transformers and optimizers, 800
        # and 500 for segmentation, 300 and 300 for cascades, comparisons and the verdict, 300 and 400 for mistakes that
        # new users made; 125 files, and some for each.
        ("lines of src / files", f"{lines_of(source):,} / {len(source)}", "24,300 / 137"),
        ("lines of tests", f"{lines_of(tests):,}", "16,200"),
        ("files that run code in one fit_bridge", str(len(used)), "22"),
        ("CLI options / recipe keys", f"{sum(options.values())} / {len(keys)}", "60 / 45"),
        ("tracked tree", f"{size:.1f} MB", "15 MB"),
        ("parameters of fit_bridge / export", f"{parameters['fit_bridge']} / {parameters['export']}", "10 / 10"),
        ("longest file of src", f"{max(lines_of([path]) for path in source)}", "300"),
    ]
    width = max(len(row[0]) for row in rows)
    print(f"{'figure':{width}}  {'now':>14}  at most")
    for title, now, bar in rows:
        print(f"{title:{width}}  {now:>14}  {bar}")
    if "--verbose" in sys.argv:
        print("\nfit_bridge:", *used, sep="\n  ")
        print("\noptions:", *(f"{verb} {count}" for verb, count in options.items()), sep="\n  ")
        print("\nrecipe keys:", ", ".join(keys))


if __name__ == "__main__":
    main()
