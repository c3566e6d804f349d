"""Find a network's tensors in a checkpoint by their names, wherever they are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError, near, some
from modebridge.modes import is_extra, tensors_of
from modebridge.nets.quirks import unusual
from modebridge.types import Params

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Name parts that torch.compile, FSDP and activation checkpointing insert anywhere in a name."""

_AVERAGED = {"ema", "swa", "averaged", "shadow"}
"""Words that mark averaged weights: state_dict_ema, model_ema, ema, ema_state_dict, params_ema, swa_model."""

_DEPTH = 6

_MOST = 200_000
"""The maximum number of containers to search: a few kilobytes can refer to one list a trillion times."""

Containers = Mapping[str, Params]
"""Every dict of a checkpoint that holds tensors, by the path of keys to it."""


@dataclass
class Place:
    """A place in a checkpoint below which names of the network were found.

    Its path is the dotted keys of dicts, then the prefix of all names.
    """

    path: str
    averaged: bool
    tensors: dict[str, Any] = field(default_factory=dict)
    """By the network's own names; among them what `get_extra_state` returned."""
    extra: list[str] = field(default_factory=list)
    """Names below it that the network does not have."""
    doubled: list[str] = field(default_factory=list)
    """Further names of tied weights, with other values than the first ones."""

    def missing(self, wanted: Params) -> list[str]:
        return [name for name in wanted if name not in self.tensors]

    def different(self, wanted: Params) -> list[str]:
        """The names whose tensors have another shape here, or are not plain dense tensors."""
        here = self.tensors
        both = [name for name in here if name in wanted]
        return [name for name in both if unusual(here[name]) or here[name].shape != wanted[name].shape]

    def fits(self, wanted: Params) -> bool:
        return not self.extra and not self.missing(wanted) and not self.different(wanted)


def find_places(
    raw: Mapping[str, object],
    net: nn.Module,
    *,
    ema: bool | None = None,
    prefix: str | None = None,
    ignore: str | Sequence[str] = (),
    what: str = "the checkpoint",
) -> list[Place]:
    """Every place in a checkpoint that holds `net`, at least one, sorted by path (2 before 10).

    Containers (state_dict, model, ...) and prefixes (`module.`, `_orig_mod.`, `model.`, any other) need no list: a
    place in the checkpoint is the network's if it has all of its names, with the right shapes, and nothing else. Places
    with identical weights count once. See `load_checkpoint` for the options; `what` names the checkpoint in errors.

    >>> net = nn.Linear(2, 3)
    >>> raw = {"epoch": 7, "model": {f"module.{name}": t for name, t in net.state_dict().items()}}
    >>> [(place.path, sorted(place.tensors)) for place in find_places(raw, net)]
    [('model.module', ['bias', 'weight'])]
    """
    params, buffers, _ = tensors_of(net)
    wanted = {**params, **buffers}
    if not wanted:
        raise ModebridgeError(f"Expected {type(net).__name__} to have weights to load, but it has none; use another.")
    containers = dict(_containers(raw, what))
    names = _names(net)
    places, constants = _places(containers, raw, names), set[str]()
    if all(place.missing(wanted) for place in places):
        # Perhaps the network is wrapped here (`Logits(net)`, `Sequential(Normalize(), net)`), and not in the file.
        trained = {_bare(name).partition(".")[0] for name in params}
        own = {name for name in buffers if _bare(name).partition(".")[0] not in trained}
        names = {name: full for name, full in names.items() if name.partition(".")[0] in trained}
        columns = zip(*(name.split(".")[:-1] for name in names), strict=False)
        shared = len(list(itertools.takewhile(lambda column: len(set(column)) == 1, columns)))
        inner = _places(containers, raw, {".".join(name.split(".")[shared:]): full for name, full in names.items()})
        # Numbers such as "1.conv1" occur inside of other networks too.
        whole = any(all(name in own or _counts(name) for name in place.missing(wanted)) for place in inner)
        if not places or (shared and whole):
            places, constants = inner, own
    if prefix is not None:
        allowed = {_join(container, _bare(prefix.rstrip("."))) for container in ("", *containers)}
        inside = [place for place in places if place.path in allowed]
        if places and not inside:
            paths = [place.path for place in sorted(places, key=lambda place: -len(place.tensors)) if place.path]
            fix = near(prefix, paths) if paths else "leave it out, as the names have none."
            raise ModebridgeError(f"Expected prefix to be a place in {what}, but got '{prefix}'; {fix}")
        places = inside
    for place in places:
        place.extra = [name for name in place.extra if not _ignored(name, place.path, ignore)]
    _complete(places, wanted, set(buffers), constants)
    fitting = sorted((place for place in places if place.fits(wanted)), key=lambda place: natural(place.path))
    if not fitting:
        raise ModebridgeError(_difference(places, wanted, containers, net, what))
    if doubled := [name for place in fitting for name in place.doubled]:
        raise ModebridgeError(
            f"Expected {what} to have one value for each weight of {type(net).__name__}, but '{doubled[0]}' is tied to "
            "another name with other values; use the network that the checkpoint was made with."
        )
    averaged, plain = [p for p in fitting if p.averaged], [p for p in fitting if not p.averaged]
    if (ema is True and not averaged) or (ema is False and not plain):
        kind, other = ("averaged (EMA)", "others") if ema else ("other than averaged (EMA)", "averaged ones")
        raise ModebridgeError(
            f"Expected {what} to hold {kind} weights of {type(net).__name__}, but got only {other}, "
            f"{some([p.path for p in fitting])}; use ema=None for either kind."
        )
    return _distinct(plain if ema is False else averaged or plain)


