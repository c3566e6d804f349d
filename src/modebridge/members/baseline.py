"""Ensembles inside one network, as one member with M predictions: BatchEnsemble, MIMO and packed ensembles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import nn

from modebridge import seeds
from modebridge.baselines import Baseline, BatchEnsemble, Mimo, Packed
from modebridge.baselines.mimo import REPEATS, SAME
from modebridge.baselines.packed import check_split
from modebridge.errors import ModebridgeError
from modebridge.members.member import Member, Parents
from modebridge.members.network import TrainedNetwork
from modebridge.members.setting import Setting
from modebridge.modes import Mode
from modebridge.nets import SPECS, ResNet, ResNetSpec
from modebridge.recipes import Recipe
from modebridge.scoring import MemberCost, module_cost


class BaselineMember(Member, TrainedNetwork):
    """A network of several members, trained like a mode; its fields are the numbers in its name, as in "mimo-2-x3"."""

    alone = True
    folder = "baselines"
    stage = "baselines"
    together = "several"
    constants: ClassVar[str] = ""
    """Constants of the method that affect its training."""
    rows_per_image: ClassVar[int] = 1
    """How often every image is in a batch of training."""

    @property
    def _numbers(self) -> list[int]:
        members, *width = vars(self).values()
        return [members, *(multiple for multiple in width if multiple != 1)]

    @property
    def name(self) -> str:
        return f"{self.method}-{'-x'.join(map(str, self._numbers))}"

    @property
    def title(self) -> str:
        members, *width = self._numbers
        return f"{self.family}, {members} members" + "".join(f", width x{multiple}" for multiple in width)

    @property
    def purpose(self) -> tuple[str | int, ...]:
        return "rival", self.name

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {**super().ingredients(setting), "method": f"{self} {self.constants}"}

    @classmethod
    def work(cls, group: Sequence[Self], setting: Setting) -> float:
        return 3 * sum(node.rows_per_image * node.cost(setting).flops for node in group)

    def load(self, setting: Setting, tensors: Parents) -> nn.Module:
        empty = self._empty(setting)
        return Mode.from_state_dict(empty, tensors[self.place]).load(empty).eval().requires_grad_(False)

    def cost(self, setting: Setting) -> MemberCost:
        counted = setting.once(self.name, lambda: module_cost(self._empty(setting), setting.example))
        return MemberCost(counted.flops, counted.params)

    def _empty(self, setting: Setting) -> nn.Module:
        return self.build(setting, seeds.generator(setting.seed, "net"))

    def _spec(self, setting: Setting) -> ResNetSpec:
        """The spec of one of the paper's networks, whose widths are known; raises an error for other networks."""
        spec = setting.network.spec
        if spec is None:
            raise ModebridgeError(
                f"Expected one of the paper's networks for {self.name}, because it changes widths, but got "
                f"'{setting.network.reference}'; use the method without a width."
            )
        return spec


@dataclass(frozen=True)
class BatchEnsembleMember(BaselineMember):
    """M members that share all weights except two vectors per layer; costs M passes.

    >>> BatchEnsembleMember(4).name
    'batch-ensemble-4'
    """

    members: int = 4
    method = "batch-ensemble"
    family = "BatchEnsemble"
    pattern = r"batch-ensemble-(?P<members>\d+)"

    def build(self, setting: Setting, generator: torch.Generator) -> Baseline:
        net = setting.network.build(generator)
        return BatchEnsemble(net, self.members, example=setting.example, generator=generator)


@dataclass(frozen=True)
class MimoMember(BaselineMember):
    """One network that reads M images and predicts each; in use all M are the same image, and it costs one pass.

    Args:
        members: number of members M.
        width: width of all but the stem, in multiples of the recipe's network; 1 for any network, more only for the
            paper's (its own MIMO has 2).

    >>> MimoMember(2).name, MimoMember(3, 2).name
    ('mimo-2', 'mimo-3-x2')
    """

    members: int = 2
    width: int = 1
    method = "mimo"
    family = "MIMO"
    pattern = r"mimo-(?P<members>\d+)(?:-x(?P<width>[2-9]))?"
    constants = f"repeats {REPEATS} same {SAME}"
    rows_per_image = REPEATS

    def build(self, setting: Setting, generator: torch.Generator) -> Baseline:
        if self.width == 1:
            net = setting.network.build(generator)
        else:
            spec = self._spec(setting)
            net = ResNet(replace(spec, widths=tuple(self.width * width for width in spec.widths)), generator)
        return Mimo(net, self.members, example=setting.example, generator=generator)


@dataclass(frozen=True)
class PackedMember(BaselineMember):
    """A packed ensemble: M narrow networks run as one by grouped convolutions.

    Args:
        members: number of members M.
        alpha: width of all members together, in multiples of the recipe's network; 1 for any network, more only for the
            paper's.

    >>> PackedMember(4, 2).name, PackedMember(4, 1).name
    ('packed-4-x2', 'packed-4')
    """

    members: int = 4
    alpha: int = 1
    method = "packed"
    family = "packed ensemble"
    pattern = r"packed-(?P<members>\d+)(?:-x(?P<alpha>[2-9]))?"

    def build(self, setting: Setting, generator: torch.Generator) -> Baseline:
        if self.alpha == 1 and setting.network.spec is None:
            return Packed(setting.network.build(generator), self.members, example=setting.example)
        spec = self._spec(setting)
        packed = Packed(ResNet(_scaled(spec, self.alpha, 1)), self.members, example=setting.example)
        packed.fill([ResNet(_scaled(spec, self.alpha, self.members), generator) for _ in range(self.members)])
        return packed

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        return [cls(alpha=2 if recipe.net in SPECS else 1)]


def _scaled(spec: ResNetSpec, alpha: int, members: int) -> ResNetSpec:
    """All widths of a network, including the stem's, times alpha and divided among members."""

    def part(width: int) -> int:
        check_split(alpha * width, members, "the widths")
        return alpha * width // members

    stem, kernel, stride = spec.stem
    return replace(spec, widths=tuple(map(part, spec.widths)), stem=(part(stem), kernel, stride))
