"""The recipe of a run folder: what it was made with, what recipe.toml says now, and what a run does about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modebridge.errors import ModebridgeError
from modebridge.recipes import Recipe, differences, from_toml, to_toml
from modebridge.recipes.user_code import load_file
from modebridge.runs.folder import RunFolder
from modebridge.runs.manifest import MANIFEST, RECIPE

__all__ = ["begin", "check_folder", "find_recipe_of", "known_recipe_of", "recipe_to_go_on_with"]


@dataclass(frozen=True)
class _Kept:
    """The recipe and seed of a run folder.

    Args:
        made: those that the folder was made with, as far as that is known.
        now: those that recipe.toml has now.
        text: of recipe.toml now; None where it is lost.
        wrong: why recipe.toml cannot be read, empty where it can.
    """

    made: tuple[Recipe, int] | None
    now: tuple[Recipe, int] | None
    text: str | None
    wrong: str = ""

    @property
    def change(self) -> str:
        """What has happened to recipe.toml since it was written, in words; empty where it says the same."""
        if self.made is None or self.now == self.made:
            return ""
        if self.text is None:
            return "is missing"
        if self.now is None:
            return "can no longer be read"
        notices = differences(self.made[0], self.now[0])
        if self.made[1] != self.now[1]:
            notices.append(f"seed {self.made[1]} -> {self.now[1]}")
        return f"was changed since the run ({'; '.join(notices) or 'about'})"


def find_recipe_of(folder: RunFolder) -> tuple[Recipe, int]:
    """The recipe and seed that a run folder was made with; refuses one whose recipe.toml says something else."""
    kept_recipe = known_recipe_of(folder)
    if kept_recipe is None:
        raise ModebridgeError(
            f"Expected '{folder.path}' to be a run folder, but it has no recipe.toml; "
            f"make one: modebridge run --out {folder.path}"
        )
    return kept_recipe


def known_recipe_of(folder: RunFolder) -> tuple[Recipe, int] | None:
    """The same; None where no recipe was ever written down."""
    kept, file = _look(folder), folder.path / RECIPE
    if kept.change and kept.text is not None:
        raise ModebridgeError(
            f"Expected '{file}' to say what the run was made with, but it {kept.change}; if you want that, run it: "
            f"modebridge run {file} --out {folder.path}, else delete it: modebridge run --out {folder.path} writes it "
            "again."
        )
    if kept.change:
        raise ModebridgeError(
            f"Expected '{file}' to say what the run was made with, but it is missing; write it again: "
            f"modebridge run --out {folder.path}"
        )
    if kept.wrong:
        raise ModebridgeError(kept.wrong)
    return kept.made or kept.now


def recipe_to_go_on_with(path: Path) -> tuple[Recipe, int, str] | None:
    """The recipe and seed for another run in a folder, and where they are from; None where nothing is in it yet.

    What recipe.toml says now counts: it may be changed by hand.
    """
    if not path.is_dir():
        return None
    folder = RunFolder(path, writes=False)
    kept, file = _look(folder), path / RECIPE
    if kept.now is not None:
        return *kept.now, str(file)
    if kept.wrong:
        known = f" Or delete it: {MANIFEST} has the settings of the last run." if kept.made is not None else ""
        raise ModebridgeError(kept.wrong + known)
    if kept.made is not None:
        return *kept.made, f"{path / MANIFEST}, because {RECIPE} is missing"
    if _has_artefacts(folder):
        raise ModebridgeError(
            f"Expected '{file}' to say what the run was made with, but it is missing; name the recipe: "
            f"modebridge run RECIPE --out {path}"
        )
    return None


def check_folder(folder: RunFolder, recipe: Recipe, seed: int) -> None:
    """Refuse a folder of another recipe, seed or version."""
    kept = _look(folder)
    before = kept.made or kept.now
    if before is not None and (before[0].name, before[1]) != (recipe.name, seed):
        since = f" ({RECIPE} {kept.change})" if kept.change else ""
        raise ModebridgeError(
            f"Expected '{folder.path}' to be a folder for recipe {recipe.name}, seed {seed}, but it holds "
            f"{before[0].name}, seed {before[1]}{since}; choose another with --out."
        )
    _check_version(folder)


def begin(folder: RunFolder, recipe: Recipe, seed: int) -> list[str]:
    """Look at a folder before a run in it, and write down what it is made with; refuse a folder of something else.

    Returns:
        What is to be said before anything is trained, a sentence each: what is damaged, and which settings have
        changed since the last run.
    """
    check_folder(folder, recipe, seed)
    kept = _look(folder)
    before = kept.made or kept.now
    notices: list[str] = []
    if kept.change or kept.wrong:
        notices.append(f"{RECIPE} {kept.change or 'cannot be read'}; it will say what this run is made with.")
    elif before is None and _has_artefacts(folder):
        notices.append(f"{RECIPE} is missing; what was made with other settings than these is made again.")
    changes = differences(before[0], recipe) if before is not None else []
    if changes:
        notices.append(
            f"Changed since the last run in this folder: {'; '.join(changes)}. What depends on that is made again."
        )
    if folder.read_only and changes:
        raise ModebridgeError(
            f"Expected '{folder.path}' to be writable, because its settings change ({'; '.join(changes)}), but it is "
            "read-only; choose another folder with --out."
        )
    if folder.writes:
        notices += folder.mend()
        text = kept.text if kept.text is not None and kept.now == (recipe, seed) else to_toml(recipe, seed)
        folder.files.write({RECIPE: text})
    return notices


def _look(folder: RunFolder) -> _Kept:
    text, written = folder.files.recipe()
    file = str(folder.path / RECIPE)
    made = _read(written, str(folder.path / MANIFEST))[0] if written is not None else None
    now, wrong = _read(text, file) if text is not None else (None, "")
    return _Kept(made, now, text, wrong)


def _read(text: str, where: str) -> tuple[tuple[Recipe, int] | None, str]:
    try:
        recipe, seed = from_toml(text, where)
        if recipe.members_file:
            load_file(Path(recipe.members_file))
        return (recipe, seed), ""
    except ModebridgeError as error:
        return None, str(error)
    except (ValueError, TypeError, RecursionError):
        return None, f"Expected '{where}' to be the settings of a recipe in TOML, but it is not; mend it."


def _has_artefacts(folder: RunFolder) -> bool:
    return bool(folder.places())


def _check_version(folder: RunFolder) -> None:
    """Refuse to train on in a folder of an earlier version, whose artefacts do not say which parents they have."""
    for place in folder.places():
        meta = folder.peek(place)
        if meta and "inputs" not in meta:
            raise ModebridgeError(
                f"Expected '{folder.path}' to be a run of this version, but {place} was made by an earlier one; "
                "report, advise and export still read it, and a new run takes its modes: modebridge run "
                f"{folder.path / RECIPE} --modes {folder.path / 'modes'} --out NEW."
            )
