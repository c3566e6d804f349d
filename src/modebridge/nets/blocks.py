"""Filter response norm and residual blocks, for the paper's networks and for bridges; new random weights."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge import seeds, trees
from modebridge.errors import ModebridgeError
from modebridge.nets.running import frozen_copy

Norm: TypeAlias = Literal["frn", "bn"]
EPSILON = 1e-6
"""Of filter response normalization, the paper's."""


class FilterResponseNorm(nn.Module):
    r"""Filter response normalization followed by its thresholded linear unit (Singh and Krishnan, 2020).

    .. math:: y = \max(\gamma\, x / \sqrt{\nu^2 + \epsilon} + \beta,\ \tau),
        \qquad \nu^2 = \operatorname{mean}_{H,W} x^2

    It does not depend on the batch, so a curve of such networks has no running statistics to re-estimate.

    >>> frn = FilterResponseNorm(2)
    >>> frn(torch.full((1, 2, 3, 3), -5.0)).max()   # tau starts at 0, which is a ReLU
    tensor(0., grad_fn=<MaxBackward1>)
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
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
        """Normalize each channel of each image by the root mean square of its map."""
        # For bf16 inputs the sums and the factor are fp32 and the output is bf16; wider dtypes are not converted.
        wide = trees.wide(x)
        places = tuple(range(2, x.dim()))
        by_channel = (-1, *[1] * len(places))
        nu2 = wide.square().mean(dim=places, keepdim=True)
        # Multiply by gamma before the map is scaled: (B, C, 1, 1) is far smaller than the map.
        scale = self.gamma.view(by_channel) * torch.rsqrt(nu2 + EPSILON)
        # max(y, tau) as relu(y - tau) + tau: the backward of torch.maximum took a quarter of a step on CPUs.
        tau = self.tau.view(by_channel)
        y = torch.relu(torch.addcmul(self.beta.view(by_channel) - tau, wide, scale)) + tau
        return y.to(x.dtype)


def make_norm(norm: Norm, channels: int, axes: int = 2) -> nn.Module:
    """The normalization layer `norm` for `channels` channels of maps, of sequences (`axes` 1) or volumes (3)."""
    if norm == "frn":
        return FilterResponseNorm(channels)
    if norm == "bn":
        return (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1](channels)
    raise ModebridgeError(f"Expected norm to be 'frn' or 'bn', but got '{norm}'; choose one of the two.")


Padding: TypeAlias = Literal["same", "half"]
"""As in TensorFlow, or kernel // 2."""


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "SAME" padding: at stride 2 the odd pixel is added at the right and bottom."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve `x` (B, C, H, W) to (B, C', ceil(H / stride), ceil(W / stride))."""
        top, bottom = _same(x.shape[-2], self.kernel_size[0], self.stride[0])
        left, right = _same(x.shape[-1], self.kernel_size[1], self.stride[1])
        if top == bottom and left == right:
            return F.conv2d(x, self.weight, self.bias, self.stride, (top, left), groups=self.groups)
        return F.conv2d(F.pad(x, (left, right, top, bottom)), self.weight, self.bias, self.stride, groups=self.groups)


