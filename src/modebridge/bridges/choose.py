"""Choose the body and taps of a bridge, the same for training, costs, files and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from modebridge.batches import map_inputs
from modebridge.bridges.bodies import Heads
from modebridge.bridges.budget import body_within
from modebridge.bridges.build import READS, Kind, body_for, body_like, joined_shape
from modebridge.errors import ModebridgeError, first_line
from modebridge.nets import FilterResponseNorm, Norm, ResNet, Tapped, frozen_copy, taps_to_read
from modebridge.nets.flops import counting
from modebridge.types import Inputs, Layout

__all__ = ["ChosenBody", "build_body", "choose_body"]


@dataclass(frozen=True)
class ChosenBody:
    """The body of a bridge and its cost.

    Args:
        body: maps feature(s) to logits.
        taps: the submodules whose outputs it reads.
        flops: multiply-adds of the body for one image.
        base_flops: multiply-adds of the base network for one image.
    """

    body: nn.Module
    taps: tuple[str, ...]
    flops: float
    base_flops: float

    @property
    def params(self) -> int:
        """Number of parameters of the body."""
        return sum(parameter.numel() for parameter in self.body.parameters())

    @property
    def share(self) -> float | None:
        """Multiply-adds relative to the base; None if the base has none."""
        return self.flops / self.base_flops if self.base_flops else None


def choose_body(
    net: nn.Module,
    images: Inputs,
    kind: Kind,
    *,
    tap: str | Sequence[str] | None = None,
    heads: int = 1,
    slim: float = 2,
    budget: float | None = None,
    wide: bool = False,
    body: nn.Module | None = None,
    state: Mapping[str, Tensor] | None = None,
    name: str = "bridge",
    seed: int = 0,
) -> ChosenBody:
    """Choose the body of a bridge for a network.

    Args:
        net: the base network.
        images: a few images (or inputs by name), to get the feature's shape.
        kind: "I" reads one mode, "II" two.
        tap: the tap to read, or several; None uses the choice of `modebridge.inspect`, which is the paper's tap in its
            networks.
        heads: number of heads on the trunk; with several, the output is (B, heads, K).
        slim: divides the widths.
        budget: maximum share of the base's FLOPs, used instead of `slim`.
        wide: one wide block within the budget instead of three, see `body_within`.
        body: an existing body, which is only checked and counted.
        state: weights to run the network with; None for its own.
        name: name of the bridge in errors.
        seed: seed of the weights.
    """
    if budget is not None and not 0 < budget <= 1:
        raise ModebridgeError(
            f"Expected budget to be a share of the base's FLOPs in (0, 1], but got {budget}; 0.05 is 5 %."
        )
    first = map_inputs(lambda tensor: tensor[:1], images)
    taps, layout = taps_to_read(net, tap, first)
    tapped = Tapped(net, taps)
    with torch.no_grad(), counting() as counted:
        logits, features = tapped(first) if state is None else tapped.run(tapped.state_of(state), first)
    base_flops = counted()
    read, classes = [features[tap] for tap in taps], logits.shape[1]
    if body is None:
        shape, outputs = joined_shape([feature.shape[1:] for feature in read], layout), classes * heads
        body = build_body(
            net, taps, shape, layout, outputs, kind, slim=slim, budget=budget, base=base_flops, wide=wide, seed=seed
        )
        body = (body if heads == 1 else Heads(body, heads)).to(torch.cat([feature.flatten() for feature in read]).dtype)
    flops = _check_body(body, read * READS[kind], (classes,) if heads == 1 else (heads, classes), name)
    if budget is not None and flops > budget * base_flops:
        raise ModebridgeError(
            f"Expected the body of '{name}' to take at most {budget:g} of the base's {base_flops:,.0f} multiply-adds, "
            f"but got {flops:,.0f}; use a smaller body or a larger budget."
        )
    return ChosenBody(body, tuple(taps), flops, base_flops)


def build_body(
    net: nn.Module,
    taps: Sequence[str],
    shape: Sequence[int],
    layout: Layout | None,
    outputs: int,
    kind: Kind,
    *,
    slim: float,
    budget: float | None,
    base: float,
    wide: bool,
    seed: int | None = None,
) -> nn.Module:
    """A new body for features of `shape`: within the budget of `base` FLOPs, else the paper's at its tap, else any."""
    norm: Norm = "frn" if any(isinstance(module, FilterResponseNorm) for module in net.modules()) else "bn"
    if budget is not None:
        flops = budget * base
        return body_within(shape, layout, outputs, kind, flops, norm=norm, wide=wide, seed=seed, base=base)[0]
    if isinstance(net, ResNet) and list(taps) == [net.paper_tap]:
        return body_like(replace(net.spec, classes=outputs), kind, slim, seed=seed)
    return body_for(shape, outputs, kind, slim, layout=layout, norm=norm, seed=seed)


@torch.no_grad()
def _check_body(body: nn.Module, features: Sequence[Tensor], logits: tuple[int, ...], name: str) -> float:
    """Run the body on one image to find errors before the first step; returns its multiply-adds."""
    shapes = ", ".join(str(tuple(feature.shape[1:])) for feature in features)
    try:
        with counting() as counted:
            out = frozen_copy(body)(*features)
    except (RuntimeError, TypeError) as error:
        raise ModebridgeError(
            f"Expected the body of '{name}' to take features of {shapes}, but got '{first_line(error)}'; "
            "adapt it to the tap."
        ) from error
    expected = ", ".join(map(str, ("batch", *logits)))
    if not isinstance(out, Tensor) or out.shape != (1, *logits):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ModebridgeError(
            f"Expected the body of '{name}' to return logits of ({expected}), but got {got}; adapt its last layer."
        )
    return counted()
