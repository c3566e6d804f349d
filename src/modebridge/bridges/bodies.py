"""The small networks inside bridges: residual blocks for maps and sequences, layers on tokens, perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.nets import BasicBlock, Norm, initialise
from modebridge.nets.blocks import Padding
from modebridge.storage import rebuildable
from modebridge.types import Layout

__all__ = ["Heads", "Join", "ResidualBody", "TokenBody", "VectorBody"]


class Join(nn.Module):
    """Features as one, joined on channels in the order given; maps come out channels first.

    Maps and sequences of several taps may differ in size: the mean takes the larger ones down to the smallest.

    Args:
        layout: of the features.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, *features: Tensor) -> Tensor:
        """Map features to one: (B, C, H, W), (B, C, L), (B, T, C) or (B, C)."""
        if self.layout != "tokens" and len({feature.shape[1:] for feature in features}) > 1:
            maps = [x.permute(0, 3, 1, 2) if self.layout == "map, channels last" else x for x in features]
            size = tuple(min(sides) for sides in zip(*(x.shape[2:] for x in maps), strict=True))
            pool: Any = F.adaptive_avg_pool2d if len(size) == 2 else F.adaptive_avg_pool1d
            return torch.cat([x if x.shape[2:] == size else pool(x, size) for x in maps], dim=1)
        x = features[0] if len(features) == 1 else torch.cat(features, dim=1 if self.channels_first else -1)
        return x.permute(0, 3, 1, 2) if self.layout == "map, channels last" else x

    @property
    def channels_first(self) -> bool:
        """Whether the channels of the features are on the axis behind the batch."""
        return self.layout in ("map", "sequence", "vector")

    def extra_repr(self) -> str:
        """What torch prints; bodies that differ in it are different programs."""
        return self.layout


@rebuildable
class ResidualBody(nn.Module):
    """Residual blocks on a feature map or a sequence, then average pool and a linear head.

    Args:
        inputs: channels of the feature that comes in, of both where there are two.
        blocks: (planes, stride) of each block.
        classes: K.
        block: the class of the blocks.
        norm: "frn" or "bn".
        bias: whether convolutions have a bias.
        padding: see `nets.blocks.conv`.
        projection: whether the first block's shortcut is a projection where shapes differ.
        layout: "map", "map, channels last", or "sequence" for convolutions along one axis.
        generator: of the weights.
    """

    def __init__(
        self,
        inputs: int,
        blocks: Sequence[tuple[int, int]],
        classes: int,
        *,
        block: type[nn.Module] = BasicBlock,
        norm: Norm = "bn",
        bias: bool = False,
        padding: Padding = "half",
        projection: bool = True,
        layout: Layout = "map",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.join = Join(layout)
        layers: list[nn.Module] = []
        channels = inputs
        expansion = int(getattr(block, "expansion", 1))
        # Only where it is needed: a block class of somebody's own may know of maps alone.
        along = {"axes": 1} if layout == "sequence" else {}
        for planes, stride in blocks:
            layers.append(
                block(channels, planes, stride, norm, bias=bias, padding=padding, projection=projection, **along)
            )
            channels = planes * expansion
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool1d(1) if layout == "sequence" else nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)
        initialise(self, generator)
        for layer in layers:
            for part in layer.modules():
                if isinstance(part, nn.Conv1d | nn.Conv2d) and part.groups > 1:
                    # torch's fan-out is that of all groups together.
                    part.weight.data.mul_(part.groups**0.5)

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, K) of one or two features, joined on channels in the order given."""
        return self.head(self.pool(self.layers(self.join(*features))).flatten(1))  # type: ignore[no-any-return]


@rebuildable
class TokenBody(nn.Module):
    r"""Token-wise residual layers, then attention pooling by one learned query and a linear head.

    .. math:: p = \sum_t a_t x_t, \qquad a = \operatorname{softmax}_t (x_t \cdot q / \sqrt{w})

    The query starts at zero, so that at first the pooling is the mean over tokens.

    Args:
        inputs: channels of a token that comes in, of both features where there are two.
        width: w, channels inside.
        classes: K.
        blocks: how many residual layers.
        generator: of the weights.
    """

    def __init__(
        self, inputs: int, width: int, classes: int, *, blocks: int = 2, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.join = Join("tokens")
        self.norm = nn.LayerNorm(inputs)
        self.entry = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.out = nn.LayerNorm(width)
        self.query = nn.Parameter(torch.zeros(width, 1))
        self.head = nn.Linear(width, classes)
        initialise(self, generator)

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, K) of one or two features (B, T, C), joined on channels in the order given."""
        x = self.entry(self.norm(self.join(*features)))
        for layer in self.layers:
            x = x + layer(x)
        x = self.out(x)
        attention = (x @ self.query / self.query.shape[0] ** 0.5).softmax(dim=1)
        return self.head((attention.transpose(1, 2) @ x).squeeze(1))  # type: ignore[no-any-return]


@rebuildable
class VectorBody(nn.Module):
    """A two-layer perceptron on feature vectors (B, C), or on the mean of another feature over its places.

    Args:
        inputs: channels of the feature that comes in, of both where there are two.
        width: of the hidden layer.
        classes: K.
        generator: of the weights.
        layout: of the features.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        classes: int,
        generator: torch.Generator | None = None,
        *,
        layout: Layout = "vector",
    ) -> None:
        super().__init__()
        self.join = Join(layout)
        self.hidden = nn.Linear(inputs, width)
        self.act = nn.SiLU()
        self.head = nn.Linear(width, classes)
        initialise(self, generator)

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, K) of one or two features, joined on channels in the order given."""
        x = self.join(*features)
        if x.dim() == 4:
            x = x.mean(dim=(2, 3))
        elif x.dim() == 3:
            x = x.mean(dim=2 if self.join.channels_first else 1)
        return self.head(self.act(self.hidden(x)))  # type: ignore[no-any-return]


@rebuildable
class Heads(nn.Module):
    """A body whose last layer has h times K outputs, as h heads on one trunk.

    Args:
        body: maps the features to (B, h * K).
        heads: h.
    """

    def __init__(self, body: nn.Module, heads: int) -> None:
        super().__init__()
        self.body = body
        self.heads = heads

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, h, K)."""
        return self.body(*features).unflatten(1, (self.heads, -1))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """What torch prints; bodies that differ in it are different programs."""
        return f"heads={self.heads}"
