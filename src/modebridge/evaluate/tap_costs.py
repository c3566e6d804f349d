"""Where a bridge could read, and what one there would cost."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import nn

from modebridge import inspection
from modebridge.bridges import body_for, body_like, body_within
from modebridge.errors import ModebridgeError
from modebridge.inspection import Inspection, Tap
from modebridge.nets import FilterResponseNorm, Norm, ResNet
from modebridge.nets.flops import counting, zeros
from modebridge.types import Batch, Inputs, Layout

__all__ = ["inspect"]


def inspect(
    net: nn.Module, example: Inputs | Batch, *, slim: float = 2, budget: float | None = None, heads: int = 1
) -> Inspection:
    """List every place where a bridge could read a feature of `net`, the one it would choose, and what it costs there.

    The network runs on a copy without weights (with them where that fails), in evaluation mode; it is never touched.

    Args:
        net: any module that maps a batch to logits, or to an object that holds `logits`.
        example: a batch of at least one image, or a dict of tensors that is passed by keyword; of a batch with labels,
            a pair or a dict, they are left out, and so is what is not a tensor.
        slim: divides the widths of the bridges whose costs are shown, of type I.
        budget: at most this share of the network's FLOPs instead.
        heads: how many heads those bridges have.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> print(inspect(net, torch.rand(1, 4)))
    Sequential: 48 multiply-adds, 2 classes
        tap  feature  layout  before  after  bridge: FLOPs  params
        0    8        vector   66.7%  33.3%         +83.3%  +79.3%
    ->  1    8        vector   66.7%  33.3%         +83.3%  +79.3%
    1 cannot be tapped: .refused says why
    """
    if heads < 1 or not slim > 0 or (budget is not None and not 0 < budget <= 1):
        raise ModebridgeError(
            f"Expected slim above 0, budget in (0, 1] or None and heads of at least 1, but got {slim=}, {budget=}, "
            f"{heads=}; change them."
        )
    seen = inspection.inspect(net, example)
    norm: Norm = "frn" if any(isinstance(module, FilterResponseNorm) for module in net.modules()) else "bn"
    size = sum(parameter.numel() for parameter in net.parameters())

    @cache  # most taps have the feature of another one, and widths within a budget are searched for
    def counted_at(shape: tuple[int, ...], layout: Layout, paper: bool) -> tuple[float, float] | None:
        outputs = seen.classes * heads
        try:
            with torch.device("meta"):  # nothing is drawn, computed or kept
                if isinstance(net, ResNet) and paper and budget is None:
                    body: nn.Module = body_like(replace(net.spec, classes=outputs), "I", slim)
                elif budget is None:
                    body = body_for(shape, outputs, "I", slim, layout=layout, norm=norm)
                else:
                    body, _ = body_within(shape, layout, outputs, "I", budget * seen.flops, norm=norm)
        except ModebridgeError:  # no bridge is so small
            return None
        with torch.no_grad(), counting() as counted:
            body.eval()(*zeros(body, shape))
        params = sum(parameter.numel() for parameter in body.parameters())
        return (counted() / seen.flops, params / size) if seen.flops and size else None

    def price(tap: Tap) -> tuple[float, float] | None:
        return counted_at(tuple(tap.shape), tap.layout, isinstance(net, ResNet) and tap.name == net.paper_tap)

    return replace(seen, price=price)
