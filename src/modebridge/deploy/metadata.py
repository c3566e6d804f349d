"""The metadata of a file, as JSON: what must be in it, checked by one table when written and when read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from modebridge.deploy.file_seal import SEAL
from modebridge.deploy.inputs import OUTPUTS, TYPES
from modebridge.errors import ModebridgeError, first_line
from modebridge.nets import MEANS

__all__ = ["FORMAT", "KEY", "metadata_json", "read_metadata"]

FORMAT = 4
"""Goes up when a reader of the old files could not read the new ones.

2 has inputs by name, 3 the logarithmic mean, 4 bridges with several heads.
"""

KEY = "modebridge"
"""Under which the JSON lies in a file."""

MOST = 2**28
"""Numbers in one input, by which its shape is told from damage: 1 GiB of floats an image."""


class _Rule(NamedTuple):
    """What an entry must be, in words and as a test."""

    words: str
    test: Callable[[Any], bool]
    needed: bool = True


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _text(value: Any) -> bool:
    # JSON can spell halves of characters, which cannot be printed.
    return isinstance(value, str) and value == value.encode("utf-8", "ignore").decode()


def _all(test: Callable[[Any], bool], least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(test, value))


def _shape(value: Any) -> bool:
    return _all(lambda size: _whole(size, 1))(value) and math.prod(value) <= MOST


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _not_negative(value: Any) -> bool:
    return _number(value) and value >= 0


def _input(value: Any) -> bool:
    return isinstance(value, dict) and _shape(value.get("shape")) and value.get("type") in TYPES


def _inputs(value: Any) -> bool:
    return isinstance(value, dict) and len(value) > 0 and all(map(_text, value)) and all(map(_input, value.values()))


def _outputs(value: Any) -> bool:
    return _all(lambda name: name in OUTPUTS)(value) and {"probabilities", "used"} <= set(value)


def _cost(value: Any) -> bool:
    numbers = dict(value) if isinstance(value, dict) else {}
    return _all(_number, 1)(numbers.pop("by_bridges", None)) and all(map(_number, numbers.values()))


def _reads(value: Any) -> bool:
    return _all(_place, 1)(value)


def _place(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _whole(value[0], 0) and _text(value[1])


def _plan(value: Any) -> bool:
    plan = value if isinstance(value, dict) else {}
    return _all(_all(_text), 1)(plan.get("taps")) and _all(_reads)(plan.get("reads"))


def _names(value: Any) -> bool:
    return _all(_text, 1)(value)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


RULES = {
    "format": _Rule("a whole number of at least 1", lambda value: _whole(value, 1)),
    "classes": _Rule("a list of names", _names),
    "image": _Rule("null or a shape", lambda value: value is None or _shape(value)),
    # Files of 0.1 knew of images only.
    "inputs": _Rule(f"shapes and types ({', '.join(TYPES)}) by name", _inputs, needed=False),
    "members": _Rule("a list of names", _names),
    "bases": _Rule("a whole number of at least 1", lambda value: _whole(value, 1)),
    "bridges": _Rule("a whole number of at least 0", lambda value: _whole(value, 0)),
    # Of every bridge; where it is not there each has one, and is one member.
    "heads": _Rule("a list of whole numbers of at least 1", _all(lambda value: _whole(value, 1)), needed=False),
    "temperature": _Rule("a positive number", _positive),
    "temperatures": _Rule("a list of positive numbers", _all(_positive, 1)),
    "first_temperature": _Rule("a positive number", _positive),
    # Earlier files had the mean of probabilities, and did not say so.
    "mean": _Rule(" or ".join(MEANS), lambda value: value in list(MEANS), needed=False),
    "threshold": _Rule("null or a number of at least 0", lambda value: value is None or _not_negative(value)),
    "elastic": _Rule("true or false", _flag),
    "outputs": _Rule(f"a list of {', '.join(OUTPUTS)} with probabilities and used", _outputs),
    "cost": _Rule("numbers by name, with a list of them for by_bridges", _cost),
    "scores": _Rule("an object", _object),
    "about": _Rule("text", _text),
    "created": _Rule("text", _text),
    "normalisation": _Rule("an object", _object),
    "taps": _Rule("a list of names", _all(_text)),
    "calibrated": _Rule("true or false", _flag),
    "modes": _Rule("a list of names", _names),
    "weights": _Rule("text", _text),
    "versions": _Rule("an object", _object),
    "precision": _Rule("fp32 or int8", lambda value: value in ("fp32", "int8")),
    "aot": _Rule("true or false", _flag),
    "parity": _Rule("an object", _object, needed=False),
    "int8": _Rule("an object", _object, needed=False),
    "seal": _Rule(SEAL, lambda value: value == SEAL, needed=False),
    # How the programs of a .pt2 archive are put together.
    "plan": _Rule("taps by base and reads by bridge", _plan, needed=False),
}


def metadata_json(metadata: Mapping[str, Any], path: Path) -> str:
    """The metadata as it goes into a file; refused where no reader would take it."""
    try:
        text = json.dumps(metadata)
    except (TypeError, ValueError, RecursionError) as error:
        raise ModebridgeError(
            f"Expected plain numbers, texts, lists and dicts to be kept in '{path}', but got '{error}'; "
            "convert scores and names, as with float() and str()."
        ) from error
    _check(json.loads(text), path, "give export others")
    return text


def read_metadata(text: str | None, path: Path, *, sealed: bool) -> dict[str, Any]:
    """The metadata of a file, checked.

    Args:
        text: what lies under `KEY`; None where nothing does.
        path: of the file, for the sentence.
        sealed: whether the file has a seal, see `check_seal`.
    """
    if text is None:
        raise ModebridgeError(
            f"Expected '{path}' to be written by modebridge, but it has no metadata of it; make one: modebridge export."
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
            f"Expected '{path}' to end with its SHA-256, but it does not: it was damaged or changed; "
            "get it again, or export it again."
        )
    return dict(metadata)


def _check(metadata: Any, path: Path, way_out: str) -> None:
    """The table above, then what must agree with one another."""
    if not isinstance(metadata, dict):
        raise ModebridgeError(
            f"Expected the metadata of '{path}' to be an object, but got {_shown(metadata)}; {way_out}."
        )
    for name, rule in RULES.items():
        if name not in metadata and rule.needed:
            raise ModebridgeError(f"Expected '{name}' in the metadata of '{path}', but it is missing; {way_out}.")
        if name in metadata and not rule.test(metadata[name]):
            raise ModebridgeError(
                f"Expected '{name}' in the metadata of '{path}' to be {rule.words}, "
                f"but got {_shown(metadata[name])}; {way_out}."
            )
        if name == "format" and metadata[name] > FORMAT:
            # Its other entries may be anything.
            raise ModebridgeError(
                f"Expected '{path}' to be of format {FORMAT} or older, but got {metadata[name]}; "
                "install a newer modebridge."
            )
    for name, value, wanted in _agreements(metadata):
        if value != wanted:
            raise ModebridgeError(
                f"Expected {name} in the metadata of '{path}' to be {wanted}, as the rest of it says, but got {value}; "
                f"{way_out}."
            )


def _agreements(metadata: Mapping[str, Any]) -> Sequence[tuple[str, Any, Any]]:
    """What is said twice: a name for it, once, and again."""
    bridges, bases = metadata["bridges"], metadata["bases"]
    heads = metadata.get("heads")
    given = list(metadata.get("inputs", {}).values())
    # Of a file with one input of floats it is the image.
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
            ("what a bridge reads and no base gives", missing, []),
        ]
    return agreements


def _shown(value: Any, most: int = 60) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return "lists in lists without end"
    return text if len(text) <= most else f"{text[:most]}..."
