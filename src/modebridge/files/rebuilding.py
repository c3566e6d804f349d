"""Networks and bodies of bridges that a file can name: built again from a description, and filled with its tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from modebridge import seeds
from modebridge.bridges import Heads, ResidualBody, TokenBody, VectorBody
from modebridge.errors import ModebridgeError, first_line, near, needed, quoting
from modebridge.files.adapters import describe_adapter, has_adapter, transformers_class
from modebridge.nets import SPECS, BasicBlock, BottleneckBlock, ResNet, ResNetSpec, frozen_copy
from modebridge.nets.architecture import same_architecture
from modebridge.types import Params

CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (ResNet, ResNetSpec, Heads, ResidualBody, TokenBody, VectorBody, BasicBlock, BottleneckBlock)
}
"""Classes that files may name; nothing else is ever built."""

LOADING = {
    *("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"),  # timm
    *("weights", "weights_backbone"),  # torchvision
}
"""Options that read or download weights. A stored network has its own, so files may not contain these."""

UNREAD = ("_", "attn_impl", "experts_impl", "auto_map", "quantization", "transformers_version", "model_type")
"""Beginnings of keys of a config of transformers that are neither stored nor read."""

ORIGIN = ("config", "name_or_path", "_weight_conversions", "_use_kernels")
"""What models of transformers remember of where they came from; their config is compared without it."""

HUB = ("hf-hub:", "hf_hub:")

_LIBRARY_MODEL = re.compile(
    r"(?P<library>timm|torchvision):(?P<model>[^()]+?)\s*(?:\((?P<options>.*)\))?\s*", re.DOTALL
)


def describe(module: nn.Module, name: str | None = None) -> dict[str, Any] | None:
    """A description of a network or a body as JSON, verified to build it again; None if it is a custom module.

    It is detected for our own classes, for models of transformers, also with an adapter of peft on a base that has a
    name, and for networks of timm with the usual options;
    others need a name, "timm:MODEL" or "torchvision:MODEL", with options in parentheses.
    """
    if name is not None:
        library_factory(name)  # a wrong name has its own error
        if not _builds({"name": full_name(name)}, module):
            raise ModebridgeError(
                f"Expected net='{name[:80]}' to build the {type(module).__name__} of this ensemble, but it builds "
                "another network; add the options that it was built with, or leave out net= and pass the network when "
                "loading."
            )
        return {"name": full_name(name)}
    if has_adapter(module):
        return describe_adapter(module, _transformers_config(getattr(module, "get_base_model", nn.Module)()))
    try:
        guess = _timm_name(module) or _transformers_config(module) or _described(module)
    except TypeError:
        return None
    return guess if _builds(guess, module) else None


def build(description: Mapping[str, Any], state: Params) -> nn.Module:
    """Build a module from its description in a file; one that is much larger than the stored tensors is refused."""
    make = partial(_build, description)
    if "config" in description:
        make = partial(_from_config, description)
    elif "name" in description:
        factory, options = library_factory(description["name"])
        if not LOADING.isdisjoint(options) or any(hub in description["name"] for hub in HUB):
            raise ValueError(f"a network that loads other weights, '{description['name'][:80]}'")
        make = partial(factory, **options)
    try:
        with suppress(RuntimeError), torch.device("meta"), _no_larger_than(state):
            make()  # some networks look at values, which this device does not have
        with seeds.borrowed(0), _no_larger_than(state):
            module = make()
        if not isinstance(module, nn.Module):
            raise TypeError(f"{type(module).__name__} is not a module")
    except Exception as error:  # another library, or a class of ours with wrong arguments, can raise anything
        raise ModebridgeError(
            f"Expected '{description.get('name', description.get('class'))}' to be built, but got "
            f"{type(error).__name__}: '{first_line(error)}'; install the versions that it was saved with, or pass net=."
        ) from error
    return module


@contextmanager
def _no_larger_than(state: Params) -> Iterator[None]:
    """Stop the construction of a module when it has far more tensors or numbers than these."""
    stored = sum(tensor.numel() for tensor in state.values() if isinstance(tensor, Tensor))  # or `get_extra_state`
    tensors, numbers, thread = 2 * len(state) + 100, 2 * stored + 10**7, get_ident()

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal tensors, numbers
        if tensor is not None and get_ident() == thread:  # hooks are global
            tensors, numbers = tensors - 1, numbers - tensor.numel()
            if tensors < 0 or numbers < 0:
                raise ValueError("a network that is larger than the stored weights")

    hooks = register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def fill(module: nn.Module, tensors: Params, what: str) -> None:
    """Replace tensors of a module (called `what` in errors), with types and memory orders; tied tensors stay tied."""
    current = dict(_tensors(module))
    for name, tensor in tensors.items():
        if name not in current or current[name].shape != tensor.shape:
            got = f"shape {tuple(current[name].shape)}" if name in current else "no such tensor"
            raise ModebridgeError(
                f"Expected {what} to have '{name}' of shape {tuple(tensor.shape)}, as the stored weights do, but got "
                f"{got}; pass the architecture that was saved."
            )
    for name, tensor in current.items():
        if name in tensors:
            tensor.data = torch.empty_like(tensors[name], device="cpu", requires_grad=False).copy_(tensors[name])


def full_name(name: str, **options: Any) -> str:
    """The name of a network of timm or torchvision with all its options, without those that load weights.

    Options in parentheses take precedence.

    >>> full_name("torchvision:resnet18(num_classes=3, weights=None)", num_classes=10)
    'torchvision:resnet18(num_classes=3)'
    """
    library, model, given = _split(name)
    inside = [f"{option}={value!r}" for option, value in (options | given).items() if option not in LOADING]
    return f"{library}:{model}({', '.join(inside)})"


def library_factory(name: str) -> tuple[Callable[..., object], dict[str, Any]]:
    """The function that builds a network of timm or torchvision, and the options in parentheses."""
    library, model, options = _split(name)
    # "operator torchvision::nms does not exist": it was built for another torch.
    works = quoting(
        f"{library} to work with this torch", "install matching versions of torch and torchvision", RuntimeError
    )
    with needed(f"{library} for net '{name[:80]}'", "vision"), works:
        if library == "timm":
            import timm

            known, make = timm.is_model(model) or model.startswith(HUB), timm.create_model
            every = timm.list_models
        else:
            import torchvision.models

            every, make = torchvision.models.list_models, torchvision.models.get_model
            known = model in every()
    if not known:
        raise ModebridgeError(f"Expected a model of {library}, but got '{model[:80]}'; {near(model[:80], every())}")
    return partial(make, model), options


def _described(value: Any) -> Any:
    """An object of a known class by the name of the class and its arguments; plain values as they are."""
    cls = value if isinstance(value, type) else type(value)
    if CLASSES.get(cls.__name__) is not cls:
        if isinstance(value, type | nn.Module):
            raise TypeError(f"{cls.__name__} is a custom class")
        return value
    if isinstance(value, type):
        return {"class": cls.__name__}
    parts = {ResNet: ("spec",), Heads: ("body", "heads"), ResNetSpec: ResNetSpec.__dataclass_fields__}.get(cls)
    arguments = value.arguments if parts is None else {name: getattr(value, name) for name in parts}
    return {"class": cls.__name__, "arguments": {name: _described(inner) for name, inner in arguments.items()}}


def _build(value: Any) -> Any:
    """The inverse of `_described`, after JSON."""
    if not isinstance(value, dict):
        return tuple(value) if isinstance(value, list) else value
    cls = CLASSES[value["class"]]
    return cls(**{name: _build(inner) for name, inner in value["arguments"].items()}) if "arguments" in value else cls


def _timm_name(net: nn.Module) -> dict[str, Any] | None:
    """The timm name of a network, with the two options that are usually set."""
    if not type(net).__module__.startswith("timm.models."):
        return None
    config = getattr(net, "pretrained_cfg", None)
    config = config if isinstance(config, dict) else vars(config) if hasattr(config, "__dict__") else {}
    architecture, tag, classes = config.get("architecture"), config.get("tag"), getattr(net, "num_classes", None)
    if not isinstance(architecture, str) or not isinstance(classes, int):
        return None
    first = next((module for module in net.modules() if isinstance(module, nn.Conv2d)), None)
    channels = {} if first is None else {"in_chans": first.in_channels}
    return {"name": full_name(f"timm:{architecture}{f'.{tag}' if tag else ''}", num_classes=classes, **channels)}


def _transformers_config(net: Any) -> dict[str, Any] | None:
    """The class of a model of transformers, and its config without what refers to code, kernels or other weights."""
    if not type(net).__module__.startswith("transformers.models.") or not hasattr(net, "config"):
        return None
    config = {key: value for key, value in net.config.to_dict().items() if not key.startswith(UNREAD)}
    return {"class": type(net).__name__, "config": config}


def _from_config(description: Mapping[str, Any]) -> nn.Module:
    cls = transformers_class(description["class"])
    kind: Any = cls.config_class
    made: nn.Module = cls(kind.from_dict({k: v for k, v in description["config"].items() if not k.startswith(UNREAD)}))
    return made


def _builds(description: Mapping[str, Any], module: nn.Module) -> bool:
    """Whether a description builds a module that computes the same function with the same weights."""
    module = frozen_copy(module)
    try:
        again = frozen_copy(build(description, module.state_dict()))
        fill(again, dict(_tensors(module)), "the network")
    except (ModebridgeError, ValueError):
        return False
    if "config" in description:
        if _transformers_config(again) != _transformers_config(module):
            return False
        for part in (*again.modules(), *module.modules()):
            for name in ORIGIN:
                vars(part).pop(name, None)
    return same_architecture(again, module)


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]


def _split(name: str) -> tuple[str, str, dict[str, Any]]:
    """Library, model and options; longer names are mistakes, and Python's parser fails on hostile ones."""
    parts = _LIBRARY_MODEL.fullmatch(name) if len(name) <= 1000 else None
    if parts is None:
        raise ModebridgeError(
            f"Expected net to be a known network, timm:MODEL, torchvision:MODEL or FILE.py:FUNCTION, but got "
            f"'{name[:80]}'; {near(name[:80], SPECS)}"
        )
    try:  # values must be Python literals; nothing is executed
        call = ast.parse(f"_({parts['options'] or ''})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        if any(keyword.arg is None for keyword in call.keywords):  # **something
            raise ValueError
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ModebridgeError(
            f"Expected the options of net to be keywords with plain values, but got '{name[:80]}'; write for "
            "example timm:vit_tiny_patch16_224(img_size=32, depth=3)."
        ) from None
    return parts["library"], parts["model"], options
