"""The metadata of a file as JSON, checked by one table of rules when written and when read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args

from modebridge.deploy.file_seal import SEAL
from modebridge.deploy.inputs import OUTPUTS, TYPES
from modebridge.ensembles import Mean
from modebridge.errors import ModebridgeError, first_line

__all__ = ["FORMAT", "KEY", "metadata_json", "read_metadata"]

FORMAT = 4
"""Version of the format; raised when older readers cannot read newer files.

2 adds inputs by name, 3 the logarithmic mean, 4 bridges with several heads.
"""

KEY = "modebridge"
"""The key of the JSON in a file."""

MOST = 2**28
"""Maximum number of values in one input, 1 GiB of floats per image; a larger shape is a sign of damage."""


Test: TypeAlias = Callable[[Any], bool]


def _whole(least: int) -> Test:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _text(value: Any) -> bool:
    # JSON can contain lone surrogates, which cannot be printed.
    return isinstance(value, str) and value == value.encode("utf-8", "ignore").decode()


def _all(test: Test, least: int = 0) -> Test:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(test, value))


def _shape(value: Any) -> bool:
    return _all(_whole(1))(value) and math.prod(value) <= MOST


def _input(value: Any) -> bool:
    return isinstance(value, dict) and _shape(value.get("shape")) and value.get("type") in TYPES


def _inputs(value: Any) -> bool:
    return isinstance(value, dict) and len(value) > 0 and all(map(_text, value)) and all(map(_input, value.values()))


def _outputs(value: Any) -> bool:
    return _all(lambda name: name in OUTPUTS)(value) and {"probabilities", "used"} <= set(value)


def _cost(value: Any) -> bool:
    numbers = dict(value) if isinstance(value, dict) else {}
    return _all(_number, 1)(numbers.pop("by_bridges", None)) and all(map(_number, numbers.values()))


def _place(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _whole(0)(value[0]) and _text(value[1])


def _plan(value: Any) -> bool:
    plan = value if isinstance(value, dict) else {}
    return _all(_all(_text), 1)(plan.get("taps")) and _all(_all(_place, 1))(plan.get("reads"))


_COUNT = "an integer of at least 1", _whole(1)
_FLAG = "true or false", lambda value: isinstance(value, bool)
_NAMES = "a list of names", _all(_text, 1)
_OBJECT = "an object", lambda value: isinstance(value, dict)
_POSITIVE = "a positive number", _positive
_TEXT = "text", _text

RULES: dict[str, tuple[str, Test]] = {
    "format": _COUNT,
    "classes": _NAMES,
    "image": ("null or a shape", lambda value: value is None or _shape(value)),
    "inputs": (f"shapes and types ({', '.join(TYPES)}) by name", _inputs),
    "members": _NAMES,
    "bases": _COUNT,
    "bridges": ("an integer of at least 0", _whole(0)),
    "heads": ("a list of integers of at least 1", _all(_whole(1))),
    "temperature": _POSITIVE,
    "temperatures": ("a list of positive numbers", _all(_positive, 1)),
    "first_temperature": _POSITIVE,
    "mean": (" or ".join(get_args(Mean)), lambda value: value in get_args(Mean)),
    "threshold": ("null or a number of at least 0", lambda value: value is None or (_number(value) and value >= 0)),
    "elastic": _FLAG,
    "outputs": (f"a list of {', '.join(OUTPUTS)} with probabilities and used", _outputs),
    "cost": ("numbers by name, with a list of them for by_bridges", _cost),
    "scores": _OBJECT,
    "about": _TEXT,
    "created": _TEXT,
    "normalisation": _OBJECT,
    "taps": ("a list of names", _all(_text)),
    "calibrated": _FLAG,
    "modes": _NAMES,
    "weights": _TEXT,
    "versions": _OBJECT,
    "precision": ("fp32 or int8", lambda value: value in ("fp32", "int8")),
    "aot": _FLAG,
    "parity": _OBJECT,
    "int8": _OBJECT,
    "seal": (SEAL, lambda value: value == SEAL),
    # How the programs of a .pt2 archive are connected.
    "plan": ("taps by base and reads by bridge", _plan),
}
"""What each entry must be: a description and a test."""

OPTIONAL = ("inputs", "heads", "mean", "parity", "int8", "seal", "plan")
"""Files of 0.1 take only images and have no seal. Without `heads`, every bridge has one; without `mean`, it is that of
probabilities."""


def metadata_json(metadata: Mapping[str, Any], path: Path) -> str:
    """The metadata as stored in a file; an error if no reader would accept it."""
    try:
        text = json.dumps(metadata)
    except (TypeError, ValueError, RecursionError) as error:
        raise ModebridgeError(
            f"Expected numbers, strings, lists and dicts to store in '{path}', but got '{error}'; "
            "convert scores and names with float() and str()."
        ) from error
    _check(json.loads(text), path, "check what you pass to export")
    return text


def read_metadata(text: str | None, path: Path, *, sealed: bool) -> dict[str, Any]:
    """Parse and check the metadata of a file.

    Args:
        text: the value of `KEY`; None if the file has none.
        path: path of the file, for error messages.
        sealed: whether the file has a seal, see `check_seal`.
    """
    if text is None:
        raise ModebridgeError(
            f"Expected '{path}' to be written by modebridge, but it has no modebridge metadata; "
            "create one with `modebridge export`."
        )
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModebridgeError(
            f"Expected the metadata of '{path}' to be JSON, but got '{first_line(error)}'; export it again."
        ) from error
    _check(metadata, path, "export it again")
    if "seal" in metadata and not sealed:
        raise ModebridgeError(
            f"Expected '{path}' to end with its SHA-256, but it does not, so it was damaged or changed; "
            "download it again, or export it again."
        )
    return dict(metadata)


def _check(metadata: Any, path: Path, hint: str) -> None:
    """Check the rules above, then the consistency of the entries."""
    if not isinstance(metadata, dict):
        raise ModebridgeError(f"Expected the metadata of '{path}' to be an object, but got {_shown(metadata)}; {hint}.")
    for name, (description, test) in RULES.items():
        if name not in metadata and name not in OPTIONAL:
            raise ModebridgeError(f"Expected '{name}' in the metadata of '{path}', but it is missing; {hint}.")
        if name in metadata and not test(metadata[name]):
            raise ModebridgeError(
                f"Expected '{name}' in the metadata of '{path}' to be {description}, "
                f"but got {_shown(metadata[name])}; {hint}."
            )
        if name == "format" and metadata[name] > FORMAT:
            # The other entries of a newer format may differ.
            raise ModebridgeError(
                f"Expected '{path}' to be of format {FORMAT} or older, but got {metadata[name]}; "
                "install a newer modebridge."
            )
    for name, value, wanted in _agreements(metadata):
        if value != wanted:
            raise ModebridgeError(
                f"Expected {name} in the metadata of '{path}' to be {wanted}, to match its other entries, but got "
                f"{value}; {hint}."
            )


def _agreements(metadata: Mapping[str, Any]) -> Sequence[tuple[str, Any, Any]]:
    """Redundant entries: a description, the value, and the value it must equal."""
    bridges, bases = metadata["bridges"], metadata["bases"]
    heads = metadata.get("heads")
    given = list(metadata.get("inputs", {}).values())
    # A single float input is the image.
    image = given[0]["shape"] if [entry["type"] for entry in given] == ["float32"] else None
    agreements: list[tuple[str, Any, Any]] = [
        ("the number of bridges with heads", bridges if heads is None else len(heads), bridges),
        ("the number of members", len(metadata["members"]), bases + (bridges if heads is None else sum(heads))),
        ("the number of temperatures", len(metadata["temperatures"]), bridges + 1),
        ("the number of costs", len(metadata["cost"]["by_bridges"]), bridges + 1),
    ]
    if given or metadata["image"] is None:
        agreements.append(("the image", metadata["image"], image if given else "a shape"))
    if "plan" in metadata:
        taps, reads = metadata["plan"]["taps"], metadata["plan"]["reads"]
        places = [(k, tap) for k, names in enumerate(taps) for tap in names]
        missing = [place for places_read in reads for place in places_read if tuple(place) not in places]
        agreements += [
            ("the number of bases in the plan", len(taps), bases),
            ("the number of bridges in the plan", len(reads), bridges),
            ("the list of taps that bridges read but no base has", missing, []),
        ]
    return agreements


def _shown(value: Any, most: int = 60) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return "too deeply nested lists"
    return text if len(text) <= most else f"{text[:most]}..."
