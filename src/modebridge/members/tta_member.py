"""Test-time augmentation: mode 0 evaluated on several views of an image; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.baselines.rival import mean_logits
from modebridge.errors import ModebridgeError
from modebridge.members.artefact import Artefact, Tensors, key_of
from modebridge.members.context import Blueprint
from modebridge.members.member import Member, Numbered
from modebridge.members.mode_member import ModeMember
from modebridge.members.predictor import Outputs, Predictor
from modebridge.modes import Mode
from modebridge.nets import Mean, frozen_copy, logits_of, run
from modebridge.recipes import Recipe
from modebridge.scoring import MemberCost, module_cost
from modebridge.types import Inputs

__all__ = ["TtaMember", "TtaPredictor", "View", "views_of"]


@dataclass(frozen=True)
class View:
    """An image shifted over a margin of zeros, as cropped in training, or mirrored.

    Args:
        down: shift downwards in pixels.
        across: shift to the right in pixels.
        mirrored: whether left and right are exchanged, instead of a shift.
    """

    down: int = 0
    across: int = 0
    mirrored: bool = False

    def __call__(self, images: Tensor) -> Tensor:
        """The view of (B, C, H, W) images."""
        if self.mirrored:
            return images.flip(-1)
        pad = max(abs(self.down), abs(self.across))
        if not pad:
            return images
        height, width = images.shape[-2:]
        top, left = pad - self.down, pad - self.across
        return F.pad(images, (pad, pad, pad, pad))[..., top : top + height, left : left + width]


SHIFTS = (View(across=1), View(across=-1), View(down=1), View(down=-1))


def views_of(count: int, *, flip: bool) -> tuple[View, ...]:
    """The first `count` of these views: the image; mirrored, if training mirrors too; shifted by one pixel each way.

    >>> views_of(2, flip=True)[1]
    View(down=0, across=0, mirrored=True)
    """
    views = (View(), *([View(mirrored=True)] if flip else []), *SHIFTS)
    if not 2 <= count <= len(views):
        raise ModebridgeError(
            f"Expected test-time augmentation to have 2 to {len(views)} views on this data, but got {count}; use for "
            "example tta-4."
        )
    return views[:count]


class Views(nn.Module):
    """A network evaluated on views: from images to the log of the mean probability, (B, K).

    Args:
        net: from images to logits.
        views: the views of each image.
        mean: how views are averaged.
    """

    def __init__(self, net: nn.Module, views: Sequence[View], mean: Mean = "probability") -> None:
        super().__init__()
        self.net = net
        self.views = tuple(views)
        self.mean = mean

    def forward(self, images: Tensor) -> Tensor:
        """The log of the mean over views of the network's probabilities."""
        return mean_logits(torch.stack([logits_of(self.net(view(images))) for view in self.views]), self.mean)


class TtaPredictor(Predictor):
    """A mode evaluated on views, one head per view.

    Args:
        net: the architecture, in evaluation mode.
        name: name of the mode as a member, whose output serves for the unchanged image.
        mode: its weights.
        views: the views of each image, the unchanged image first.
    """

    def __init__(self, net: nn.Module, name: str, mode: Mode, views: Sequence[View]) -> None:
        super().__init__({name: mode})
        self.net, self.name, self.mode, self.views = net, name, mode, tuple(views)

    @property
    def id(self) -> str:
        """A hash of views and mode."""
        return key_of(self.views, self.mode.id)

    def heads(self, inputs: Inputs, outputs: Outputs) -> list[Tensor]:
        """The mode's logits on each view."""
        assert isinstance(inputs, Tensor)
        logits = [run(self.net, self.mode.params, self.mode.buffers, view(inputs)) for view in self.views[1:]]
        return [outputs[self.name][0], *logits]

    def module(self, mean: Mean = "probability") -> nn.Module:
        """The whole predictor as one module, from images to the log of the mean probability."""
        return Views(self.mode.load(self.net), self.views, mean)

    def to(self, device: torch.device | str) -> TtaPredictor:
        """The same on another device."""
        return TtaPredictor(frozen_copy(self.net).to(device), self.name, self.mode.to(device), self.views)


@dataclass(frozen=True)
class TtaMember(Numbered):
    """Mode 0 evaluated on `count` views.

    >>> TtaMember(4).name
    'tta-4'
    """

    count: int
    method = "tta"
    family = "test-time augmentation"
    pattern = r"tta-(\d+)"
    alone = True

    @property
    def title(self) -> str:
        """With the number of views."""
        return f"test-time augmentation x{self.count}"

    @property
    def ancestors(self) -> tuple[Member, ...]:
        """The mode."""
        return (ModeMember(0),)

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The artefacts of the mode."""
        return ModeMember(0).artefacts(recipe)

    def load(self, blueprint: Blueprint, tensors: Mapping[str, Tensors]) -> TtaPredictor:
        """The mode and the views."""
        mode = ModeMember(0)
        return TtaPredictor(
            frozen_copy(blueprint.net), mode.name, mode.load(blueprint, tensors).mode, self._views(blueprint)
        )

    def cost(self, blueprint: Blueprint) -> MemberCost:
        """One pass of the network per view; its parameters count once."""
        views = self._views(blueprint)
        counted = module_cost(Views(blueprint.bare, views), blueprint.network.image or ())
        return MemberCost(counted.flops, counted.params)

    def whole(self, blueprint: Blueprint) -> nn.Module:
        """The network on all views."""
        return Views(blueprint.net, self._views(blueprint))

    def _views(self, blueprint: Blueprint) -> tuple[View, ...]:
        shape = blueprint.network.image
        if shape is None or len(shape) != 3:
            raise ModebridgeError(
                "Expected inputs of test-time augmentation to be images of (channels, height, width), but got "
                f"{'several inputs by name' if shape is None else shape}; remove tta from methods."
            )
        return views_of(self.count, flip=blueprint.recipe.data.flip)

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """Two and four views."""
        return [cls(2), cls(4)]
