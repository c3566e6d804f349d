"""BatchEnsemble (Wen et al., 2020): members share all weights except two vectors per layer."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from modebridge.baselines.baseline import (
    LAYERS,
    Baseline,
    BaselineObjective,
    channels_of,
    replaced,
)
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs, States

SPREAD = 0.5
"""Standard deviation of the initial vectors, around 1."""

PACE = (0.5, 0.0)
"""Factors on learning rate and weight decay for vectors: the paper trains them at 0.05, the rest at 0.1."""


class BatchEnsembleObjective(BaselineObjective):
    """Train the vectors with half the learning rate and without weight decay."""

    def start(self) -> States:
        owners = {name for name, layer in self._train.named_modules() if isinstance(layer, RankOne)}
        pace = {f"{name}.{vector}": PACE for name in owners for vector in ("r", "s")}
        return {member: replace(state, pace=pace) for member, state in super().start().items()}


class BatchEnsemble(Baseline):
    r"""A network in which every convolution and linear layer has weights :math:`W \circ (s_m r_m^\top)` for member m.

    Weights, norms and biases are shared, except the bias of the last linear layer. The batch is repeated M times, so
    that every member sees all images.

    Args:
        net: any module that calls convolutions and linear layers; it is copied, and its weights become the shared
            weights.
        members: number of members M.
        example: a batch, to find the last layer and to check that members are independent.
        generator: random generator of the vectors; None uses torch's global one.

    >>> net = BatchEnsemble(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 4, example=torch.rand(1, 3))
    >>> net(torch.rand(5, 3)).shape
    torch.Size([20, 2])
    """

    objective, what = BatchEnsembleObjective, "a BatchEnsemble"

    def __init__(
        self, net: nn.Module, members: int = 4, *, example: Inputs, generator: torch.Generator | None = None
    ) -> None:
        order = self.order(net, members, example)
        uncalled = [n for n, layer in net.named_modules() if isinstance(layer, nn.MultiheadAttention)]
        if uncalled or not order:
            got = f"'{uncalled[0]}' of nn.MultiheadAttention" if uncalled else "none"
            raise ModebridgeError(
                f"Expected {self.what} to consist of convolutions and linear layers that are called, but got {got}; "
                "use a network whose attention calls its layers, such as timm's."
            )
        head = next((name for name in reversed(order) if isinstance(net.get_submodule(name), nn.Linear)), None)
        layers = {name: RankOne(net.get_submodule(name), members, generator, bias_each=name == head) for name in order}
        super().__init__(replaced(net, layers), members)
        vectors = [layer.r for layer in self.net.modules() if isinstance(layer, RankOne)]
        why = "the images of a batch; use one that treats each image separately"
        self.check_apart(example, (0, members - 1), vectors, why)  # which is the same for all


class RankOne(nn.Module):
    """A layer with weights W * (s r^T) per member, and a shared bias or one per member.

    Member m's rows of x, (M * B, ...) ordered by member, become s_m * (W (r_m * x)) + b, the output of its own layer.
    """

    def __init__(
        self, layer: nn.Module, members: int, generator: torch.Generator | None = None, *, bias_each: bool = False
    ) -> None:
        super().__init__()
        assert isinstance(layer, LAYERS)
        self.members = members
        self.axis = -1 if isinstance(layer, nn.Linear) else 1
        self.layer = copy.deepcopy(layer)
        bias = self.layer.bias
        # Stored outside the layer, since it is added after the multiplication with s.
        self.layer.bias = None
        inputs, outputs = channels_of(layer)
        like = layer.weight

        def vectors(channels: int) -> nn.Parameter:
            noise = torch.randn(members, channels, generator=generator, dtype=like.dtype, device=like.device)
            return nn.Parameter(1 + SPREAD * noise)

        self.r = vectors(inputs)
        self.s = vectors(outputs)
        if bias is not None and bias_each:
            bias = nn.Parameter(bias.detach().repeat(members, 1))
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (M * B, ...) to (M * B, ...)."""
        x = (torch.unflatten(x, 0, (self.members, -1)) * self._placed(self.r, x)).flatten(0, 1)
        y: Tensor = self.layer(x)
        s, parts = self._placed(self.s, y), torch.unflatten(y, 0, (self.members, -1))
        if self.bias is None:
            return (parts * s).flatten(0, 1)
        return torch.addcmul(self._placed(self.bias, y), parts, s).flatten(0, 1)

    def _placed(self, vectors: Tensor, x: Tensor) -> Tensor:
        """Reshape vectors per member (M, C), or a shared one (C,), to broadcast with (M, B, ...)."""
        shape = [1] * (x.dim() + 1)
        shape[-1 if self.axis == -1 else 2] = vectors.shape[-1]
        if vectors.dim() == 2:
            shape[0] = self.members
        return vectors.view(shape).to(x.dtype)
