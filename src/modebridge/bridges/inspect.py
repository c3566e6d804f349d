"""Every tap of a network, with the cost of a bridge there."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import nn

from modebridge.bridges.build import build_body
from modebridge.errors import ModebridgeError
from modebridge.nets import Inspection, ResNet, Tap, find_taps
from modebridge.nets.flops import counting, zeros
from modebridge.types import Batch, Inputs, Layout

__all__ = ["inspect"]


def inspect(
    net: nn.Module, example: Inputs | Batch, *, slim: float = 2, budget: float | None = None, heads: int = 1
) -> Inspection:
    """List every tap of `net` that a bridge could read, the default choice, and the cost of a bridge at each.

    A copy of the network without weights (or with them, if that fails) runs in evaluation mode; `net` is not changed.

    Args:
        net: any module that maps a batch to logits, or to an object that holds `logits`.
        example: a batch of at least one image, or a dict of tensors that are passed by keyword. Labels, in a pair or in
            a dict, are ignored, and so are values that are not tensors.
        slim: divides the widths of the type I bridges whose costs are shown.
        budget: maximum share of the network's FLOPs, used instead of `slim`; bridges are then wide.
        heads: number of heads of those bridges.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> print(inspect(net, torch.rand(1, 4)))
    Sequential: 48 multiply-adds, 2 classes
        tap  feature  layout  before  after  bridge: FLOPs  params
        0    8        vector   66.7%  33.3%         +83.3%  +79.3%
    ->  1    8        vector   66.7%  33.3%         +83.3%  +79.3%
    1 cannot be tapped: see .refused
    """
    if heads < 1 or not slim > 0 or (budget is not None and not 0 < budget <= 1):
        raise ModebridgeError(
            f"Expected slim above 0, budget in (0, 1] or None and heads of at least 1, but got {slim=}, {budget=}, "
            f"{heads=}; change the value that is out of range."
        )
    seen = find_taps(net, example)
    size = sum(parameter.numel() for parameter in net.parameters())

    @cache  # many taps have features of the same shape, and fitting a width to a budget is a search
    def price(shape: tuple[int, ...], layout: Layout, taps: tuple[str, ...]) -> tuple[float, float] | None:
        try:
            with torch.device("meta"):  # nothing is drawn, computed or stored
                outputs = seen.classes * heads
                body = build_body(net, taps, shape, layout, outputs, "I", slim, budget, seen.flops, True, None)
        except ModebridgeError:  # no bridge is small enough
            return None
        with torch.no_grad(), counting() as counted:
            body.eval()(*zeros(body, shape))
        params = sum(parameter.numel() for parameter in body.parameters())
        return (counted() / seen.flops, params / size) if seen.flops and size else None

    def priced(tap: Tap) -> Tap:
        # Only the paper's tap has a body of its own.
        taps = (tap.name,) if isinstance(net, ResNet) and tap.name == net.paper_tap else ()
        return replace(tap, bridge=price(tuple(tap.shape), tap.layout, taps))

    return replace(seen, taps=tuple(map(priced, seen.taps)), priced=True)