def _ignored(name: str, path: str, ignore: str | Sequence[str]) -> bool:
    """Whether a name below a place, with or without the place's path, matches a pattern or is below one that does."""
    patterns = [pattern.rstrip(".") for pattern in ([ignore] if isinstance(ignore, str) else ignore)]
    names = (name, _join(path, name))
    return any(fnmatchcase(candidate, p) or fnmatchcase(candidate, f"{p}.*") for candidate in names for p in patterns)


def _names(net: nn.Module) -> dict[str, str | None]:
    """Names that a checkpoint may use for each tensor, and the network's own name; None if the tensor is not kept."""
    params, buffers, aliases = tensors_of(net)
    # Aliases first, so that the first name of a tied tensor wins if the network has both.
    names: dict[str, str | None] = {_bare(name): None for name, _ in net.named_buffers(remove_duplicate=False)}
    names |= {_bare(alias): name for alias, name in aliases.items() if name in params or name in buffers}
    return names | {_bare(name): name for name in (*params, *buffers, *filter(is_extra, net.state_dict()))}


def _containers(raw: Mapping[Any, object], what: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    waiting: list[tuple[Mapping[Any, object] | Sequence[object], str, int]] = [(raw, "", 0)]
    seen = 1
    while waiting:
        container, path, depth = waiting.pop()
        pairs = list(container.items() if isinstance(container, Mapping) else enumerate(container))
        tensors: dict[str, Any] = {str(k): v for k, v in pairs if isinstance(v, Tensor) or is_extra(str(k))}
        if isinstance(container, Mapping) and any(isinstance(value, Tensor) for value in tensors.values()):
            yield path, tensors
        inside = [(key, value) for key, value in pairs if isinstance(value, Mapping | list | tuple)]
        seen += len(inside)
        if seen > _MOST:
            raise ModebridgeError(
                f"Expected {what} to be a checkpoint, but got more than {_MOST:,} dicts and lists in it; "
                "save only the state dict, torch.save(net.state_dict(), file)."
            )
        if depth < _DEPTH:
            waiting += [(value, _join(path, str(key)), depth + 1) for key, value in reversed(inside)]


def _places(containers: Containers, raw: Mapping[str, object], names: Mapping[str, str | None]) -> list[Place]:
    """Every place below which at least one of the names is found."""
    places: list[Place] = []
    for container, tensors in containers.items():
        here: dict[str, Place] = {}
        parts = [(_bare(key).split("."), tensor) for key, tensor in tensors.items()]
        for words, tensor in parts:
            for cut in range(len(words)):
                head, tail = ".".join(words[:cut]), ".".join(words[cut:])
                own_name = names.get(tail)
                if own_name is not None:
                    if head not in here:
                        here[head] = Place(_join(container, head), _is_averaged(container, head, tensors, raw))
                    tensors_here = here[head].tensors
                    if (known := tensors_here.get(own_name)) is not None and not _equal(known, tensor):
                        here[head].doubled.append(tail)
                    if own_name not in tensors_here or _bare(own_name).endswith(tail):
                        tensors_here[own_name] = tensor
        for head, place in here.items():
            start = head.split(".") if head else []
            tails = [".".join(words[len(start) :]) for words, _ in parts if words[: len(start)] == start]
            place.extra = [tail for tail in tails if tail not in names and not is_extra(tail)]
        places += here.values()
    return places


def _is_averaged(container: str, head: str, tensors: Params, raw: Mapping[str, object]) -> bool:
    if set(re.split("[^a-z]+", _join(container, head).lower())) & _AVERAGED:
        return True
    # torch's AveragedModel, for both EMA and SWA, has a counter next to the network.
    parent, _, last = head.rpartition(".")
    if last == "module" and _join(parent, "n_averaged") in {_bare(key) for key in tensors}:
        return True
    # Lightning's WeightAveraging replaces the weights with the average, and adds these two entries.
    return container == "state_dict" and {"averaging_state", "current_model_state"} <= raw.keys()


def _complete(places: Sequence[Place], wanted: Params, buffers: set[str], constants: set[str]) -> None:
    """Add buffers that some formats omit: batch counts, constants of a wrapper, and in averages of parameters all."""
    plain: list[Place] = []
    for place in sorted(places, key=lambda place: place.averaged):
        if place.averaged and len(plain) == 1 and buffers.issuperset(place.missing(wanted)):
            place.tensors |= {name: plain[0].tensors[name] for name in place.missing(wanted)}
        for name in place.missing(wanted):
            # Batch counts as torch does for files older than this buffer.
            if name in constants or _counts(name):
                place.tensors[name] = wanted[name].detach()
        if not place.averaged and place.fits(wanted):
            plain = _distinct([*plain, place])


def _counts(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def _distinct(places: Sequence[Place]) -> list[Place]:
    """One place per network: a loss or a wrapper may contain the same one again."""
    kept: list[Place] = []
    for place in places:
        if not any(all(_equal(t, other.tensors.get(name)) for name, t in place.tensors.items()) for other in kept):
            kept.append(place)
    return kept


def _equal(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b) if isinstance(a, Tensor) else a == b


def _difference(places: Sequence[Place], wanted: Params, containers: Containers, net: nn.Module, what: str) -> str:
    """The error message for a checkpoint that fits nowhere, about the closest place."""
    kind = type(net).__name__
    best = max(places, key=lambda place: (len(place.tensors), -len(place.path)), default=None)
    if best is None or 2 * len(best.tensors) < len(wanted):
        all_names = [_join(path, name) for path, tensors in containers.items() for name in tensors]
        got = f"got {some(all_names)}" if all_names else "it holds no tensor"
        return (
            f"Expected {what} to hold the weights of {kind}, {some(list(wanted))}, but {got}; check the architecture, "
            "or leave that file out."
        )
    missing, different = best.missing(wanted), best.different(wanted)
    start = f"Expected {what} to fit {kind}" + (f" below '{best.path}'" if best.path else "")
    if missing or best.extra:
        parts = [f"{some(missing)} missing"] if missing else []
        if missing and best.extra:
            parts[0] += f" ({near(missing[0], best.extra, 3).rstrip('.')})"
        parts += [f"{some(best.extra)} extra"] if best.extra else []
        fix = "" if missing or different else ", or leave them out by name with ignore="
        return f"{start}, but got {' and '.join(parts)}; use a network of the file's architecture{fix}."
    odd = next((name for name in different if unusual(best.tensors[name])), None)
    if odd is not None:
        return f"{start}, but '{odd}' is {unusual(best.tensors[odd])}; save plain dense tensors of numbers."
    shapes = [(tuple(best.tensors[name].shape), tuple(wanted[name].shape)) for name in different]
    first = f"'{different[0]}' is {shapes[0][0]} in the file and {shapes[0][1]} in the network"
    one_pair = len({(a[:1], b[:1]) for a, b in shapes}) == 1 and all(a[1:] == b[1:] for a, b in shapes)
    if one_pair and list(dict(net.named_parameters()))[-1] in different:  # the last layer
        classes = [(shape[0] if shape else 0) for shape in shapes[0]]
        fix = f"build the network with {classes[0]} classes, or use a file with {classes[1]}"
        return f"{start}, but {first}: the number of classes differs; {fix}."
    more = f" (and {len(shapes) - 1} more differ)" if len(shapes) > 1 else ""
    return f"{start}, but {first}{more}; use a network of the file's architecture."


def natural(name: str) -> list[int | str]:
    """A key that sorts 2 before 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
