"""Before a run trains: the recipe of its folder, modes from elsewhere, and facts about its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from modebridge.deploy.inputs import pixel_doubts
from modebridge.errors import ModebridgeError, near
from modebridge.files.atomic import FILES, Damage, read_stored
from modebridge.files.checkpoints import load_checkpoints, weight_files
from modebridge.members import ModeMember, Setting, key_of, members_of
from modebridge.modes import Mode
from modebridge.recipes import DataFacts, Recipe, differences, from_toml, to_toml
from modebridge.recipes.user_code import load_file
from modebridge.runs.store import RECIPE, RESULTS, RunFolder

DATA, GIVEN = "data.json", "given.json"
LEAK = (
    "Validation images are split off train: if the given networks saw all of train, temperatures, cascades and advice "
    "are fitted on training images; pass validation images that no checkpoint was trained on: return (train, valid, "
    "test), or add a folder valid beside train."
)


def existing(path: Path | str, *, writes: bool = True) -> RunFolder:
    """Open the run folder at a path, for writing if wanted and permitted; raises an error if there is none."""
    if not (Path(path) / RECIPE).exists():
        raise _no_run(path)
    return RunFolder(path, writes=writes)


def _no_run(path: Path | str) -> ModebridgeError:
    why = "is a file" if Path(path).is_file() else f"has no {RECIPE}" if Path(path).is_dir() else "does not exist"
    others = [f"{file.parent}" for place in (Path(path).parent, Path("runs")) for file in place.glob(f"*/{RECIPE}")]
    hint = near(f"{path}", dict.fromkeys(others)) if others else f"a run makes one: modebridge run --out {path}."
    return ModebridgeError(f"Expected '{path}' to be a run folder, but it {why}; {hint}")


def recipe_in(folder: RunFolder) -> tuple[Recipe, int] | None:
    """The recipe and seed in a folder's recipe.toml, which users may edit; None if there is none."""
    file = folder.path / RECIPE
    try:
        recipe, seed = from_toml(file.read_bytes(), str(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModebridgeError(
            f"Expected '{file}' to be a file of settings, but got '{error}'; fix it, or move it away."
        ) from None
    if recipe.members_file:
        load_file(Path(recipe.members_file))
    return recipe, seed


def find_recipe_of(folder: RunFolder) -> tuple[Recipe, int]:
    """The same; raises an error if there is none."""
    found = recipe_in(folder)
    if found is None:
        raise _no_run(folder.path)
    return found


def check_folder(folder: RunFolder, recipe: Recipe, seed: int) -> tuple[Recipe, int] | None:
    """What `recipe_in` finds in a folder; raises an error if it belongs to another recipe or seed."""
    before = recipe_in(folder)
    if before is not None and (before[0].name, before[1]) != (recipe.name, seed):
        raise ModebridgeError(
            f"Expected '{folder.path}' to be a folder for recipe {recipe.name}, seed {seed}, but it holds "
            f"{before[0].name}, seed {before[1]}; choose another with --out."
        )
    return before


def begin(folder: RunFolder, recipe: Recipe, seed: int, *, study: bool = False) -> list[str]:
    """Check a folder before a run in it, and write the recipe; raises an error if it belongs to something else.

    A finished run stays what it is if a study with other settings follows: its page and its advice rest on its recipe.

    Returns sentences to show before training: which settings have changed since the last run.
    """
    members_of(recipe)  # raises an error for unknown methods
    written = check_folder(folder, recipe, seed)
    settings = folder.record(RESULTS).get("settings")
    before = from_toml(settings, RESULTS) if isinstance(settings, str) else written
    changes = differences(before[0], recipe) if before is not None else []
    if folder.read_only and changes:
        raise ModebridgeError(
            f"Expected '{folder.path}' to be writable, because its settings change ({'; '.join(changes)}), but it is "
            "read-only; choose another folder with --out."
        )
    if study and folder.record(DATA):
        return []
    if folder.writes and written != (recipe, seed):
        folder.begin(to_toml(recipe, seed))
    said = f"Changed since the last run in this folder: {'; '.join(changes)}."
    return [said] if changes else []


def find_modes(net: nn.Module, place: Path) -> list[Mode]:
    """At least two different modes from weight files, the `modes` folder of another run, or one file with several."""
    if not place.exists():
        raise ModebridgeError(
            f"Expected '{place}' to be a folder of checkpoints, but it does not exist; check the path."
        )
    for metadata_file in sorted(place.glob(f"*/{FILES[1]}")):
        try:
            read_stored(metadata_file.parent)
        except Damage as damage:  # its weights might still load
            raise ModebridgeError(
                f"Expected '{metadata_file.parent}' to be a mode of a run, but it is damaged ({damage.reason}); "
                "recreate it with that run, or copy it again."
            ) from None
    modes = load_checkpoints(net, place)
    if len(modes) < 2:
        raise ModebridgeError(
            f"Expected at least 2 networks in '{place}', but got {len(modes)}; heads imitate others, so add a file."
        )
    if len({mode.id for mode in modes}) < len(modes):
        raise ModebridgeError("Expected the modes to differ, but two files hold the same weights; use each only once.")
    return modes


def checkpoint_names(place: Path, count: int) -> list[str]:
    """How to call the modes of a folder: by their files, if each has one."""
    files = weight_files(place) if place.is_dir() else []
    names = [str(file.relative_to(place)) for file in files]
    return names if len(names) == count else [f"mode {k} of {place.name}" for k in range(count)]


def doubts(folder: RunFolder) -> list[str]:
    """What is doubtful about the data of a run, one sentence each.

    Modes were passed, and validation images are split off train; or images are not what `predict` reads from files.
    """
    data = folder.record(DATA)
    said = [LEAK] if folder.record(GIVEN) and data.get("cut") else []
    return [*said, *pixel_doubts(data.get("pixels", (0, 1)))]


def given_keys(folder: RunFolder, recipe: Recipe, given: Mapping[int, str]) -> dict[str, str]:
    """The keys of modes that were trained elsewhere, from their ids: passed now, or to an earlier run in the folder."""
    before = folder.record(GIVEN)
    if GIVEN in folder.damage:
        raise ModebridgeError(
            f"Expected '{folder.path / GIVEN}' to name the modes that were passed to the run, but it is damaged "
            f"({folder.damage[GIVEN]}); pass them again with --modes, in a new folder."
        )
    ids = {**{int(k): str(id) for k, id in before.items()}, **given}
    keys: dict[str, str] = {}
    for k in (k for k in range(recipe.modes) if k in ids):
        place = ModeMember(k).place
        keys[place] = key_of("given", ids[k])
        if k not in given and folder.meta(place).get("key") != keys[place]:
            raise ModebridgeError(
                f"Expected '{folder.path / place}' to be the mode that was passed to the run, but "
                f"{folder.damage.get(place, 'it is missing')}; it was not trained here and cannot be recreated, so "
                "pass it again with --modes."
            )
    return keys


def setting_for(recipe: Recipe, seed: int = 0, folder: RunFolder | None = None) -> Setting:
    """A setting for use without training: the data need not be read if the folder knows the facts about it."""
    record = folder.record(DATA) if folder is not None else {}
    known = DataFacts.from_dict(record) if record else None
    return Setting(recipe, seed, None, known=known)
