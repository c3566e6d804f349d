"""The network of a recipe: one of the paper's, from timm or torchvision, or from a user's function."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from modebridge.batches import shapes_of, size_of
from modebridge.bridges import build_bridge, last_blocks_tap
from modebridge.data.sets import NAMED
from modebridge.errors import ModebridgeError, first_line, quoting
from modebridge.files import full_name, library_factory
from modebridge.nets import SPECS, Norm, ResNet, ResNetSpec, call, frozen_copy, spec_of
from modebridge.recipes.data import DataFacts, RunData, facts_of
from modebridge.recipes.recipe import Recipe
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
        channels, *sides = self.image or (0,)
        if len(sides) != 2 or channels != spec.image[0]:
            raise ModebridgeError(
                f"Expected images of ({spec.image[0]}, height, width) for net {self.reference}, but the data has "
                f"{self.image or 'several inputs'}; choose another net, or use your own."
            )
        return replace(spec, image=(channels, sides[0], sides[1]))

    @cached_property
    def key(self) -> str:
        """Identifies the architecture in the keys of trained artifacts: the spec, or layers, names and shapes."""
        if self.spec is not None:
            return str(self.spec)
        net = self.build(torch.Generator().manual_seed(0))
        tensors = {name: tensor for name, tensor in net.state_dict().items() if isinstance(tensor, Tensor)}
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        # Without the memory addresses that some layers print.
        return f"{re.sub(' at 0x[0-9a-f]+', '', repr(net))}\n{shapes}"

    def build(self, generator: torch.Generator) -> nn.Module:
        """A network with weights drawn from the generator; torch's global generator is not changed.

        Thread-safe: networks of other libraries are built one at a time.
        """
        spec = self.spec
        if spec is not None:
            return ResNet(spec, generator)
        _check_reference(self.reference)  # import before the global generators are borrowed
        with seeded(int(torch.randint(2**62, (), generator=generator))):
            net = self._from_elsewhere()
        if not isinstance(net, nn.Module):
            raise ModebridgeError(
                f"Expected net '{self.reference}' to return a torch.nn.Module, but got {type(net).__name__}; return "
                "the network."
            )
        return net

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

    def _from_elsewhere(self) -> object:
        if split_reference(self.reference) is not None:
            channels = self.image[0] if self.image else None
            return call_function(self.reference, "net", classes=self.classes, channels=channels)
        factory, options = library_factory(self.reference)
        try:
            return factory(**(self._usual_options() | options))
        except Exception as error:  # another library can raise anything for wrong options
            raise ModebridgeError(
                f"Expected '{self.reference}' to build, but got {type(error).__name__}: '{first_line(error)}'; "
                "check its options."
            ) from error


def network_of(recipe: Recipe, facts: DataFacts) -> Network:
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


def check_recipe(recipe: Recipe, data: RunData | None = None) -> None:
    """Raise an error if network, images and bridges do not fit together; without data as far as possible unread."""
    _check_reference(recipe.net)
    facts = facts_of(recipe) if data is None else data.facts
    if facts is None:
        return
    network = network_of(recipe, facts)
    spec, side = network.spec, facts.image[-1] if facts.image else 0
    if recipe.data.pad > side:
        raise ModebridgeError(
            f"Expected data.pad to be at most the image side of {side} pixels, but got {recipe.data.pad}; lower it."
        )
    if spec is not None:
        last_blocks_tap(spec)
        narrowest = min(planes for planes, _ in list(spec.blocks())[-3:])
        if recipe.width_divisor > narrowest:
            raise ModebridgeError(
                f"Expected width_divisor to be at most {narrowest}, the narrowest width that it divides, but got "
                f"{recipe.width_divisor:g}; 1 keeps the widths, 2 halves them."
            )
    if spec is None or recipe.budget:
        _check_by_running(recipe, network, torch.zeros(2, *facts.image or ()) if data is None else data.few())


@torch.no_grad()
def _check_by_running(recipe: Recipe, network: Network, inputs: Inputs) -> None:
    """Run two images through the network, and through a bridge of each size."""
    net = frozen_copy(network.build(torch.Generator().manual_seed(0)))
    expected = f"net '{recipe.net}' to run on the data's images, {shapes_of(inputs)}"
    # A user's module can raise anything, and draw random numbers.
    with quoting(expected, "set its options for such images, or use other images"), seeded(0):
        logits = call(net, inputs)
    if logits.shape != (size_of(inputs), network.classes):
        raise ModebridgeError(
            f"Expected net '{recipe.net}' to return logits of (batch, {network.classes}), one per class of the data, "
            f"but got {tuple(logits.shape)} for {size_of(inputs)} images; build it with {network.classes} classes."
        )
    for size in recipe.sizes:
        build_bridge(net, inputs, "I", slim=recipe.slim(size), budget=recipe.budget_of(size), name=f"{size} bridge")