def _same(length: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-length // stride) - 1) * stride + kernel - length, 0)
    return total // 2, total - total // 2


def conv(
    inputs: int, outputs: int, kernel: int, stride: int, *, bias: bool, padding: Padding, axes: int = 2
) -> nn.Conv1d | nn.Conv2d | nn.Conv3d:
    """A convolution with the padding rule of the data set's network; of sequences and volumes always "half"."""
    if axes == 2 and padding == "same":
        return SameConv2d(inputs, outputs, kernel, stride, bias=bias)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    return kind(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)


class Block(nn.Module):
    """A residual block: convolutions with norms and SiLU between, plus the shortcut, SiLU.

    The inner convolutions have `planes` channels, the output `expansion` times as many. The stride is that of the first
    3x3 convolution and of the shortcut. A shortcut that changes shape is a 1x1 convolution with a norm; without
    `projection` such a block has no shortcut. `axes` is 2 for maps (B, C, H, W), 1 for sequences and 3 for volumes.
    """

    kernels: ClassVar[tuple[int, ...]]
    expansion: ClassVar[int]

    def __init__(
        self,
        inputs: int,
        planes: int,
        stride: int,
        norm: Norm,
        *,
        bias: bool,
        padding: Padding,
        projection: bool = True,
        axes: int = 2,
    ) -> None:
        super().__init__()
        outputs, last = planes * self.expansion, len(self.kernels)
        channels, strided = inputs, self.kernels.index(3) + 1
        for k, kernel in enumerate(self.kernels, start=1):
            width, step = outputs if k == last else planes, stride if k == strided else 1
            self.add_module(f"conv{k}", conv(channels, width, kernel, step, bias=bias, padding=padding, axes=axes))
            self.add_module(f"norm{k}", make_norm(norm, width, axes))
            if k < last:
                self.add_module(f"act{k}", nn.SiLU())
            channels = width
        self.shortcut: nn.Module | None = None
        if stride == 1 and inputs == outputs:
            self.shortcut = nn.Identity()
        elif projection:
            projected = conv(inputs, outputs, 1, stride, bias=bias, padding=padding, axes=axes)
            self.shortcut = nn.Sequential(projected, make_norm(norm, outputs, axes))
        self.add_module(f"act{last}", nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, expansion * planes, H / stride, W / stride)."""
        y, last = x, len(self.kernels)
        for k in range(1, last + 1):
            y = getattr(self, f"norm{k}")(getattr(self, f"conv{k}")(y))
            if k < last:
                y = getattr(self, f"act{k}")(y)
        return getattr(self, f"act{last}")(y if self.shortcut is None else y + self.shortcut(x))  # type: ignore[no-any-return]


class BasicBlock(Block):
    """Two 3x3 convolutions."""

    kernels, expansion = (3, 3), 1


class BottleneckBlock(Block):
    """1x1, 3x3 and 1x1 convolutions."""

    kernels, expansion = (1, 3, 1), 4


ATTENTIVE = (nn.LayerNorm, nn.MultiheadAttention, nn.RMSNorm)
"""Layers of networks that neither SGD nor the paper's initialization suits."""


def is_attentive(net: nn.Module) -> bool:
    """Whether a network has attention or layer norm."""
    return any(isinstance(module, ATTENTIVE) for module in net.modules())


DRAWN = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layers whose weights `initialise` draws."""


@torch.no_grad()
def initialise(net: nn.Module, generator: torch.Generator | None = None) -> None:
    """Draw new weights in place, as the authors do: Kaiming normal, fan_out, ReLU gain, including the head.

    The head's standard deviation is therefore sqrt(2 / classes), 0.447 for ten. Biases are uniform within
    1 / sqrt(fan_in), torch's default. Norms start at their neutral values.
    """
    for module in net.modules():
        if isinstance(module, DRAWN) and not module.weight.is_meta:  # there torch takes a second to draw nothing
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
            if module.bias is not None:
                bound = module.weight[0].numel() ** -0.5
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)


RESETS = ("reset_parameters", "_reset_parameters")  # torch's modules draw their weights by one; attention by the latter

EMBEDDING = 0.02
"""Standard deviation for all-zero tokens and position embeddings, the usual value in transformers."""


def fresh_weights(net: nn.Module, seed: int) -> dict[str, Tensor]:
    """New values for every parameter: each module's own reset, then the paper's initialization where it applies.

    Networks with attention or layer norm hardly learn from the latter, and keep the former.
    Parameters that neither covers (class tokens, position embeddings, layer scales, the parts of weight norm) are drawn
    from a normal distribution with their mean and spread in `net`. Constants such as a norm's ones are neutral values
    and stay; but zero tensors with several axes, such as new tokens, are drawn with standard deviation 0.02.
    """
    copy, drawn = frozen_copy(net), () if is_attentive(net) else DRAWN
    versions = {name: parameter._version for name, parameter in copy.named_parameters()}
    device = next((parameter.device for parameter in copy.parameters()), None)
    with seeds.borrowed(seed, device), torch.no_grad():  # third-party modules draw from the global generator
        for module in copy.modules():
            reset = next((method for name in RESETS if callable(method := getattr(module, name, None))), None)
            if reset is not None and not isinstance(module, drawn):
                reset()
    generator = torch.Generator().manual_seed(seed)
    if drawn:
        initialise(copy, generator)
    fresh: dict[str, Tensor] = dict(copy.named_parameters())
    for name, parameter in net.named_parameters():
        # Both are needed: some resets write the same values, and writes through `.data` do not change the version.
        if fresh[name]._version == versions[name] and torch.equal(fresh[name], parameter):
            fresh[name] = _alike(parameter.detach(), generator)
    return trees.clone(fresh)


def _alike(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Normal random values with the mean and standard deviation of a tensor."""
    wide = tensor.double()
    spread = float(wide.std(correction=0)) if tensor.numel() else 0.0
    if spread == 0 and tensor.numel() > 1 and tensor.dim() > 1 and not bool(tensor.any()):
        spread = EMBEDDING
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
    return torch.empty_like(tensor).copy_(wide.mean() + spread * drawn)
