"""A bridged ensemble as one module that maps inputs to the outputs of a file: each base runs once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from modebridge.bridges import Bridge
from modebridge.deploy.fold import fold
from modebridge.ensembles import (
    Ensemble,
    Output,
    average,
    fit_temperature,
    member_logits,
    probabilities_of,
    scale,
)
from modebridge.ensembles.forward import EvaluationOnly
from modebridge.ensembles.temperature import FLOOR
from modebridge.errors import ModebridgeError
from modebridge.nets import Taps, call, frozen_copy
from modebridge.types import Inputs

__all__ = ["BaseModule", "EnsembleModule", "Temperatures", "fit_temperatures"]


class Temperatures(NamedTuple):
    """The temperatures that divide the log of the mean probability.

    Args:
        first: of the first base alone, used for confident images.
        by_bridges: of all bases with 0, 1, ... bridges.
    """

    first: float
    by_bridges: tuple[float, ...]


def fit_temperatures(members: Sequence[Tensor] | Tensor, labels: Tensor, heads: Sequence[int]) -> Temperatures:
    """Fit one temperature for the first base and one for each number of bridges.

    Args:
        members: (M, N, K) probabilities on held-out data: the bases, then every head of the bridges in order.
        labels: (N,).
        heads: number of heads of each bridge.
    """
    ends = accumulate(heads, initial=len(members) - sum(heads))
    fitted = tuple(fit_temperature(average(members[:end]), labels) for end in ends)
    return Temperatures(fit_temperature(members[0], labels), fitted)


class BaseModule(EvaluationOnly):
    """A base network that maps tensors in order to its logits and the features at its taps.

    Args:
        net: the network with its weights; copied.
        taps: names of submodules whose outputs to return.
        inputs: names of the tensors, if the network takes several by name.
        folded: fold batch norm where that is exact.
    """

    def __init__(self, net: nn.Module, taps: Sequence[str], inputs: Sequence[str] | None, *, folded: bool) -> None:
        super().__init__()
        self.net = fold(frozen_copy(net), keep=taps) if folded else frozen_copy(net)
        self._taps, self._inputs = Taps(self.net, taps), inputs

    def run(self, *tensors: Tensor) -> Output:
        """Logits (B, K), and the features by tap."""
        given: Inputs = tensors[0] if self._inputs is None else dict(zip(self._inputs, tensors, strict=True))
        return self._taps.read(lambda: call(self.net, given))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Logits (B, K), then one feature per tap."""
        logits, features = self.run(*tensors)
        return (logits, *features.values())


class EnsembleModule(EvaluationOnly):
    """All members as one module that shares nothing with the ensemble: a plain graph to compile, capture or export.

    Args:
        ensemble: modes and bridges; copied.
        temperature: temperature of the mean; None for that of the ensemble.
        inputs: names of the inputs, if the networks take several by name; they are then passed in this order.
        outputs: names of the outputs, in order.
        folded: fold batch norm into the preceding layer where that is exact.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        temperature: float | None = None,
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] = ("probabilities",),
        folded: bool = True,
    ) -> None:
        super().__init__()
        if ensemble.mean != "probability":
            raise ModebridgeError(
                "Expected an ensemble with the mean of probabilities, which is the only one that files have, but its "
                f"mean is {ensemble.mean}; build it with mean='probability'."
            )
        self.temperature = float(ensemble.temperature) if temperature is None else temperature
        self.outputs = list(outputs)
        self.taps: list[list[str]] = [
            sorted({tap for bridge, reads in ensemble.reads if k in reads for tap in bridge.taps})
            for k in range(len(ensemble.bases))
        ]
        parts = zip(ensemble.bases, self.taps, strict=True)
        self.bases = nn.ModuleList(BaseModule(base, taps, inputs, folded=folded) for base, taps in parts)
        self.bridges = nn.ModuleList(frozen_copy(bridge) for bridge, _ in ensemble.reads)
        self._reads = [reads for _, reads in ensemble.reads]
        for bridge, _ in self.reads:
            bridge.body = fold(bridge.body) if folded else bridge.body
        self.eval().requires_grad_(False)

    @property
    def reads(self) -> list[tuple[Bridge, tuple[int, ...]]]:
        """Each bridge, with the numbers of the bases that it reads."""
        return [(b, reads) for b, reads in zip(self.bridges, self._reads, strict=True) if isinstance(b, Bridge)]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs, in order; see `Answer`."""
        members = probabilities_of(torch.stack(member_logits(self.run_bases(*tensors), self.reads)))
        answer = scale(average(members), self.temperature)
        tables = {"probabilities": answer, "members": members.transpose(0, 1), "entropy": _entropy(answer)}
        tables["mutual_information"] = _entropy(members.mean(dim=0)) - _entropy(members).mean(dim=0)
        tables["used"] = torch.full((members.shape[1],), len(members), device=members.device)
        return tuple(tables[name] for name in self.outputs)

    def run_bases(self, *tensors: Tensor) -> dict[int, Output]:
        """The logits (B, K) of every base and the features that bridges read, by number."""
        return {k: base.run(*tensors) for k, base in enumerate(self.bases) if isinstance(base, BaseModule)}


def _entropy(table: Tensor) -> Tensor:
    return -(table * (table + FLOOR).log()).sum(dim=-1)
