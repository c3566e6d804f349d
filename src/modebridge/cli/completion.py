"""Shell completion: names of recipes and studies, run folders, exported files.

Nothing here imports torch, which would take seconds per key press; tests compare these names with the registered ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

__all__ = ["complete_exported", "complete_recipe", "complete_run_folder", "complete_study", "complete_target", "one_of"]

RECIPES = (
    *("digits", "cifar10-short", "cifar10-short-bn", "tin200-short", "tin200-short-bn", "cifar10", "cifar10-bn"),
    *("cifar100", "cifar100-bn", "tin200", "tin200-bn", "in1k", "in1k-bn"),
)
STUDIES = (
    *("type1", "type2", "correspondence", "r-position", "r-ablation", "bridge-size", "type-mix", "mode-choice", "swa"),
    *("comparison", "shift"),
)
LEVELS = 2
"""Depth of the search below the typed folder: `runs/digits` is found from an empty word."""
MOST_ENTRIES = 2000
"""Maximum number of directory entries to visit: data sets have a million files."""

SAFE = re.compile(r"[\w./~+@%,-]*")  # characters that need no quotes in any shell


def one_of(*names: str) -> Callable[[str], list[str]]:
    """A completion function for a fixed set of names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _paths(*kinds: Callable[[str], bool]) -> Callable[[str], list[str]]:
    """A completion function for paths of any of these kinds; if there are none, the shell falls back to files."""

    def complete(incomplete: str) -> list[str]:
        # The folder is kept as it was typed, with its `~` or `./`: shells drop what does not start with the word.
        parent, slash, start = incomplete.rpartition("/")
        paths = _walk(parent + slash, start, lambda path: any(kind(path) for kind in kinds), LEVELS, [MOST_ENTRIES])
        return sorted(path for path in paths if SAFE.fullmatch(path))

    return complete


def _is_run_folder(path: str) -> bool:
    return any(os.path.exists(f"{path}/{name}") for name in ("recipe.toml", "manifest.json"))  # noqa: PTH110 - faster


def _is_exported(path: str) -> bool:
    return path.endswith((".onnx", ".pt2"))


complete_recipe = one_of(*RECIPES)
complete_study = one_of(*STUDIES)
complete_run_folder = _paths(_is_run_folder)
complete_exported = _paths(_is_exported)
complete_target = _paths(_is_run_folder, _is_exported)


def _walk(folder: str, start: str, wanted: Callable[[str], bool], levels: int, budget: list[int]) -> Iterator[str]:
    """Wanted paths below a folder, but none inside of them; hidden ones only if their dot was typed."""
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:  # noqa: PTH111 - a Path would lose `./`
            for entry in entries:
                budget[0] -= 1
                if budget[0] < 0:
                    return
                if not entry.name.startswith(start) or (entry.name.startswith(".") and not start):
                    continue
                if wanted(entry.path):
                    yield folder + entry.name
                elif levels > 1 and entry.is_dir():
                    yield from _walk(f"{folder}{entry.name}/", "", wanted, levels - 1, budget)
    except OSError:  # not a folder, or no permission
        return
