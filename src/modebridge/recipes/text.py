"""Recipes as text: `--set key=value`, recipe.toml, and a user's own file."""

from __future__ import annotations

import json
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from modebridge.errors import ModebridgeError, near
from modebridge.recipes.recipe import Recipe, located
from modebridge.recipes.user_code import load_file, run_file

T = TypeVar("T")

LARGEST = 1_000_000
"""Maximum size of a recipe file, in bytes."""


def keys_of(recipe: Recipe) -> dict[str, Any]:
    """Every setting of a recipe by its dotted key.

    >>> from modebridge.recipes import find_recipe
    >>> keys_of(find_recipe("digits"))["mode.epochs"]
    20
    """
    keys: dict[str, Any] = {}
    for name, value in vars(recipe).items():
        keys |= {f"{name}.{key}": one for key, one in vars(value).items()} if is_dataclass(value) else {name: value}
    return keys


def _tables(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The settings by table; the recipe's own in ""."""
    tables: dict[str, dict[str, Any]] = {"": {}}
    for key, value in keys_of(recipe).items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, {})[name] = value
    return tables


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe with some settings replaced, each "key=value", checked against the type of the key.

    All at once, so that settings that depend on each other can come in any order.

    >>> from modebridge.recipes import find_recipe
    >>> changed(find_recipe("digits"), ["mode.epochs=3", "norm=frn", "sizes=small,medium"]).mode.epochs
    3
    """
    known, tables = keys_of(recipe), _tables(recipe)
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ModebridgeError(
                f"Expected --set to be key=value, but got '{_short(setting)}'; write for example modes=3."
            )
        if key not in known:
            below = [other for other in known if other.startswith(f"{key}.")]
            hint = f"set one of {', '.join(below)}." if below else near(key, known)
            raise ModebridgeError(f"Expected a setting of the recipe, but got '{_short(key)}'; {hint}")
        table, _, name = key.rpartition(".")
        tables[table][name] = text
    return _build(Recipe, tables.pop("") | tables, "", "--set") if settings else recipe


def _read(text: object, kind: Any, key: str) -> Any:
    """Convert text from a user, or a TOML value, to a type."""

    def wrong(expected: str) -> ModebridgeError:
        return ModebridgeError(f"Expected {key} to be {expected}, but got '{_short(text)}'; change the value.")

    if isinstance(text, dict) or (isinstance(text, list | tuple) and get_origin(kind) is not tuple):
        raise wrong("a single value")
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise wrong("one of " + ", ".join(map(str, get_args(kind))))
        return text
    if get_origin(kind) is tuple:
        items = text if isinstance(text, list | tuple) else filter(None, map(str.strip, str(text).split(",")))
        return tuple(_read(item, get_args(kind)[0], key) for item in items)
    if kind is bool:
        booleans = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(text).lower() not in booleans:
            raise wrong("true or false")
        return booleans[str(text).lower()]
    try:
        return kind(str(text))  # int, float or str
    except ValueError:
        raise wrong("an integer" if kind is int else "a number") from None


def to_toml(recipe: Recipe, seed: int) -> str:
    """A recipe and its seed as TOML, with all that is needed to repeat the run."""
    lines = ["# What this run was made with; `modebridge run recipe.toml` repeats it.", f"seed = {seed}"]
    for table, values in _tables(recipe).items():
        lines += ["", f"[{table}]"] if table else []
        lines += [f"{name} = {_toml(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # TOML strings are like JSON strings
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)


def from_toml(text: str, where: str, beside: Path | None = None) -> tuple[Recipe, int]:
    """A recipe and its seed, from TOML by `to_toml` or by hand; `beside` is the base of relative paths."""
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ModebridgeError(
            f"Expected '{where}' to be a recipe, but it is nested too deeply; fix the file."
        ) from None
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise ModebridgeError(f"Expected '{where}' to be TOML, but got '{error}'; fix the file.") from None
    seed = document.pop("seed", 0)
    if type(seed) is not int:
        raise ModebridgeError(
            f"Expected seed in '{where}' to be an integer, but got '{_short(seed)}'; change the value."
        )
    for table, key in ((document, "net"), (document.get("data"), "name")):
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = located(table[key], beside)
    return _build(Recipe, document, "", where), seed


def _read_toml(file: Path) -> tuple[Recipe, int]:
    with file.open("rb") as stream:
        raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise ModebridgeError(
            f"Expected '{file}' to be a recipe, but it is larger than {LARGEST:,} bytes; check the path."
        )
    try:
        return from_toml(raw.decode("utf-8-sig"), str(file), file.parent.resolve())
    except UnicodeDecodeError as error:
        raise ModebridgeError(
            f"Expected '{file}' to be text in UTF-8, but byte {error.start} is not; save it as UTF-8."
        ) from None


def _short(value: object) -> str:
    """A value for a message, shortened if it is long or deep."""
    try:
        text = str(value)
    except (RecursionError, ValueError):
        return type(value).__name__
    return text if len(text) <= 80 else text[:80] + " ..."


def _build(kind: type[T], document: Mapping[str, Any], parent: str, where: str) -> T:
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name not in hints:
            raise ModebridgeError(
                f"Expected the settings of a recipe in '{where}', but got '{_short(parent + name)}'; "
                f"{near(name, hints)}"
            )
        if not is_dataclass(hints[name]):
            values[name] = _read(value, hints[name], parent + name)
        elif isinstance(value, Mapping):
            values[name] = _build(typing.cast("type[Any]", hints[name]), value, f"{name}.", where)
        else:
            raise ModebridgeError(
                f"Expected [{name}] in '{where}' to be a table of settings, but got '{_short(value)}'; write a table."
            )
    try:
        return kind(**values)
    except TypeError as error:
        missing = str(error).partition(": ")[2]
        raise ModebridgeError(
            f"Expected '{where}' to have every setting of {parent.rstrip('.') or 'a recipe'}, but it lacks {missing}; "
            "add it."
        ) from None


def from_file(path: Path) -> tuple[Recipe, int | None]:
    """A recipe from a user's .toml file with its seed, or from `recipe()` in a .py file, which is executed."""
    if not path.is_file():
        raise ModebridgeError(f"Expected a recipe in '{path}', but there is no such file; check the path.")
    if path.name.endswith(".toml"):
        return _read_toml(path)
    make = getattr(load_file(path), "recipe", None)
    recipe = run_file(path, f"recipe() in '{path}' to run", make) if callable(make) else None
    if not isinstance(recipe, Recipe):
        raise ModebridgeError(
            f"Expected '{path}' to have a function recipe() that returns a Recipe, but got {type(recipe).__name__}; "
            "start from an existing one: replace(find_recipe('digits'), ...)."
        )
    return recipe, None


def differences(before: Recipe, now: Recipe) -> list[str]:
    """The settings that differ between two recipes, as text."""
    old, new = keys_of(before), keys_of(now)
    return [f"{key} {old[key]} -> {value}" for key, value in new.items() if old[key] != value and key != "about"]
