"""Networks that a file can name: the paper's by their spec, those of timm and torchvision by name and options."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import nn

from modebridge import seeds
from modebridge.errors import ModebridgeError, first_line, near
from modebridge.files.parts import Given
from modebridge.files.rebuilding import fill
from modebridge.nets import SPECS, ResNet, ResNetSpec, frozen_copy
from modebridge.nets.architecture import same_architecture
from modebridge.types import Params

__all__ = ["build_net", "describe_net", "full_name", "library_factory", "restore_net"]

_LIBRARY_MODEL = re.compile(
    r"(?P<library>timm|torchvision):(?P<model>[^()]+?)\s*(?:\((?P<options>.*)\))?\s*", re.DOTALL
)
LONGEST = 1000
"""Maximum length of a name: longer ones are mistakes, and Python's parser fails on hostile ones."""

LOADING = frozenset(
    ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir", "weights")
) | {"weights_backbone"}
"""Options that read or download weights. A stored network has its own, so files may not contain these."""

HUB = ("hf-hub:", "hf_hub:")


def describe_net(net: nn.Module, name: str | None = None) -> dict[str, Any] | None:
    """A description of a network as JSON, verified to build it again; None if there is none.

    Args:
        net: in evaluation mode.
        name: "timm:MODEL" or "torchvision:MODEL", with options in parentheses. None detects it for the paper's networks
            and those of timm with the usual options.
    """
    if name is None:
        if type(net) is ResNet:
            description: dict[str, Any] | None = {"resnet": asdict(net.spec)}
        else:
            guess = _timm_name(net)
            description = None if guess is None else {"name": guess}
        return description if description is not None and _builds(description, net) else None
    library_factory(name)  # a wrong name has its own error
    description = {"name": full_name(name)}
    if not _builds(description, net):
        raise ModebridgeError(
            f"Expected net='{name[:80]}' to build the {type(net).__name__} of this ensemble, but it builds another "
            "network; add the options that it was built with, or leave out net= and pass the network when loading."
        )
    return description


def build_net(description: Mapping[str, Any], shapes: Params) -> nn.Module:
    """Build the network of a description; the caller's random generators are not used.

    Args:
        description: from `describe_net`, read from JSON.
        shapes: the stored weights; a larger network is refused.
    """
    if "resnet" in description:
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in description["resnet"].items()
        }
        spec = ResNetSpec(**fields)
        if not 0 < spec.depth <= len(shapes):
            raise ValueError(f"{spec.depth} blocks with {len(shapes)} tensors")
        with torch.device("meta"):
            planned = sum(parameter.numel() for parameter in ResNet(spec).parameters())
        if planned > sum(tensor.numel() for tensor in shapes.values()):
            raise ValueError(f"a network of {planned:,} parameters, more than are stored")
        with seeds.borrowed(0):
            return ResNet(spec, torch.Generator().manual_seed(0))
    factory, options = library_factory(description["name"])
    hostile = [option for option in options if option in LOADING]
    if hostile or any(hub in description["name"] for hub in HUB):
        raise ValueError(f"a network that loads other weights ({', '.join(hostile) or 'from the hub'})")
    with seeds.borrowed(0):
        try:
            net = factory(**options)
        except Exception as error:  # another library can raise anything for wrong options
            raise ModebridgeError(
                f"Expected '{description['name']}' to be built, but got {type(error).__name__}: '{first_line(error)}'; "
                "install the version of the library that it was saved with, or pass net=."
            ) from error
    if not isinstance(net, nn.Module):
        raise ValueError(f"a {type(net).__name__} instead of a network")
    return net


def restore_net(config: Mapping[str, Any], state: Params, constants: Params, given: Given) -> nn.Module:
    """A stored network with its tensors, built from its description unless the user passed a module.

    Args:
        config: "net" from `describe_net`, and the "class" of the network.
        state: its parameters and persistent buffers.
        constants: its other buffers; those that the network has in another shape are left out.
        given: modules passed by the user.
    """
    if given.net is None and config["net"] is None:
        raise ModebridgeError(
            f"Expected net, because {config['class']} is a custom module of which only the weights are stored, but "
            "got none; pass net=, a module of the same architecture."
        )
    net = frozen_copy(given.net if given.net is not None else build_net(config["net"], state))
    fill(net, state, "the network")
    shapes = {name: buffer.shape for name, buffer in net.named_buffers()}
    fill(net, {name: tensor for name, tensor in constants.items() if shapes.get(name) == tensor.shape}, "the network")
    return net


def full_name(name: str, **options: Any) -> str:
    """The name of a network of timm or torchvision with all its options, without those that load weights.

    Args:
        name: "timm:MODEL" or "torchvision:MODEL", optionally with options in parentheses.
        options: further options; those in parentheses take precedence.

    >>> full_name("torchvision:resnet18(num_classes=3, weights=None)", num_classes=10)
    'torchvision:resnet18(num_classes=3)'
    """
    library, model, given = _split(name)
    kept = {option: value for option, value in (options | given).items() if option not in LOADING}
    inside = ", ".join(f"{option}={value!r}" for option, value in kept.items())
    return f"{library}:{model}({inside})"


def library_factory(name: str) -> tuple[Callable[..., object], dict[str, Any]]:
    """The function that builds a network of timm or torchvision, and the options in parentheses."""
    library, model, options = _split(name)
    try:
        if library == "timm":
            import timm

            known, build = timm.is_model(model) or model.startswith(HUB), timm.create_model
            every = timm.list_models
        else:
            import torchvision.models

            every, build = torchvision.models.list_models, torchvision.models.get_model
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
    return partial(build, model), options


def _split(name: str) -> tuple[str, str, dict[str, Any]]:
    """Library, model and options."""
    parts = _LIBRARY_MODEL.fullmatch(name) if len(name) <= LONGEST else None
    if parts is None:
        raise ModebridgeError(
            f"Expected net to be a known network, timm:MODEL, torchvision:MODEL or FILE.py:FUNCTION, but got "
            f"'{name[:80]}'; {near(name[:80], SPECS)}"
        )
    return parts["library"], parts["model"], _options(parts["options"] or "", name)


def _options(text: str, name: str) -> dict[str, Any]:
    """Keywords from "img_size=32, depth=3": values must be Python literals; nothing is executed."""
    try:
        call = ast.parse(f"_({text})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        if None in [keyword.arg for keyword in call.keywords]:  # **something
            raise ValueError
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ModebridgeError(
            f"Expected the options of net to be keywords with plain values, but got '{name[:80]}'; write for "
            "example timm:vit_tiny_patch16_224(img_size=32, depth=3)."
        ) from None


def _timm_name(net: nn.Module) -> str | None:
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
    return full_name(f"timm:{architecture}{f'.{tag}' if tag else ''}", num_classes=classes, **channels)


def _builds(description: Mapping[str, Any], net: nn.Module) -> bool:
    """Whether a description builds a network that computes the same function with the same weights."""
    bare = frozen_copy(net)
    tensors = {**dict(bare.named_parameters()), **dict(bare.named_buffers())}
    try:
        again = frozen_copy(build_net(description, tensors))
        fill(again, tensors, "the network")
    except (ModebridgeError, ValueError):
        return False
    return same_architecture(again, bare)
