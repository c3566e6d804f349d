"""Networks and bodies of bridges that a file can name: built again from a description, and filled with its tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from modebridge import seeds
from modebridge.bridges import Heads, ResidualBody, TokenBody, VectorBody
from modebridge.errors import ModebridgeError, first_line, near
from modebridge.nets import SPECS, BasicBlock, BottleneckBlock, ResNet, ResNetSpec, frozen_copy
from modebridge.nets.architecture import same_architecture
from modebridge.types import Params

__all__ = ["build", "describe_body", "describe_net", "fill", "full_name", "library_factory"]

CLASSES: dict[str, Any] = {
    cls.__name__: cls for cls in (Heads, ResidualBody, TokenBody, VectorBody, BasicBlock, BottleneckBlock)
}
"""Classes that files may name; nothing else is ever built."""

LOADING = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"} | {
    *("weights", "weights_backbone")
}
"""Options that read or download weights. A stored network has its own, so files may not contain these."""

HUB = ("hf-hub:", "hf_hub:")

_LIBRARY_MODEL = re.compile(
    r"(?P<library>timm|torchvision):(?P<model>[^()]+?)\s*(?:\((?P<options>.*)\))?\s*", re.DOTALL
)


def describe_net(net: nn.Module, name: str | None = None) -> dict[str, Any] | None:
    """A description of a network as JSON, verified to build it again; None if there is none.

    Args:
        net: in evaluation mode.
        name: "timm:MODEL" or "torchvision:MODEL", with options in parentheses. None detects it for the paper's networks
            and those of timm with the usual options.
    """
    if name is not None:
        library_factory(name)  # a wrong name has its own error
        description = {"name": full_name(name)}
        if not _builds(description, net):
            raise ModebridgeError(
                f"Expected net='{name[:80]}' to build the {type(net).__name__} of this ensemble, but it builds another "
                "network; add the options that it was built with, or leave out net= and pass the network when loading."
            )
        return description
    guess = {"resnet": asdict(net.spec)} if type(net) is ResNet else _timm_name(net)
    return guess if guess is not None and _builds(guess, net) else None


def describe_body(body: nn.Module) -> dict[str, Any] | None:
    """A description of a bridge's body as JSON; None if it is a custom module, or was changed after it was built."""
    description = _described(body)
    return description if description is not None and _builds(description, body) else None


def build(description: Mapping[str, Any], state: Params) -> nn.Module:
    """Build a module from its description, read from a file; the caller's random generators are not used.

    Args:
        description: from `describe_net` or `describe_body`.
        state: the stored tensors; a module of our own classes that differs from them in size is refused before it
            takes any memory.
    """
    if "name" in description:
        return _build_by_name(description["name"])
    make = partial(_build_resnet, description["resnet"]) if "resnet" in description else partial(_build, description)
    if _layers(description) > len(state):
        raise ValueError(f"{_layers(description)} layers with {len(state)} tensors")
    with torch.device("meta"):
        planned = {name: tensor.shape for name, tensor in make().state_dict().items()}
    if planned != {name: tensor.shape for name, tensor in state.items()}:
        raise ValueError("a module that does not match its tensors")
    with seeds.borrowed(0):
        return make()


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
    for name, tensor in current.items():
        if name in tensors:
            tensor.data = torch.empty_like(tensors[name], device="cpu", requires_grad=False).copy_(tensors[name])


def full_name(name: str, **options: Any) -> str:
    """The name of a network of timm or torchvision with all its options, without those that load weights.

    Args:
        name: "timm:MODEL" or "torchvision:MODEL", optionally with options in parentheses.
        options: further options; those in parentheses take precedence.

    >>> full_name("torchvision:resnet18(num_classes=3, weights=None)", num_classes=10)
    'torchvision:resnet18(num_classes=3)'
    """
    library, model, given = _split(name)
    inside = [f"{option}={value!r}" for option, value in (options | given).items() if option not in LOADING]
    return f"{library}:{model}({', '.join(inside)})"


