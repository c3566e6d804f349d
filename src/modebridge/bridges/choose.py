"""Which body a bridge gets, and where it reads: decided here for training, costs, files and benchmarks alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modebridge.batches import each
from modebridge.bridges.budget import body_within
from modebridge.bridges.build import READS, Kind, body_for, body_like
from modebridge.bridges.designs import Design, check_design
from modebridge.errors import ModebridgeError, first_line
from modebridge.inspection import inspect
from modebridge.nets import FilterResponseNorm, Norm, ResNet, Tapped, check_tap, skeleton
from modebridge.nets.flops import counting
from modebridge.types import Inputs, Layout

__all__ = ["ChosenBody", "choose_body"]


@dataclass(frozen=True)
class ChosenBody:
    """The body of a bridge and what it costs.

    Args:
        body: from feature(s) to logits.
        tap: the submodule whose output it reads.
        flops: multiply-adds of the body for one image.
        base_flops: those of the base network.
    """

    body: nn.Module
    tap: str
    flops: float
    base_flops: float

    @property
    def params(self) -> int:
        """Parameters of the body."""
        return sum(parameter.numel() for parameter in self.body.parameters())

    @property
    def share(self) -> float | None:
        """Its multiply-adds in units of the base; None where the base has none."""
        return self.flops / self.base_flops if self.base_flops else None


def choose_body(
    net: nn.Module,
    images: Inputs,
    kind: Kind,
    *,
    tap: str | None = None,
    slim: float = 2,
    budget: float | None = None,
    design: Design = "plain",
    body: nn.Module | None = None,
    state: Mapping[str, Tensor] | None = None,
    name: str = "bridge",
    seed: int = 0,
) -> ChosenBody:
    """The body of a bridge for a network.

    Args:
        net: the base network.
        images: a few images (or inputs by name), to see the feature's shape.
        kind: "I" reads one feature, "II" two.
        tap: where it is read; None takes what `modebridge.inspect` chooses, the paper's place in its networks.
        slim: divides the widths.
        budget: at most this share of the base's FLOPs, instead of `slim`.
        design: how the blocks are built, see `bridges.designs`.
        body: one that is there already: only checked and counted.
        state: weights to run the network with; None for its own.
        name: how errors call the bridge.
        seed: of the weights.
    """
    _check_budget(budget)
    check_design(design)
    first = each(lambda tensor: tensor[:1], images)
    tap, layout = _tap(net, tap, first)
    tapped = Tapped(net, [tap])
    with torch.no_grad(), counting() as counted:
        logits, features = tapped(first) if state is None else tapped.run(tapped.state_of(state), first)
    whole = counted()
    feature = features[tap]
    if body is None:
        shape, classes = feature.shape[1:], logits.shape[1]
        norm: Norm = "frn" if any(isinstance(module, FilterResponseNorm) for module in net.modules()) else "bn"
        if budget is not None:
            body, _ = body_within(
                shape, layout, classes, kind, budget * whole, norm=norm, design=design, seed=seed, base=whole
            )
        elif isinstance(net, ResNet) and tap == net.paper_tap:
            body = body_like(net.spec, kind, slim, design=design, seed=seed)
        else:
            body = body_for(shape, classes, kind, slim, layout=layout, norm=norm, design=design, seed=seed)
        body = body.to(feature.dtype)
    taken = _check_body(body, [feature] * READS[kind], logits.shape[1], name)
    if budget is not None and taken > budget * whole:
        raise ModebridgeError(
            f"Expected the body of '{name}' to take at most {budget:g} of the base's {whole:,.0f} multiply-adds, "
            f"but got {taken:,.0f}; give a smaller body or a larger budget."
        )
    return ChosenBody(body, tap, taken, whole)


def _check_budget(budget: float | None) -> None:
    if budget is not None and not 0 < budget <= 1:
        raise ModebridgeError(
            f"Expected budget to be a share of the base's FLOPs in (0, 1], but got {budget}; 0.05 is 5 %."
        )


def _tap(net: nn.Module, tap: str | None, images: Inputs) -> tuple[str, Layout | None]:
    """The tap, given or chosen, and how its feature lies, where that is known."""
    if tap is not None:
        check_tap(net, tap)
    if isinstance(net, ResNet) and (tap := tap or net.paper_tap):
        return tap, None  # our own need no looking at, and recipes plan many bridges
    seen = inspect(net, images)
    tap = tap or seen.chosen.name
    return tap, next((known.layout for known in seen.taps if known.name == tap), None)


@torch.no_grad()
def _check_body(body: nn.Module, features: Sequence[Tensor], classes: int, name: str) -> float:
    """One image through the body: what does not fit is said now, not in the first step; gives its multiply-adds."""
    shapes = ", ".join(str(tuple(feature.shape[1:])) for feature in features)
    try:
        with counting() as counted:
            out = skeleton(body)(*features)
    except (RuntimeError, TypeError) as error:
        raise ModebridgeError(
            f"Expected the body of '{name}' to take features of {shapes}, but got '{first_line(error)}'; "
            "fit it to the tap."
        ) from error
    if not isinstance(out, Tensor) or out.shape != (1, classes):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ModebridgeError(
            f"Expected the body of '{name}' to give logits of (batch, {classes}), but got {got}; fit its last layer."
        )
    return counted()
