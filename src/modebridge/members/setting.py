"""The setting of a run: its recipe, seed, data and device, and what follows from them, each built once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from modebridge import seeds
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import ResNet, frozen_copy
from modebridge.recipes import DataFacts, Network, Recipe, RunData, ShiftedData, check_recipe, facts_of, network_of
from modebridge.recipes.user_code import load_file
from modebridge.scoring import Cost, module_cost
from modebridge.training import Engine, TrainConfig
from modebridge.types import Inputs

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What a run is made from and where; equal by value, and small when pickled: another process builds the rest.

    Args:
        recipe: the choices.
        seed: seed of every random choice.
        data_folder: the folder with a named set's official files.
        device: "auto", "cpu" or "cuda".
        known: facts about the data, if it has been read before; then costs and networks need no data.
    """

    recipe: Recipe
    seed: int = 0
    data_folder: str | None = None
    device: str = "auto"
    known: DataFacts | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Also in another process, before it unpickles a job: it must know the user's kinds of members.
        if self.recipe.members_file:
            load_file(Path(self.recipe.members_file))

    def __reduce__(self) -> tuple[type[Setting], tuple[Any, ...]]:
        return Setting, tuple(getattr(self, one.name) for one in fields(self))

    def check(self) -> None:
        """Raise an error if the recipe does not fit together; data is read only if nothing is known about it."""
        check_recipe(self.recipe, self.data if facts_of(self.recipe) is None else None)

    @cached_property
    def engine(self) -> Engine:
        """Where and how to train. "auto" keeps recipes for the CPU off a GPU, where compiling takes longer."""
        if self.device not in ("auto", "cpu", "cuda"):
            raise ModebridgeError(f"Expected device to be auto, cpu or cuda, but got '{self.device}'; choose one.")
        if self.device == "cpu" or (self.device == "auto" and self.recipe.device == "cpu"):
            return Engine()
        return Engine.of(TrainConfig(epochs=0, device=self.device))

    @cached_property
    def data(self) -> RunData:
        return RunData(self.recipe, self.seed, self.data_folder, self.engine.device)

    @cached_property
    def shifted(self) -> ShiftedData:
        return ShiftedData(self.recipe, self.data)

    @cached_property
    def facts(self) -> DataFacts:
        """The facts about the data, which is read only if they are not known."""
        return self.known or facts_of(self.recipe) or self.data.facts

    @cached_property
    def network(self) -> Network:
        return network_of(self.recipe, self.facts)

    @cached_property
    def net(self) -> nn.Module:
        """The architecture; its weights are arbitrary."""
        return self.network.build(seeds.generator(self.seed, "net"))

    @cached_property
    def bare(self) -> nn.Module:
        """The architecture for counting, without weights if possible: initializing them takes seconds."""
        if self.network.spec is None:
            return self.net
        with torch.device("meta"):
            return ResNet(self.network.spec)

    def placed(self) -> nn.Module:
        return frozen_copy(self.net).to(self.engine.device)

    @cached_property
    def example(self) -> Inputs:
        """Two inputs, to find shapes: noise if the shape of images is known, else from the data."""
        if self.known is None and facts_of(self.recipe) is None:
            return self.data.few()
        if self.facts.image is None:
            raise ModebridgeError(
                "Expected the network to take images, but it takes several inputs by name; use the library's functions "
                "(modebridge.export, modebridge.cost) with your own inputs."
            )
        return torch.rand(2, *self.facts.image, generator=torch.Generator().manual_seed(0))

    def load_mode(self, tensors: Mapping[str, Tensor]) -> Mode:
        return Mode.from_state_dict(self.net, tensors)

    def seed_of(self, *names: str | int) -> int:
        return seeds.seed_for(self.seed, *names)

    @cached_property
    def base_cost(self) -> Cost:
        return module_cost(self.bare, self.example)

    @cached_property
    def _kept(self) -> dict[object, Any]:
        return {}

    def once(self, key: object, build: Callable[[], T]) -> T:
        """What `build` returned when it was called, once per key."""
        if key not in self._kept:
            self._kept[key] = build()
        return self._kept[key]  # type: ignore[no-any-return]
