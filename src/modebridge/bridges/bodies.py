"""The small networks inside bridges: residual blocks for maps and sequences, layers on tokens, perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.nets import BasicBlock, Norm, initialise
from modebridge.nets.blocks import Padding
from modebridge.types import Layout


class Join(nn.Module):
    """Concatenate features along channels in the given order; the output of maps is channels first.

    Maps and sequences of several taps may differ in size: larger ones are average-pooled to the smallest size.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, *features: Tensor) -> Tensor:
        """Concatenate to one feature: (B, C, H, W), (B, C, L), (B, T, C) or (B, C)."""
        if self.layout != "tokens" and len({feature.shape[1:] for feature in features}) > 1:
            maps = [x.permute(0, 3, 1, 2) if self.layout == "map, channels last" else x for x in features]
            size = tuple(min(sides) for sides in zip(*(x.shape[2:] for x in maps), strict=True))
            pool: Any = F.adaptive_avg_pool2d if len(size) == 2 else F.adaptive_avg_pool1d
            return torch.cat([x if x.shape[2:] == size else pool(x, size) for x in maps], dim=1)
        x = features[0] if len(features) == 1 else torch.cat(features, dim=1 if self.channels_first else -1)
        return x.permute(0, 3, 1, 2) if self.layout == "map, channels last" else x

    @property
    def channels_first(self) -> bool:
        """Whether channels are the axis after the batch."""
        return self.layout in ("map", "sequence", "vector")

    def extra_repr(self) -> str:
        """The layout; bodies with different layouts are different programs."""
        return self.layout


class ResidualBody(nn.Module):
    """Residual blocks on a feature map or a sequence, then average pooling and a linear head.

    Args:
        inputs: input channels, in total over all features.
        blocks: (planes, stride) of each block.
        classes: number of outputs K.
        block: class of the blocks; the other options are those of `nets.blocks.Block`.
        layout: "map", "map, channels last", or "sequence" for convolutions along one axis.
        generator: random generator of the weights.
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
        self.arguments: dict[str, Any] = {
            "inputs": inputs,
            "blocks": [list(each) for each in blocks],
            "classes": classes,
            "block": block,
            "norm": norm,
            "bias": bias,
            "padding": padding,
            "projection": projection,
            "layout": layout,
        }
        """What it was built with: a file describes it so."""
        self.join = Join(layout)
        layers: list[nn.Module] = []
        channels = inputs
        expansion = int(getattr(block, "expansion", 1))
        # Passed only if needed: a custom block class may support maps only.
        options = {"axes": 1} if layout == "sequence" else {}
        for planes, stride in blocks:
            layers.append(
                block(channels, planes, stride, norm, bias=bias, padding=padding, projection=projection, **options)
            )
            channels = planes * expansion
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool1d(1) if layout == "sequence" else nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)
        initialise(self, generator)

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, K) from features, concatenated along channels in the given order."""
        return self.head(self.pool(self.layers(self.join(*features))).flatten(1))  # type: ignore[no-any-return]


class TokenBody(nn.Module):
    r"""Token-wise residual layers, then attention pooling with one learned query and a linear head.

    .. math:: p = \sum_t a_t x_t, \qquad a = \operatorname{softmax}_t (x_t \cdot q / \sqrt{w})

    The query starts at zero, so pooling starts as the mean over tokens.
    """

    def __init__(
        self, inputs: int, width: int, classes: int, *, blocks: int = 2, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.arguments = {"inputs": inputs, "width": width, "classes": classes, "blocks": blocks}
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
        """Logits (B, K) from features (B, T, C), concatenated along channels in the given order."""
        x = self.entry(self.norm(self.join(*features)))
        for layer in self.layers:
            x = x + layer(x)
        x = self.out(x)
        attention = (x @ self.query / self.query.shape[0] ** 0.5).softmax(dim=1)
        return self.head((attention.transpose(1, 2) @ x).squeeze(1))  # type: ignore[no-any-return]


class VectorBody(nn.Module):
    """A two-layer perceptron on feature vectors (B, C), or on the mean of other features over their positions."""

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
        self.arguments = {"inputs": inputs, "width": width, "classes": classes, "layout": layout}
        self.join = Join(layout)
        self.hidden = nn.Linear(inputs, width)
        self.act = nn.SiLU()
        self.head = nn.Linear(width, classes)
        initialise(self, generator)

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, K) from features, concatenated along channels in the given order."""
        x = self.join(*features)
        if x.dim() > 2:
            x = x.mean(dim=1 if self.join.layout == "tokens" else tuple(range(2, x.dim())))
        return self.head(self.act(self.hidden(x)))  # type: ignore[no-any-return]


class Heads(nn.Module):
    """A body whose last layer has h * K outputs, used as h heads on one trunk."""

    def __init__(self, body: nn.Module, heads: int) -> None:
        super().__init__()
        self.body = body
        self.heads = heads

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, h, K)."""
        return self.body(*features).unflatten(1, (self.heads, -1))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """The number of heads; bodies that differ in it are different programs."""
        return f"heads={self.heads}"
