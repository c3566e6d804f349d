"""Settings of nested dataclasses by dotted key, such as "mode.epochs", converted by the types of their fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from modebridge.errors import ModebridgeError, near

LONGEST = 4096
"""Upper limit for the characters of a text."""


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key, from those by table: {"mode": {"epochs": 2}} is {"mode.epochs": 2}."""
    settings: dict[str, Any] = {}
    for name, value in values.items():
        inner = vars(value) if is_dataclass(value) else value
        settings |= (
            {f"{name}.{key}": one for key, one in inner.items()} if isinstance(inner, Mapping) else {name: value}
        )
    return settings


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by table, from those by dotted key: the inverse of `flat`."""
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        (tables.setdefault(table, {}) if table else tables)[name] = value
    return tables


@cache
def kinds_of(kind: type) -> dict[str, Any]:
    """The types of all settings of a dataclass, by dotted key."""
    hints = get_type_hints(kind)
    return flat({name: get_type_hints(hint) if is_dataclass(hint) else hint for name, hint in hints.items()})


def check_key(key: str, known: Iterable[str], where: str) -> None:
    """Raise an error if there is no such setting; `where` it was found."""
    if key in known:
        return
    inner = [other for other in known if other.startswith(f"{key}.")]
    hint = f"set one of {', '.join(inner)}." if inner else near(key[:80], known)
    if key.rpartition(".")[2] == "seed":
        hint = "a run has one seed, for everything: use --seed, or `seed = N` at the top of the file."
    raise ModebridgeError(f"Expected a setting of a recipe in {where}, but got '{short(key)}'; {hint}")


def converted(
    kind: type, settings: Mapping[str, object], limits: Mapping[str, tuple[float, float]]
) -> dict[str, object]:
    """Settings of a dataclass as the types of their fields, from such values or from text, within their limits."""
    kinds = kinds_of(kind)
    result: dict[str, Any] = {}
    for key, value in settings.items():
        check_key(key, kinds, "Recipe(...)")
        result[key] = _read(key, value, kinds[key])
        low, high = limits.get(key, (None, None))
        if low is not None and not low <= result[key] <= high:
            got = short(result[key])
            raise ModebridgeError(f"Expected {key} to be between {low:,} and {high:,}, but got {got}; change it.")
    return result


def _read(key: str, value: object, kind: Any) -> Any:
    def wrong(expected: str) -> ModebridgeError:
        return ModebridgeError(f"Expected {key} to be {expected}, but got '{short(value)}'; change the value.")

    if get_origin(kind) is tuple:
        items = value if isinstance(value, list | tuple) else filter(None, map(str.strip, str(value).split(",")))
        return tuple(dict.fromkeys(_read(key, item, get_args(kind)[0]) for item in items))
    if isinstance(value, dict | list | tuple):
        raise wrong("a single value")
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise wrong("one of " + ", ".join(get_args(kind)))
        return value
    if kind is bool:
        booleans = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in booleans:
            raise wrong("true or false")
        return booleans[str(value).lower()]
    try:
        result = kind(str(value))  # int, float or str
    except ValueError:
        raise wrong("an integer" if kind is int else "a number") from None
    # Lone surrogates, as from file names that are not UTF-8, cannot be written.
    if kind is str and (len(result) > LONGEST or result.encode(errors="replace").decode() != result):
        raise wrong(f"a text of at most {LONGEST:,} characters")
    return result


def short(value: object) -> str:
    """A value for a message, shortened if it is long."""
    text = str(value)
    return text if len(text) <= 80 else text[:80] + " ..."
