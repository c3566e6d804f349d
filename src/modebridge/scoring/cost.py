"""The cost of a combination of modes and bridges, counted without running it and without its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from modebridge.bridges import Bridge
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.nets import FilterResponseNorm
from modebridge.nets.flops import counting, examples, feature_shapes, invoke
from modebridge.nets.quirks import on_copy
from modebridge.types import Inputs

CostConvention: TypeAlias = Literal["counted", "paper"]

PAPER_WEIGHTS: dict[type[nn.Module], int] = {FilterResponseNorm: 6, nn.SiLU: 5, nn.MaxPool2d: 1}
"""FLOPs per input element of a layer in the paper's counting; undocumented, fitted to its tables."""
NORMS = (FilterResponseNorm, _NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Cost:
    """The cost of one forward pass of one image, and of the weights.

    Args:
        flops: multiply-adds of convolutions and matrix products (with the "paper" convention also elementwise work).
        params: number of parameters.
        relative_flops: FLOPs relative to one base network.
        relative_params: parameters relative to one base network.
    """

    flops: float
    params: int
    relative_flops: float
    relative_params: float


def cost(ensemble: Ensemble, image: Sequence[int] | Inputs, convention: CostConvention = "counted") -> Cost:
    """The cost of a whole bridged ensemble: every mode runs once, every bridge once.

    Args:
        ensemble: the ensemble; it is neither run nor changed.
        image: shape (C, H, W) of one image; or a batch, for networks that take several inputs by name.
        convention: "counted" gives true counts, "paper" the paper's columns; see `combination_cost`.
    """
    base = ensemble.bases[0]
    bridges = [bridge for bridge in ensemble.bridges if isinstance(bridge, Bridge)]
    shapes = feature_shapes(base, image, [tap for bridge in bridges for tap in bridge.taps])
    fed = [(bridge, [shapes[tap] for _, tap in bridge.places]) for bridge in bridges]
    return combination_cost(base, image, len(ensemble.bases), fed, convention)


def combination_cost(
    base: nn.Module,
    image: Sequence[int] | Inputs,
    modes: int,
    bridges: Sequence[tuple[nn.Module, Sequence[Sequence[int]]]] = (),
    convention: CostConvention = "counted",
) -> Cost:
    """The cost of `modes` base networks and some bridges, from their architectures.

    "paper" counts as the paper's tables do: FLOPs are multiply-adds, plus 6 per element of filter response norm, 5 per
    SiLU (as a module) and 1 per input of a max-pool. The parameters of bridges are divided by those of THREE base
    networks (the curve's), both rounded to 0.01 M, so relative parameters (not absolute ones) are a third of the truth.

    Args:
        base: the base network.
        image: shape (C, H, W) of one image, or a batch.
        modes: number of base networks; 0 counts only the bridges.
        bridges: each body with the shapes of the features it reads, without the batch axis.
        convention: "counted" or "paper".

    >>> from modebridge.bridges import body_like
    >>> from modebridge.nets import SPECS, resnet
    >>> net, body = resnet("tin200"), body_like(SPECS["tin200"], "I")
    >>> total = combination_cost(net, (3, 64, 64), 1, [(body, [(256, 16, 16)])] * 2)
    >>> round(total.relative_flops, 3), round(total.relative_params, 3)
    (1.1, 1.342)
    """
    if modes < 0:
        raise ModebridgeError(f"Expected modes to be at least 0, but got {modes}; 0 counts only the bridges.")
    unit = module_cost(base, image, convention=convention)
    parts = [module_cost(body, *features, convention=convention) for body, features in bridges]
    shares = [_ratio(part.params, unit.params) for part in parts]
    if convention == "paper":
        _check_frn(base, *(body for body, _ in bridges))
        shares = [_ratio(_rounded(part.params), _rounded(3 * unit.params)) for part in parts]
    return Cost(
        flops=modes * unit.flops + sum(part.flops for part in parts),
        params=modes * unit.params + sum(part.params for part in parts),
        relative_flops=modes + sum(_ratio(part.flops, unit.flops) for part in parts),
        relative_params=modes + sum(shares),
    )


def module_cost(module: nn.Module, *example: Sequence[int] | Inputs, convention: CostConvention = "counted") -> Cost:
    """The cost of one module, relative to itself.

    It is counted on a copy without weights (on the meta device), in evaluation mode, with a batch of one. Only a module
    that cannot run there is copied with its weights and run on zeros. The caller's module is never changed.

    Args:
        module: any module.
        example: the shape of each input without the batch axis, or a batch.
        convention: "counted" or "paper", see `combination_cost`.

    >>> module_cost(nn.Linear(3, 5), (3,))
    Cost(flops=15.0, params=20, relative_flops=1.0, relative_params=1.0)
    """
    if convention not in ("counted", "paper"):
        raise ModebridgeError(
            f"Expected convention to be 'counted' or 'paper', but got '{convention}'; choose one of the two."
        )

    def count(bare: nn.Module, inputs: Sequence[Inputs]) -> float:
        elementwise: list[int] = []
        for layer in bare.modules() if convention == "paper" else ():
            if type(layer) in PAPER_WEIGHTS:
                layer.register_forward_hook(
                    lambda layer, args, _: elementwise.append(PAPER_WEIGHTS[type(layer)] * args[0].numel())
                )
        with counting() as counted:
            invoke(bare, inputs)
        return counted() + sum(elementwise)

    flops = on_copy(module, examples(module, *example), count)
    params = sum(parameter.numel() for parameter in module.parameters())
    return Cost(flops=flops, params=params, relative_flops=1.0, relative_params=1.0)


def _check_frn(base: nn.Module, *bodies: nn.Module) -> None:
    """Raise an error for networks without filter response norm: the paper's rule was not fitted to them."""
    for module in (base, *bodies):
        norms = [type(layer).__name__ for layer in module.modules() if isinstance(layer, NORMS)]
        others = [name for name in norms if name != FilterResponseNorm.__name__]
        if others or (module is base and not norms):
            raise ModebridgeError(
                f"Expected networks with filter response norm, to which the paper's counting was fitted, but got "
                f"{others[0] if others else 'none'} in {type(module).__name__}; leave out the paper's counting, or "
                "count one of the paper's recipes, such as cifar10."
            )


def _rounded(params: int) -> int:
    # To 0.01 M, as the paper's tool printed them; a count that would become 0 is not rounded.
    return round(params, -4) or params


def _ratio(part: float, whole: float) -> float:
    # A base without convolutions or matrix products cannot serve as a unit.
    return part / whole if whole else math.nan
