"""Whether two modules are the same program with different weights."""

from __future__ import annotations

import enum
import math
import re
import warnings
from collections.abc import Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError

_PLAIN = (str, bytes, bool, int, float, complex, torch.dtype, torch.device, torch.memory_format, type, range, slice)


def same_architecture(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules compute the same function if their parameters and persistent buffers are equal.

    Equal names and shapes are not enough: an attribute, a non-persistent buffer or a function may differ. Objects that
    cannot be compared count as different.

    >>> same_architecture(nn.Linear(2, 3), nn.Linear(2, 3)), same_architecture(nn.Dropout(0.1), nn.Dropout(0.2))
    (True, False)
    """
    return _ties(a) == _ties(b) and _same(a, b, {})


def check_given(net: nn.Module, given: nn.Module) -> None:
    """Warn if a trained module, of which only the weights are used, seems to compute something else than the network.

    Its layers are compared as they print, and its non-persistent buffers; other attributes cannot be told apart.
    """
    known, own = ({name: b for name, b in one.named_buffers() if name not in one.state_dict()} for one in (net, given))
    differ = [name for name in known if name in own and not torch.equal(known[name].cpu(), own[name].cpu())]
    lines = zip(*(re.sub(" at 0x[0-9a-f]+", "", repr(one)).splitlines() for one in (net, given)), strict=False)
    differ += [f"{ours.strip()} / {theirs.strip()}" for ours, theirs in lines if ours != theirs]
    if differ:
        warnings.warn(
            f"A module given as a mode differs from net in more than weights ({differ[0]}): only its weights are used, "
            "in net; pass the network that it was trained as.",
            stacklevel=4,
        )


def check_ties(state: Mapping[str, Any], ties: Mapping[str, str]) -> None:
    """Raise an error if a state dict has two values for a weight that the network has once, under several names."""
    for name, first in ties.items():
        one, other = state.get(name), state.get(first)
        if isinstance(one, Tensor) and isinstance(other, Tensor) and not torch.equal(one, other):
            raise ModebridgeError(
                f"Expected '{name}' and '{first}' to be equal, as they are one tensor in the network, but they differ; "
                "use the network that the checkpoint was made with."
            )


def _ties(module: nn.Module) -> list[tuple[str, str]]:
    """Each name of a tensor with its first name: the programs differ if their tied weights differ."""
    first: dict[int, str] = {}
    every = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return [(name, first.setdefault(id(tensor), name)) for name, tensor in every]


def _same(a: Any, b: Any, compared: dict[tuple[int, int], Any]) -> bool:
    if a is b or (id(a), id(b)) in compared:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (*_PLAIN, enum.Enum)):
        return bool(a == b) or (isinstance(a, float) and math.isnan(a) and math.isnan(b))
    # Objects may reference each other: a pair that is being compared counts as equal unless something else differs. It
    # is stored, so that its ids are not reused.
    compared[id(a), id(b)] = (a, b)

    def same(x: Any, y: Any) -> bool:
        return _same(x, y, compared)

    if isinstance(a, Tensor):
        return (a.shape, a.dtype) == (b.shape, b.dtype) and torch.equal(a, b.to(a.device))
    if isinstance(a, set | frozenset):
        return a == b and all(isinstance(item, _PLAIN) for item in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    if isinstance(a, nn.Module):
        return same(_parts(a), _parts(b))
    if isinstance(a, partial):
        return same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
    if isinstance(a, MethodType):
        return same((a.__func__, a.__self__), (b.__func__, b.__self__))
    if isinstance(a, FunctionType):
        parts = [(f.__code__, f.__globals__ is a.__globals__) for f in (a, b)]
        return parts[0] == parts[1] and same(_bound(a), _bound(b))
    # A custom object: equal if all its attributes are, and if it has no other state.
    plain = hasattr(a, "__dict__") and not any("__slots__" in vars(kind) for kind in type(a).__mro__)
    return plain and type(a).__module__ != "builtins" and same(vars(a), vars(b))


def _parts(module: nn.Module) -> dict[str, Any]:
    """All attributes, including hooks and submodules; of parameters and persistent buffers only shape and type."""

    def signature(name: str, tensor: Tensor | None) -> object:
        return tensor if tensor is None or name in module._non_persistent_buffers_set else (*tensor.shape, tensor.dtype)

    parts = {name: value for name, value in vars(module).items() if name != "training"}
    for kind in ("_parameters", "_buffers"):
        parts[kind] = {name: signature(name, tensor) for name, tensor in parts[kind].items()}
    return parts


def _bound(function: FunctionType) -> tuple[Any, ...]:
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    return function.__defaults__, function.__kwdefaults__, cells
