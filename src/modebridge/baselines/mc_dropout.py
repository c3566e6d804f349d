"""Monte-Carlo dropout (Gal and Ghahramani, 2016): several passes of a network with dropout, which it was trained with.

The masks of each pass are drawn once and used for all images ("consistent" Monte-Carlo dropout: Kirsch et al., 2019).
For one image the distribution is the same as with its own masks. The prediction depends neither on the other images of
the batch nor on earlier calls, so it is reproducible and can be exported.
"""

from __future__ import annotations

import copy
from collections import OrderedDict

import torch
from torch import Tensor, nn

from modebridge import seeds
from modebridge.baselines.rival import Rival, check_members
from modebridge.baselines.surgery import called, replaced, tried
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs

__all__ = ["McDropout", "with_dropout"]

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
WHAT = "Monte-Carlo dropout"


def with_dropout(net: nn.Module, rate: float = 0.1, *, example: Inputs) -> nn.Module:
    """A copy of a network with dropout before every convolution and linear layer but the first.

    A network that already has active dropout layers is copied unchanged.

    Args:
        net: any module; it is copied.
        rate: dropout probability p.
        example: a batch, to find the order of layers.

    >>> with_dropout(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)), 0.2, example=torch.rand(1, 2))[2]
    Sequential(
      (dropout): Dropout(p=0.2, inplace=False)
      (layer): Linear(in_features=3, out_features=4, bias=True)
    )
    """
    if not 0 <= rate < 1:
        raise ModebridgeError(f"Expected the rate of dropout to be at least 0 and below 1, but got {rate}; change it.")
    # A rate of 0 means that dropout is turned off.
    if any(getattr(net.get_submodule(name), "p", 0.0) > 0 for name in called(net, example, DROPOUTS)):
        return copy.deepcopy(net)
    later = list(called(net, example))[1:]
    if not later:
        raise ModebridgeError(
            f"Expected {WHAT} to be used with a network of several layers, but got {type(net).__name__}; "
            "use another method."
        )
    return replaced(
        net,
        {
            name: nn.Sequential(
                OrderedDict(dropout=nn.Dropout(rate), layer=copy.deepcopy(net.get_submodule(name)))
            ).train(net.training)
            for name in later
        },
    )


class McDropout(Rival):
    """A trained network with dropout layers, run T times: member t has the masks of pass t.

    It is for prediction and starts in evaluation mode: norms use their running statistics, and the dropout masks are
    fixed.

    Args:
        net: a network that calls dropout layers; it is copied.
        passes: number of passes T.
        example: a batch, to find the input shape of each dropout layer.
        seed: seed of the masks.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    >>> McDropout(net, 4, example=torch.rand(1, 2), seed=0)(torch.rand(5, 2)).shape
    torch.Size([20, 3])
    """

    def __init__(self, net: nn.Module, passes: int = 4, *, example: Inputs, seed: int) -> None:
        check_members(passes, WHAT)
        layers: dict[str, nn.Module] = {}
        for name, shape in called(net, example, DROPOUTS).items():
            layer = net.get_submodule(name)
            assert isinstance(layer, DROPOUTS)
            layers[name] = _FixedDropout(layer, shape[1:], passes, seeds.generator(seed, "mask", name))
        if not layers:
            raise ModebridgeError(
                f"Expected a network with dropout for {WHAT}, but got none in {type(net).__name__}; add some with "
                "with_dropout."
            )
        super().__init__(replaced(net, layers), passes)
        self.eval()
        tried(self, example, WHAT)


class _FixedDropout(nn.Module):
    """Dropout with the masks of T passes, each the same for all images: (T * B, ...) to (T * B, ...).

    Args:
        dropout: the layer to replace; `nn.Dropout2d` drops whole channels.
        shape: input shape for one image.
        passes: number of passes T.
        generator: random generator of the masks.
    """

    mask: Tensor

    def __init__(self, dropout: nn.Module, shape: torch.Size, passes: int, generator: torch.Generator) -> None:
        super().__init__()
        assert isinstance(dropout, DROPOUTS)
        self.rate, self.passes = dropout.p, passes
        if not isinstance(dropout, nn.Dropout):
            shape = torch.Size([shape[0], *[1] * (len(shape) - 1)])
        mask = torch.rand(passes, 1, *shape, generator=generator) >= self.rate
        # Not persistent: masks are drawn again from the seed.
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.unflatten(x, 0, (self.passes, -1)) * self.mask
        return (kept / (1 - self.rate) if self.rate < 1 else kept).flatten(0, 1)