def library_factory(name: str) -> tuple[Callable[..., object], dict[str, Any]]:
    """The function that builds a network of timm or torchvision, and the options in parentheses."""
    library, model, options = _split(name)
    try:
        if library == "timm":
            import timm

            known, make = timm.is_model(model) or model.startswith(HUB), timm.create_model
            every = timm.list_models
        else:
            import torchvision.models

            every, make = torchvision.models.list_models, torchvision.models.get_model
            known = model in every()
    except ImportError:
        raise ModebridgeError(
            f"Expected {library} for net '{name[:80]}', but it is not installed; pip install 'modebridge[vision]'."
        ) from None
    except RuntimeError as error:  # "operator torchvision::nms does not exist": built for another torch
        raise ModebridgeError(
            f"Expected {library} to work with this torch, but got '{first_line(error)}'; install matching versions of "
            "torch and torchvision."
        ) from error
    if not known:
        raise ModebridgeError(f"Expected a model of {library}, but got '{model[:80]}'; {near(model[:80], every())}")
    return partial(make, model), options


def _build_by_name(name: str) -> nn.Module:
    factory, options = library_factory(name)
    hostile = [option for option in options if option in LOADING]
    if hostile or any(hub in name for hub in HUB):
        raise ValueError(f"a network that loads other weights ({', '.join(hostile) or 'from the hub'})")
    with seeds.borrowed(0):
        try:
            net = factory(**options)
        except Exception as error:  # another library can raise anything for wrong options
            raise ModebridgeError(
                f"Expected '{name}' to be built, but got {type(error).__name__}: '{first_line(error)}'; install the "
                "version of the library that it was saved with, or pass net=."
            ) from error
    if not isinstance(net, nn.Module):
        raise ValueError(f"a {type(net).__name__} instead of a network")
    return net


def _build_resnet(fields: Mapping[str, Any]) -> nn.Module:
    spec = ResNetSpec(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
    return ResNet(spec, torch.Generator().manual_seed(0))


def _build(description: Mapping[str, Any]) -> nn.Module:
    arguments = dict(description["arguments"])
    for name, value in arguments.items():
        if isinstance(value, dict):
            arguments[name] = _build(value) if "arguments" in value else CLASSES[value["class"]]
    module: nn.Module = CLASSES[description["class"]](**arguments)
    return module


def _layers(description: Mapping[str, Any]) -> int:
    """The number of layers that a description asks for: a few bytes could ask for millions."""
    if "resnet" in description:
        return int(sum(description["resnet"]["stages"]))
    arguments = description["arguments"]
    blocks = arguments.get("blocks", 0)
    inner = sum(_layers(value) for value in arguments.values() if isinstance(value, dict) and "arguments" in value)
    return inner + (blocks if isinstance(blocks, int) else len(blocks))


def _described(body: nn.Module) -> dict[str, Any] | None:
    if CLASSES.get(type(body).__name__) is not type(body):
        return None
    if isinstance(body, Heads):
        inner = _described(body.body)
        arguments: dict[str, Any] = {"body": inner, "heads": body.heads}
        return None if inner is None else {"class": "Heads", "arguments": arguments}
    arguments = dict(getattr(body, "arguments", {}))
    block = arguments.get("block", BasicBlock)
    if CLASSES.get(block.__name__) is not block:
        return None
    if "block" in arguments:
        arguments["block"] = {"class": block.__name__}
    return {"class": type(body).__name__, "arguments": arguments}


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


def _builds(description: Mapping[str, Any], module: nn.Module) -> bool:
    """Whether a description builds a module that computes the same function with the same weights."""
    module = frozen_copy(module)
    try:
        again = frozen_copy(build(description, module.state_dict()))
        fill(again, dict(_tensors(module)), "the network")
    except (ModebridgeError, ValueError):
        return False
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
