"""What members are built with: the network of a recipe, and in a run also its images and the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TypedDict

import torch
from torch import Tensor, nn

from modebridge import seeds
from modebridge.batches import map_inputs
from modebridge.bridges import ChosenBody, Kind, ResidualBody, choose_body
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import ResNet, frozen_copy
from modebridge.recipes import Network, Recipe, RunData, ShiftedData
from modebridge.scoring import Cost, module_cost
from modebridge.training import Engine
from modebridge.types import Inputs

__all__ = ["Blueprint", "Context", "Sizing"]

ROUNDING = 1 + 1e-9
"""So that a body fits into its own share of the FLOPs, which is rounded."""


class Sizing(TypedDict):
    """The options of `choose_body` and `plan_bridge` that set a body's width and blocks."""

    slim: float
    budget: float | None
    wide: bool


class Blueprint:
    """A recipe and its network, without data: enough to count costs and to load trained artefacts.

    Args:
        recipe: the choices.
        network: the network for its images and classes.
        seed: seed of the run.
    """

    def __init__(self, recipe: Recipe, network: Network, seed: int = 0) -> None:
        self.recipe = recipe
        self.network = network
        self.seed = seed
        self._bodies: dict[tuple[Kind, str, int, bool], ChosenBody] = {}
        self._costs: dict[str, Cost] = {}

    @cached_property
    def net(self) -> nn.Module:
        """The architecture; its weights are arbitrary."""
        return self.network.build(seeds.generator(self.seed, "net"))

    @cached_property
    def example(self) -> Inputs:
        """Two images (or inputs), to find shapes."""
        if self.network.image is None:
            raise ModebridgeError(
                "Expected the network to take images, but it takes several inputs by name; use the library's functions "
                "(modebridge.export, modebridge.cost) with your own inputs."
            )
        return torch.rand(2, *self.network.image, generator=torch.Generator().manual_seed(0))

    @cached_property
    def base_cost(self) -> Cost:
        """The cost of one network."""
        example = self.example
        return module_cost(self.bare, tuple(example.shape[1:]) if isinstance(example, torch.Tensor) else example)

    @cached_property
    def bare(self) -> nn.Module:
        """The architecture for counting, without weights if possible: initialising them takes seconds."""
        if self.network.spec is None:
            return self.net
        with torch.device("meta"):
            return ResNet(self.network.spec)

    def load_mode(self, tensors: Mapping[str, Tensor]) -> Mode:
        """A mode from its tensors."""
        return Mode.from_state_dict(self.net, tensors)

    def cost_of(self, name: str, build: Callable[[], nn.Module]) -> Cost:
        """The cost of another network on the same images, built and counted once per name."""
        if name not in self._costs:
            self._costs[name] = module_cost(build(), self.example)
        return self._costs[name]

    def body(self, kind: Kind, size: str, heads: int = 1, wide: bool = False) -> ChosenBody:
        """The body of a bridge with its cost; it may have no weights."""
        if (kind, size, heads, wide) not in self._bodies:
            options = self.sizing(kind, size, heads, wide)
            device = next(self.bare.parameters()).device
            example = map_inputs(lambda tensor: tensor.to(device), self.example)
            with torch.device(device):  # where the body is built
                self._bodies[kind, size, heads, wide] = choose_body(self.bare, example, kind, heads=heads, **options)
        return self._bodies[kind, size, heads, wide]

    def sizing(self, kind: Kind, size: str, heads: int, wide: bool) -> Sizing:
        """What sets the width of a body: a wide body gets the FLOPs of the plain one, so that costs are equal."""
        plain: Sizing = {"slim": self.recipe.slim(size), "budget": self.budget(size), "wide": False}
        if not wide:
            return plain
        chosen = self.body(kind, size, heads)
        if not chosen.share or not any(isinstance(module, ResidualBody) for module in chosen.body.modules()):
            return plain  # no blocks
        return {**plain, "budget": plain["budget"] or chosen.share * ROUNDING, "wide": True}

    def budget(self, size: str) -> float | None:
        """The maximum share of the network's FLOPs for bridges of a size; None if `recipe.slim` sets the width."""
        return self.recipe.budget if size == "small" and self.recipe.budget else None


class Context(Blueprint):
    """A blueprint with the images of a run and the device.

    Args:
        recipe: the choices.
        network: the network.
        seed: seed of every random choice.
        data: the images.
        engine: where and how to train.
        progress: called with the progress of work without epochs: stage, done, total, rate.
    """

    def __init__(
        self,
        recipe: Recipe,
        network: Network,
        seed: int,
        data: RunData,
        engine: Engine,
        progress: Callable[[str, int, int, float], None] = lambda stage, done, total, rate: None,
    ) -> None:
        super().__init__(recipe, network, seed)
        self.data = data
        self.engine = engine
        self.progress = progress
        self.made_on: str = engine.device.type
        """The type of device that artefacts are made on; differs from the engine's if other machines make them."""
        self.most: int | None = None
        """Maximum number of artefacts to train together, so that many devices get jobs; None for no limit."""

    @cached_property
    def example(self) -> Inputs:
        """Two training images."""
        return self.data.few()

    @cached_property
    def shifted(self) -> ShiftedData:
        """The test images under corruptions, and images of other sets."""
        return ShiftedData(self.recipe, self.data)

    @property
    def together(self) -> int:
        """How many networks are trained together: several on a GPU, one per core on a CPU."""
        return self.recipe.together if self.made_on == "cuda" else 1

    def seed_of(self, *names: str | int) -> int:
        """The seed for one purpose."""
        return seeds.seed_for(self.seed, *names)

    def placed(self) -> nn.Module:
        """A copy of the network on the device."""
        return frozen_copy(self.net).to(self.engine.device)
