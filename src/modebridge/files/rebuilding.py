"""Modules that a file can describe by class name and constructor arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from modebridge import seeds
from modebridge.errors import ModebridgeError
from modebridge.files.parts import Given
from modebridge.nets import BasicBlock, BottleneckBlock, frozen_copy
from modebridge.nets.architecture import same_architecture
from modebridge.types import Params

__all__ = ["describe", "fill", "named", "rebuild", "rebuildable", "restore_body"]

M = TypeVar("M", bound=type[nn.Module])

ARGUMENTS = "_built_with"

CLASSES: dict[str, type[nn.Module]] = {}
"""Classes that files may name; nothing else is ever built."""


def named(cls: M) -> M:
    """Allow files to name a class, as an argument of other classes."""
    CLASSES[cls.__name__] = cls
    return cls


named(BasicBlock)
named(BottleneckBlock)


def rebuildable(cls: M) -> M:
    """Allow files to describe modules of a class: their constructor arguments are recorded, except generators.

    An argument that is a module must be an attribute of the same name.
    """
    build: Any = cls.__init__
    signature = inspect.signature(build)

    @functools.wraps(build)
    def remember(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        if type(self) is cls:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            given = list(bound.arguments.items())[1:]
            vars(self)[ARGUMENTS] = {
                name: None if isinstance(value, nn.Module) else value for name, value in given if name != "generator"
            }

    cls.__init__ = remember  # type: ignore[method-assign]
    return named(cls)


def describe(module: nn.Module) -> dict[str, Any] | None:
    """A module as JSON; None if it cannot be rebuilt, or was changed after it was built."""
    description = _described(module)
    if description is None:
        return None
    with seeds.borrowed(0):
        again = frozen_copy(_rebuild(description))
    module = frozen_copy(module)
    tensors = dict(_tensors(module))
    if {name: tensor.shape for name, tensor in _tensors(again)} != {name: t.shape for name, t in tensors.items()}:
        return None
    _take(again, tensors)
    return description if same_architecture(again, module) else None


def rebuild(description: Mapping[str, Any], tensors: Params) -> nn.Module:
    """Build a module from its description, to be filled with `tensors`; a different size is refused.

    Args:
        description: from `describe`, read from JSON.
        tensors: all of its tensors.
    """
    with torch.device("meta"):
        planned = _rebuild(description, len(tensors))
    if {name: tensor.shape for name, tensor in _tensors(planned)} != {n: tensor.shape for n, tensor in tensors.items()}:
        raise ValueError("a module that does not match its tensors")
    with seeds.borrowed(0):
        return _rebuild(description)


def restore_body(config: Mapping[str, Any], tensors: Params, given: Given) -> nn.Module:
    """The body of a stored bridge with its tensors, rebuilt from its description; a custom body is passed by the user.

    Args:
        config: "body" from `describe`, the "class" of the body, and the "name" of the bridge.
        tensors: all of its tensors.
        given: modules passed by the user.
    """
    if config["body"] is None:
        body = frozen_copy(given.body(config["name"], config["class"]))
    else:
        body = rebuild(config["body"], tensors)
    fill(body, tensors, f"the body of '{config['name']}'")
    others = [name for name in body.state_dict() if name not in tensors]
    if others:  # they would keep what the body was built with
        raise ModebridgeError(
            f"Expected the body of '{config['name']}' to have the tensors of the stored weights, but it also has "
            f"'{others[0]}'; pass the architecture that was saved."
        )
    return body


def fill(module: nn.Module, tensors: Params, what: str) -> None:
    """Replace the tensors of a module, with their types and memory orders; tied tensors stay tied.

    Args:
        module: modified in place; tensors that are not in `tensors` are kept.
        tensors: new tensors by name.
        what: description of the module, for error messages.
    """
    current = dict(_tensors(module))
    for name, tensor in tensors.items():
        if name not in current or current[name].shape != tensor.shape:
            got = f"shape {tuple(current[name].shape)}" if name in current else "no such tensor"
            raise ModebridgeError(
                f"Expected {what} to have '{name}' of shape {tuple(tensor.shape)}, as the stored weights do, but got "
                f"{got}; pass the architecture that was saved."
            )
    _take(module, tensors)


def _rebuild(description: Mapping[str, Any], most: int | None = None) -> nn.Module:
    """Build a module with at most `most` layers, since a few bytes could request millions."""
    cls = CLASSES[description["class"]]
    arguments = dict(description["arguments"])
    for name, value in arguments.items():
        if isinstance(value, dict):
            arguments[name] = _rebuild(value, most) if "arguments" in value else CLASSES[value["class"]]
        elif isinstance(value, list):
            arguments[name] = [tuple(item) if isinstance(item, list) else item for item in value]
    blocks = arguments.get("blocks", 0)
    layers = blocks if isinstance(blocks, int) else len(blocks)
    if most is not None and layers > most:
        raise ValueError(f"{layers} layers with {most} tensors")
    return cls(**arguments)


def _described(module: nn.Module) -> dict[str, Any] | None:
    arguments = vars(module).get(ARGUMENTS)
    if arguments is None or CLASSES.get(type(module).__name__) is not type(module):
        return None
    described: dict[str, Any] = {}
    for name, value in arguments.items():
        inner = getattr(module, name, None) if value is None else None
        if isinstance(inner, nn.Module):
            described[name] = _described(inner)
            if described[name] is None:
                return None
        elif isinstance(value, type):
            class_name = value.__name__
            if CLASSES.get(class_name) is not value:
                return None
            described[name] = {"class": class_name}
        else:
            described[name] = value
    return {"class": type(module).__name__, "arguments": described}


def _take(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in _tensors(module):
        if name in tensors:
            tensor.data = torch.empty_like(tensors[name], device="cpu", requires_grad=False).copy_(tensors[name])


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
