"""Filter response normalisation with its threshold, and a factory for it and batch norm."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from modebridge import trees
from modebridge.errors import ModebridgeError

__all__ = ["FilterResponseNorm", "Norm", "make_norm"]

Norm: TypeAlias = Literal["frn", "bn"]


class FilterResponseNorm(nn.Module):
    r"""Filter response normalisation followed by its thresholded linear unit (Singh and Krishnan, 2020).

    .. math:: y = \max(\gamma\, x / \sqrt{\nu^2 + \epsilon} + \beta,\ \tau),
        \qquad \nu^2 = \operatorname{mean}_{H,W} x^2

    It does not depend on the batch, so a curve of such networks has no running statistics to re-estimate.

    Args:
        channels: C of the input, (B, C, H, W) or (B, C, L); gamma, beta and tau have one entry each.
        eps: the fixed epsilon; the paper uses 1e-6 and does not train it.

    >>> frn = FilterResponseNorm(2)
    >>> frn(torch.full((1, 2, 3, 3), -5.0)).max()   # tau starts at 0, which is a ReLU
    tensor(0., grad_fn=<MaxBackward1>)
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))
        self.tau = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the neutral values: gamma 1, beta 0, tau 0."""
        nn.init.ones_(self.gamma)
        nn.init.zeros_(self.beta)
        nn.init.zeros_(self.tau)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel of each image by the root mean square of its map."""
        # For bf16 inputs the sums and the factor are fp32 and the output is bf16; wider dtypes are not converted.
        wide = trees.wide(x)
        places = tuple(range(2, x.dim()))
        by_channel = (-1, *[1] * len(places))
        nu2 = wide.square().mean(dim=places, keepdim=True)
        # Multiply by gamma before the map is scaled: (B, C, 1, 1) is far smaller than the map.
        scale = self.gamma.view(by_channel) * torch.rsqrt(nu2 + self.eps)
        # max(y, tau) as relu(y - tau) + tau: the backward of torch.maximum took a quarter of a step on CPUs.
        tau = self.tau.view(by_channel)
        y = torch.relu(torch.addcmul(self.beta.view(by_channel) - tau, wide, scale)) + tau
        return y.to(x.dtype)


def make_norm(norm: Norm, channels: int, axes: int = 2) -> nn.Module:
    """The normalisation layer `norm` for `channels` channels of maps, or of sequences if `axes` is 1."""
    if norm == "frn":
        return FilterResponseNorm(channels)
    if norm == "bn":
        return nn.BatchNorm2d(channels) if axes == 2 else nn.BatchNorm1d(channels)
    raise ModebridgeError(f"Expected norm to be 'frn' or 'bn', but got '{norm}'; choose one of the two.")
