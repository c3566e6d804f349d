"""The network of a recipe: one of the paper's, from timm or torchvision, or from a user's function."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from modebridge.batches import shapes_of, size_of
from modebridge.bridges import build_bridge, last_blocks_tap
from modebridge.errors import ModebridgeError, first_line
from modebridge.files import full_name, library_factory
from modebridge.nets import SPECS, Norm, ResNet, ResNetSpec, call, frozen_copy, spec_of
from modebridge.recipes.data import RunData
from modebridge.recipes.recipe import Recipe
from modebridge.recipes.splits import NAMED, DataFacts, facts_of
from modebridge.recipes.user_code import call_function, find_function, seeded, split_reference
from modebridge.types import Inputs


@dataclass(frozen=True)
class Network:
    """An architecture, with all that is needed to build it in any process.

    Args:
        reference: one of the paper's names ("cifar10"), "timm:MODEL", "torchvision:MODEL", each with or without options
            in parentheses, or "/PATH/FILE.py:FUNCTION".
        norm: norm of the paper's networks; others have their own.
        classes: number of classes K.
        image: (C, H, W) of one image; None if inputs are something else.

    >>> Network("digits", "bn", 10, (1, 8, 8)).build(torch.Generator().manual_seed(0))(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    reference: str
    norm: Norm
    classes: int
    image: tuple[int, ...] | None

    @property
    def spec(self) -> ResNetSpec | None:
        """The spec of one of the paper's networks; None for others."""
        if self.reference not in SPECS:
            return None
        spec = spec_of(self.reference, self.norm, self.classes)
        if self.image is None or len(self.image) != 3:
            raise ModebridgeError(
                f"Expected images of (channels, height, width) for net {self.reference}, but the data has "
                f"{self.image or 'several inputs'}; use your own network."
            )
        channels, height, width = self.image
        if channels != spec.image[0]:
            raise ModebridgeError(
                f"Expected net to take images with the data's {channels} channel(s), but {self.reference} takes "
                f"{spec.image[0]}; choose another net."
            )
        return replace(spec, image=(channels, height, width))

    @property
    def key(self) -> str:
        """Identifies the architecture in the keys of trained artefacts."""
        spec = self.spec
        return str(spec) if spec is not None else _described(self, _date(self.reference))

    def build(self, generator: torch.Generator) -> nn.Module:
        """A network with weights drawn from the generator; torch's global generator is not changed.

        Thread-safe: networks of other libraries are built one at a time.
        """
        spec = self.spec
        if spec is not None:
            return ResNet(spec, generator)
        _check_reference(self.reference)  # import before the global generators are borrowed
        with seeded(int(torch.randint(2**62, (), generator=generator))):
            return self._from_elsewhere()

    @property
    def shared_name(self) -> str | None:
        """The name and all options of a network of timm or torchvision, without weights, for files that are shared.

        None for the paper's networks, which are described by their spec, and for functions of users.
        """
        if self.reference in SPECS or split_reference(self.reference) is not None:
            return None
        return full_name(self.reference, **self._usual_options())

    def _usual_options(self) -> dict[str, int]:
        options = {"num_classes": self.classes}
        if self.image and self.reference.startswith("timm:"):
            options["in_chans"] = self.image[0]  # torchvision's have no such argument: they take red, green and blue
        return options

    def _from_elsewhere(self) -> nn.Module:
        channels = self.image[0] if self.image else None
        if split_reference(self.reference) is not None:
            arguments = {"classes": self.classes} | ({} if channels is None else {"channels": channels})
            net = call_function(self.reference, "net", **arguments)
        else:
            factory, options = library_factory(self.reference)
            try:
                net = factory(**(self._usual_options() | options))
            except Exception as error:  # another library can raise anything for wrong options
                raise ModebridgeError(
                    f"Expected '{self.reference}' to build, but got {type(error).__name__}: '{first_line(error)}'; "
                    "check its options."
                ) from error
        if not isinstance(net, nn.Module):
            raise ModebridgeError(
                f"Expected net '{self.reference}' to return a torch.nn.Module, but got {type(net).__name__}; return "
                "the network."
            )
        return net


def network_of(recipe: Recipe, facts: DataFacts) -> Network:
    """The network of a recipe for its data."""
    image = facts.image
    if recipe.net in SPECS and recipe.data.name in NAMED and image is not None and not recipe.data.size:
        # The paper's networks on named sets use their own image size, whatever the set's.
        image = (image[0], *SPECS[recipe.net].image[1:])
    return Network(recipe.net, recipe.norm, facts.classes, image)


def _check_reference(reference: str) -> None:
    """Raise an error if a text does not name a network, without building one."""
    if split_reference(reference) is not None:
        find_function(reference, "net")
    elif reference not in SPECS:
        library_factory(reference)


def _date(reference: str) -> int:
    """The modification time of a user's file, since an edited file may build a different network."""
    location = split_reference(reference)
    return location[0].stat().st_mtime_ns if location is not None and location[0].is_file() else 0


@cache
def _described(network: Network, _date: int) -> str:
    """Layers, names and shapes, without the memory addresses that some layers print."""
    net = network.build(torch.Generator().manual_seed(0))
    tensors = {name: tensor for name, tensor in net.state_dict().items() if isinstance(tensor, Tensor)}
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
    return f"{re.sub(' at 0x[0-9a-f]+', '', repr(net))}\n{shapes}"


def check_recipe(recipe: Recipe, data: RunData | None = None) -> None:
    """Raise an error if network, images and bridges do not fit together; without data as far as possible unread."""
    if data is None:
        _check_without_data(recipe)
    else:
        _check(recipe, data.facts, data.few())


@cache  # a recipe is checked when it is read, and before it is used
def _check_without_data(recipe: Recipe) -> None:
    facts = facts_of(recipe)
    if facts is None:
        _check_reference(recipe.net)
    else:
        _check(recipe, facts, torch.zeros(2, *facts.image or ()))


def _check(recipe: Recipe, facts: DataFacts, inputs: Inputs) -> None:
    _check_reference(recipe.net)
    network = network_of(recipe, facts)
    spec, side = network.spec, facts.image[-1] if facts.image else 0
    if recipe.data.pad > side:
        raise ModebridgeError(
            f"Expected data.pad to be at most the image side of {side} pixels, but got {recipe.data.pad}; lower it."
        )
    if spec is not None:
        last_blocks_tap(spec)
        narrowest = min(planes for planes, _ in spec.blocks()[-3:])
        if recipe.width_divisor > narrowest:
            raise ModebridgeError(
                f"Expected width_divisor to be at most {narrowest}, the narrowest width that it divides, but got "
                f"{recipe.width_divisor:g}; 1 keeps the widths, 2 halves them."
            )
    if spec is None or recipe.budget:
        _check_by_running(recipe, network, inputs)


@torch.no_grad()
def _check_by_running(recipe: Recipe, network: Network, inputs: Inputs) -> None:
    """Run two images through the network, and through a bridge of each size."""
    net = frozen_copy(network.build(torch.Generator().manual_seed(0)))
    try:
        with seeded(0):  # networks that draw random numbers must not disturb the caller's generator
            logits = call(net, inputs)
    except ModebridgeError:
        raise
    except Exception as error:  # a user's module can raise anything
        raise ModebridgeError(
            f"Expected net '{recipe.net}' to run on the data's images, {shapes_of(inputs)}, but got "
            f"'{first_line(error)}'; set its options for such images, or use other images."
        ) from error
    if logits.shape != (size_of(inputs), network.classes):
        raise ModebridgeError(
            f"Expected net '{recipe.net}' to return logits of (batch, {network.classes}), one per class of the data, "
            f"but got {tuple(logits.shape)} for {size_of(inputs)} images; build it with {network.classes} classes."
        )
    for size in recipe.sizes:
        build_bridge(net, inputs, "I", slim=recipe.slim(size), budget=recipe.budget_of(size), name=f"{size} bridge")
