"""A bridged ensemble as one module: each base runs once, and the output is the calibrated mean probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.bridges import Bridge
from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.deploy.elastic_answer import Place, heads_of
from modebridge.deploy.fold import fold
from modebridge.deploy.grouped_bridges import Grouped, units
from modebridge.ensembles import Ensemble, Mean, average, probabilities_of, scale
from modebridge.ensembles.forward import EvaluationOnly
from modebridge.nets import Taps, call, frozen_copy, without_side_effects
from modebridge.types import Inputs

__all__ = ["BasePart", "OneModule", "Positional"]


class OneModule(EvaluationOnly):
    """All members as one module that shares no state with the original ensemble.

    It is thread-safe, and `train()` leaves its networks in evaluation mode.

    Args:
        ensemble: modes and bridges; copied.
        temperatures: temperature per number of bridges; None uses the temperature of the ensemble for all.
        folded: fold batch norm into the preceding layer where that is exact.
        grouped: run bridges of one architecture at one tap as one; see `grouped_bridges`.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        temperatures: Temperatures | None = None,
        *,
        folded: bool = True,
        grouped: bool = False,
    ) -> None:
        super().__init__()
        bridges = [bridge for bridge in ensemble.bridges if isinstance(bridge, Bridge)]
        self.heads: list[int] = [bridge.heads for bridge in bridges]
        given = temperatures or Temperatures.same(float(ensemble.temperature), len(bridges))
        self.temperatures = replace(given, heads=tuple(self.heads))
        self.temperatures.check(len(bridges))
        self.mean: Mean = ensemble.mean
        self.taps: list[list[str]] = [list(taps) for taps in ensemble._taps]
        self.reads: list[list[Place]] = [
            [(reads[k], tap) for k, tap in bridge.places]
            for bridge, reads in zip(bridges, ensemble._reads, strict=True)
        ]
        self.bases = nn.ModuleList(
            BasePart(base, taps, folded=folded) for base, taps in zip(ensemble.bases, self.taps, strict=True)
        )
        bodies = [frozen_copy(bridge.body) for bridge in bridges]
        bodies = [fold(body) if folded else body for body in bodies]
        # Bridges that run as one form a unit; each other bridge is a unit of its own.
        alone: list[tuple[int, ...]] = [(j,) for j in range(len(bodies))]
        self.units = units(bodies, self.reads, self.heads) if grouped else alone
        self.runners = nn.ModuleList(
            bodies[numbers[0]] if len(numbers) == 1 else Grouped([bodies[j] for j in numbers]) for numbers in self.units
        )
        self.eval().requires_grad_(False)

    def forward(self, images: Inputs) -> Tensor:
        """The calibrated probabilities (B, K): a plain graph to compile, capture or export."""
        return scale(average(self.members(images), self.mean), self.temperatures.by_bridges[-1])

    def members(self, images: Inputs) -> Tensor:
        """The probabilities (M, B, K) of every member: the modes, then the heads of the bridges."""
        logits, features = self.run_bases(images)
        by_bridge: dict[int, Tensor] = {}
        for numbers, runner in zip(self.units, self.runners, strict=True):
            out = without_side_effects(runner, runner, *[features[place] for place in self.reads[numbers[0]]])
            by_bridge |= {numbers[0]: out} if len(numbers) == 1 else dict(zip(numbers, out.unbind(), strict=True))
        heads = [head for j in range(len(self.reads)) for head in heads_of(by_bridge[j])]
        return probabilities_of(torch.stack([*logits, *heads]))

    def run_bases(self, images: Inputs) -> tuple[list[Tensor], dict[Place, Tensor]]:
        """The logits (B, K) of every base, and the features that bridges read."""
        logits: list[Tensor] = []
        features: dict[Place, Tensor] = {}
        for k, base in enumerate(self.bases):
            out, *at_taps = base(images)
            logits.append(out)
            features |= {(k, tap): feature for tap, feature in zip(self.taps[k], at_taps, strict=True)}
        return logits, features


class BasePart(EvaluationOnly):
    """A base network that returns its logits and the features at its taps, in order.

    Args:
        net: the network with its weights; copied.
        taps: names of submodules whose outputs to return.
        folded: fold batch norm where that is exact.
    """

    def __init__(self, net: nn.Module, taps: Sequence[str], *, folded: bool = True) -> None:
        super().__init__()
        self.net = fold(frozen_copy(net), keep=taps) if folded else frozen_copy(net)
        self._taps = Taps(self.net, taps)

    def forward(self, images: Inputs) -> tuple[Tensor, ...]:
        """Logits (B, K), then one feature per tap."""
        logits, features = self._taps.read(lambda: call(self.net, images))
        return (logits, *features.values())


class Positional(nn.Module):
    """A wrapper that calls any module with positional tensors.

    Args:
        module: shared, not copied.
        names: names of the tensors, if the module takes a dict.
    """

    def __init__(self, module: nn.Module, names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.module = module
        self._names = names

    def forward(self, *inputs: Tensor) -> Any:
        """The output of the module."""
        given: Sequence[Inputs] = inputs if self._names is None else [dict(zip(self._names, inputs, strict=True))]
        return without_side_effects(self.module, self.module, *given)
