"""MIMO (Havasi et al., 2021): one network with several input images and several predictions."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from modebridge.baselines.baseline import Baseline, BaselineObjective, replaced
from modebridge.batches import flatten
from modebridge.errors import ModebridgeError
from modebridge.types import Batch, Draw, Inputs, Prepared

REPEATS = 4
"""How often every image of a batch is repeated."""

SAME = 0.6
"""Share of rows whose inputs are all the same image, as in prediction."""


class MimoObjective(BaselineObjective):
    """Each member is trained on the label of its own input; in a share of the rows all inputs are the same image.

    Every batch is repeated `REPEATS` times. The first input of each row is its image; in 1 - `SAME` of the rows, drawn
    anew, the inputs of the other members are permuted among those rows.
    """

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        baseline = self._eval
        assert isinstance(baseline, Mimo)
        images = torch.arange(size).repeat(REPEATS)
        mixed = torch.randperm(len(images), generator=generator)[: round((1 - SAME) * len(images))]
        rows = images.repeat(baseline.size, 1)
        for others in rows[1:]:
            others[mixed] = images[mixed[torch.randperm(len(mixed), generator=generator)]]
        return {"rows": rows}

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        images, labels = batch
        assert isinstance(images, Tensor)
        rows = draw["rows"].to(labels.device)
        prepared = {**flatten(images[rows.to(images.device)]), "labels": labels[rows].flatten()}
        return dict.fromkeys(self.start(), prepared)


class Mimo(Baseline):
    """A network whose first convolution reads M images at once, and whose last linear layer predicts for each.

    Operations before the first convolution (such as normalization) act on each image, and those after the last layer
    on each prediction. In prediction the M images are the same.

    Args:
        net: any module whose forward pass starts with a convolution and ends with a linear layer; it is copied.
        members: number of members M.
        example: a batch, to find these layers.
        generator: random generator of the two layers' new weights, normal with the standard deviation of the old ones.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    >>> mimo = Mimo(net, 2, example=torch.rand(1, 3, 8, 8))
    >>> mimo.net[0].conv.in_channels, mimo(torch.rand(4, 3, 8, 8)).shape
    (6, torch.Size([8, 5]))
    """

    objective, what = MimoObjective, "MIMO"

    def __init__(
        self, net: nn.Module, members: int = 2, *, example: Inputs, generator: torch.Generator | None = None
    ) -> None:
        order = self.order(net, members, example)
        first, last = (net.get_submodule(order[k]) for k in (0, -1)) if order else (net, net)
        if not isinstance(example, Tensor) or isinstance(first, nn.Linear) or not isinstance(last, nn.Linear):
            got = f"{type(first).__name__} and {type(last).__name__}" if isinstance(example, Tensor) else "other inputs"
            raise ModebridgeError(
                "Expected MIMO to get a network that starts with a convolution on images and ends with a linear "
                f"layer, but got {got}; use another method."
            )
        layers: dict[str, nn.Module] = {
            order[0]: _FirstLayer(first, members, generator),
            order[-1]: _LastLayer(last, members, generator),
        }
        super().__init__(replaced(net, layers), members)
        self._axes = example.dim()
        self.tried(example)

    def arranged(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(0, 1) if inputs.dim() == self._axes + 1 else super().arranged(inputs)


def _drawn_like(weight: Tensor, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """New weights of another shape, normal with the standard deviation of the old ones."""
    spread = weight.detach().std() if weight.numel() > 1 else weight.detach().abs().sum()
    drawn = torch.randn(*shape, generator=generator, dtype=weight.dtype, device=weight.device) * spread
    last = weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return drawn.contiguous(memory_format=torch.channels_last) if last else drawn


class _FirstLayer(nn.Module):
    """A convolution of M images stacked along channels: (M * B, C, ...) to (B, C', ...)."""

    def __init__(self, conv: nn.Module, members: int, generator: torch.Generator | None) -> None:
        super().__init__()
        assert isinstance(conv, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        if conv.groups != 1:
            raise ModebridgeError(
                f"Expected the first convolution of MIMO to read all channels, but got {conv.groups} groups; "
                "use another method."
            )
        self.members = members
        self.conv = copy.deepcopy(conv)
        self.conv.in_channels *= members
        outputs, inputs, *kernel = conv.weight.shape
        self.conv.weight = nn.Parameter(_drawn_like(conv.weight, (outputs, members * inputs, *kernel), generator))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.unflatten(x, 0, (self.members, -1)).transpose(0, 1).flatten(1, 2)
        return self.conv(x)  # type: ignore[no-any-return]


class _LastLayer(nn.Module):
    """A linear layer with an output for each of M images: (B, ..., C) to (M * B, ..., K)."""

    def __init__(self, linear: nn.Linear, members: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.members = members
        self.linear = copy.deepcopy(linear)
        self.linear.out_features *= members
        outputs, inputs = linear.weight.shape
        self.linear.weight = nn.Parameter(_drawn_like(linear.weight, (members * outputs, inputs), generator))
        if linear.bias is not None:
            self.linear.bias = nn.Parameter(linear.bias.detach().repeat(members))

    def forward(self, x: Tensor) -> Tensor:
        return torch.unflatten(self.linear(x), -1, (self.members, -1)).movedim(-2, 0).flatten(0, 1)
