"""Shared code of bridges, their heads and their control: a body on the features of modes, all trained in one pass."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from modebridge.bridges import Bridge, Kind
from modebridge.members.artefact import Artefact, ArtefactData, Parents, Tensors, TrainedWeights
from modebridge.members.member import Body, Member
from modebridge.members.predictor import BridgePredictor
from modebridge.members.setting import Setting
from modebridge.nets import frozen_copy
from modebridge.recipes import Recipe
from modebridge.scoring import MemberCost
from modebridge.training import TrainConfig, fit_many

__all__ = ["SIZE", "BridgeWeights", "SmallNetwork"]

SIZE = r"(small|medium|slim\d+(?:\.\d+)?)"
"""The sizes that `Recipe.slim` accepts, as part of members' names."""


@dataclass(frozen=True)
class BridgeWeights(TrainedWeights):
    """The weights of a bridge; all missing ones are trained in one pass."""

    member: SmallNetwork
    folder = "bridges"
    stage = "bridges"
    together = "all"

    @property
    def name(self) -> str:
        """The name of the member."""
        return self.member.name

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """What it reads, and its targets."""
        return self.member.learns_from(recipe)

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """Data, seed, training, size and mixup; CutMix only if enabled, because earlier versions did not have it."""
        recipe, (mixup, cutmix) = setting.recipe, self.mixing(setting)
        return {
            "data": setting.data.fed_as,
            "net": setting.network.key,
            "seed": setting.seed_of("bridges"),
            "training": self.training(recipe).key,
            "width": (recipe.slim(self.member.size), recipe.budget_of(self.member.size)),
            "mixup": mixup,
            **({"cutmix": cutmix} if cutmix else {}),
            "batch": recipe.data.bridge_batch_size,
        }

    def training(self, recipe: Recipe) -> TrainConfig:
        """As set in the recipe."""
        return recipe.training("bridge")

    @classmethod
    def mixing(cls, setting: Setting) -> tuple[float, float]:
        """The alphas of mixup and CutMix, as set in the recipe."""
        return setting.recipe.mixup, setting.recipe.cutmix

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Train them in one pass."""
        mixup, cutmix = cls.mixing(setting)
        trained = fit_many(
            setting.net,
            {artefact.name: artefact.member.plan(setting, parents) for artefact in group},
            setting.data.train("bridges", bridges=True),
            replace(config, seed=setting.seed_of("bridges"), mixup=mixup, cutmix=cutmix),
            valid=setting.data.valid(),
        )
        return {name: ArtefactData(bridge.state_dict()) for name, bridge in trained.items()}

    @classmethod
    def work(cls, group: Sequence[Self], setting: Setting) -> float:
        """Forward and backward for each bridge, and one forward pass per frozen network that they read or imitate."""
        members = [artefact.member for artefact in group]
        frozen = {network for member in members for network in (*member.reads, *member.teachers(setting.recipe))}
        trained = sum(3 * member.chosen(setting).flops for member in members)
        return trained + setting.base_cost.flops * len(frozen)


class SmallNetwork(Member):
    """Shared code of bridges and their control: a body on the features of modes."""

    size: str
    """The width: "small", "medium", "slim8"."""

    @property
    def body_kind(self) -> Kind:
        """How many networks the body reads: "I" one, "II" two."""
        return "I" if len(self.reads) == 1 else "II"

    def learns_from(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The artefacts that must exist before it is trained: what it reads, and what it learns."""
        networks = (*self.reads, *self.teachers(recipe))
        return tuple(dict.fromkeys(artefact for member in networks for artefact in member.artefacts(recipe)))

    @abstractmethod
    def plan(self, setting: Setting, tensors: Mapping[str, Tensors]) -> Bridge:
        """The bridge before training."""

    @property
    def position(self) -> float | None:
        """The position of its target on a curve; None if it has none."""
        return None

    def teachers(self, recipe: Recipe) -> tuple[Member, ...]:
        """The networks that it learns from."""
        return (self.imitates,) if self.imitates is not None else ()

    def heads(self, recipe: Recipe) -> int:
        """The number of heads of its body."""
        return 1

    def chosen(self, setting: Setting) -> Bridge:
        """Its body with its cost, shared by all of its size."""
        return setting.body(self.body_kind, self.size, self.heads(setting.recipe))

    def weights(self) -> BridgeWeights:
        """Its weights."""
        return BridgeWeights(self)

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights, and the modes that it reads."""
        return (self.weights(), *(artefact for member in self.reads for artefact in member.artefacts(recipe)))

    def load(self, setting: Setting, tensors: Mapping[str, Tensors]) -> BridgePredictor:
        """The bridge on its modes."""
        modes = {
            member.name: setting.load_mode(tensors[artefact.place])
            for member in self.reads
            for artefact in member.artefacts(setting.recipe)
        }
        chosen = self.chosen(setting)
        body, heads = copy.deepcopy(chosen.body).to_empty(device="cpu"), self.heads(setting.recipe)
        # In the memory format after training, which files do not store: logits are identified by content only.
        bridge = frozen_copy(
            Bridge(body, list(modes.values()), chosen.taps, self.position, self.name, chosen.share, heads)
        )
        assert isinstance(bridge, Bridge)
        bridge.load_state_dict(dict(tensors[self.weights().place]))
        return BridgePredictor(bridge, modes)

    def cost(self, setting: Setting) -> MemberCost:
        """The cost of its body."""
        chosen = self.chosen(setting)
        return MemberCost(chosen.flops, chosen.params, tuple(member.name for member in self.reads))

    def body(self, setting: Setting) -> Body:
        """A body of its size."""
        chosen = self.chosen(setting)
        return Body(copy.deepcopy(chosen.body).to_empty(device="cpu"), chosen.taps, len(self.reads))
