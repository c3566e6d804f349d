"""The recipe of a run folder: the one it was made with, the current recipe.toml, and how a run handles differences."""

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
class _RecipeState:
    """The recipe and seed of a run folder.

    Args:
        made: those that the folder was made with, if known.
        now: those in recipe.toml now.
        text: the current text of recipe.toml; None if it is missing.
        wrong: why recipe.toml cannot be read; empty if it can.
    """

    made: tuple[Recipe, int] | None
    now: tuple[Recipe, int] | None
    text: str | None
    wrong: str = ""

    @property
    def change(self) -> str:
        """What has happened to recipe.toml since it was written, as text; empty if nothing has changed."""
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
    """The recipe and seed that a run folder was made with; raises an error if its recipe.toml has changed."""
    recipe = known_recipe_of(folder)
    if recipe is None:
        raise ModebridgeError(
            f"Expected '{folder.path}' to be a run folder, but it has no recipe.toml; "
            f"create one: modebridge run --out {folder.path}"
        )
    return recipe


def known_recipe_of(folder: RunFolder) -> tuple[Recipe, int] | None:
    """The same; None if no recipe was ever written."""
    state, file = _recipe_state(folder), folder.path / RECIPE
    if state.change:
        restore = f"modebridge run --out {folder.path}"
        change = f"to apply the change, run modebridge run {file} --out {folder.path}, or delete the file: {restore}"
        hint = f"restore it: {restore}" if state.text is None else f"{change} restores it."
        raise ModebridgeError(f"Expected '{file}' to hold the settings of the run, but it {state.change}; {hint}")
    if state.wrong:
        raise ModebridgeError(state.wrong)
    return state.made or state.now


def recipe_to_go_on_with(path: Path) -> tuple[Recipe, int, str] | None:
    """The recipe and seed for another run in a folder, and where they come from; None if the folder is empty.

    The current recipe.toml counts: users may edit it.
    """
    if not path.is_dir():
        return None
    folder = RunFolder(path, writes=False)
    state, file = _recipe_state(folder), path / RECIPE
    if state.now is not None:
        return *state.now, str(file)
    if state.wrong:
        hint = f" Or delete it: {MANIFEST} has the settings of the last run." if state.made is not None else ""
        raise ModebridgeError(state.wrong + hint)
    if state.made is not None:
        return *state.made, f"{path / MANIFEST}, because {RECIPE} is missing"
    if folder.places():
        raise ModebridgeError(
            f"Expected '{file}' to hold the settings of the run, but it is missing; name the recipe: "
            f"modebridge run RECIPE --out {path}"
        )
    return None


def check_folder(folder: RunFolder, recipe: Recipe, seed: int) -> None:
    """Raise an error if a folder belongs to another recipe, seed or version."""
    state = _recipe_state(folder)
    before = state.made or state.now
    if before is not None and (before[0].name, before[1]) != (recipe.name, seed):
        since = f" ({RECIPE} {state.change})" if state.change else ""
        raise ModebridgeError(
            f"Expected '{folder.path}' to be a folder for recipe {recipe.name}, seed {seed}, but it holds "
            f"{before[0].name}, seed {before[1]}{since}; choose another with --out."
        )
    for place in folder.places():
        meta = folder.peek(place)
        if meta and "inputs" not in meta:  # artefacts of earlier versions do not record their parents
            raise ModebridgeError(
                f"Expected '{folder.path}' to be a run of this version, but {place} was created by an earlier one; "
                "report, advise and export still read it, and a new run can reuse its modes: modebridge run "
                f"{folder.path / RECIPE} --modes {folder.path / 'modes'} --out NEW."
            )


def begin(folder: RunFolder, recipe: Recipe, seed: int) -> list[str]:
    """Check a folder before a run in it, and write the recipe; raises an error if it belongs to something else.

    Returns:
        Notices to show before training, one sentence each: what is damaged, and which settings have changed since the
        last run.
    """
    check_folder(folder, recipe, seed)
    state = _recipe_state(folder)
    before = state.made or state.now
    notices: list[str] = []
    if state.change or state.wrong:
        notices.append(f"{RECIPE} {state.change or 'cannot be read'}; it will hold the settings of this run.")
    elif before is None and folder.places():
        notices.append(f"{RECIPE} is missing; artifacts of other settings will be recomputed.")
    changes = differences(before[0], recipe) if before is not None else []
    if changes:
        notices.append(
            f"Changed since the last run in this folder: {'; '.join(changes)}. What depends on this is recomputed."
        )
    if folder.read_only and changes:
        raise ModebridgeError(
            f"Expected '{folder.path}' to be writable, because its settings change ({'; '.join(changes)}), but it is "
            "read-only; choose another folder with --out."
        )
    if folder.writes:
        notices += folder.mend()
        text = state.text if state.text is not None and state.now == (recipe, seed) else to_toml(recipe, seed)
        folder.files.write({RECIPE: text})
    return notices


def _recipe_state(folder: RunFolder) -> _RecipeState:
    text, written = folder.files.recipe()
    file = str(folder.path / RECIPE)
    made = _read(written, str(folder.path / MANIFEST))[0] if written is not None else None
    now, wrong = _read(text, file) if text is not None else (None, "")
    return _RecipeState(made, now, text, wrong)


def _read(text: str, where: str) -> tuple[tuple[Recipe, int] | None, str]:
    try:
        recipe, seed = from_toml(text, where)
        if recipe.members_file:
            load_file(Path(recipe.members_file))
        return (recipe, seed), ""
    except ModebridgeError as error:
        return None, str(error)
    except (ValueError, TypeError, RecursionError):
        return None, f"Expected '{where}' to be the settings of a recipe in TOML, but it is not; fix it."
