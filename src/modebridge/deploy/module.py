"""A bridged ensemble as one module that maps inputs to the outputs of a file: each base runs once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from modebridge.bridges import Bridge
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

_BEFORE: dict[type[nn.Module], tuple[type[nn.Module], ...]] = {
    nn.BatchNorm1d: (nn.Linear, nn.Conv1d),
    nn.BatchNorm2d: (nn.Conv2d,),
    nn.BatchNorm3d: (nn.Conv3d,),
}


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
    """A copy of a base network that maps tensors in order to its logits and the features at its taps."""

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


def fold(net: nn.Module, keep: Sequence[str] = ()) -> nn.Module:
    """Fold batch norms in place where that is exact, and return the network.

    A batch norm is folded if the graph of the forward pass (torch.fx) shows that a convolution or linear layer feeds
    it and nothing else. It becomes an identity, so every submodule keeps its name. A network that fx cannot trace is
    folded child by child; children that fx cannot trace stay unchanged. The features at the taps `keep` do not change:
    a batch norm right after one is not folded.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    >>> fold(net)[1]
    Identity()
    """
    if not any(isinstance(module, tuple(_BEFORE)) for module in net.modules()):
        return net
    modules = dict(net.named_modules(remove_duplicate=False))
    # A module with two names or with shared weights is used in two places, and folding would change both.
    uses = Counter(id(module) for module in modules.values())
    owners = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    for before, after in _pairs(net, ""):
        layer, norm = modules[before], modules[after]
        tied = any(owners[id(p)] > 1 for p in (*layer.parameters(), *norm.parameters()))
        read = any(f"{before}.".startswith(f"{tap}.") and not f"{after}.".startswith(f"{tap}.") for tap in keep)
        if read or tied or uses[id(layer)] > 1 or uses[id(norm)] > 1 or not _foldable(layer, norm):
            continue
        # torch's fusion creates a new layer; its weights go into the old one, which may be a subclass.
        fuse = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
        fused = fuse(layer, norm)
        layer.weight, layer.bias = fused.weight, fused.bias
        parent, _, child = after.rpartition(".")
        setattr(net.get_submodule(parent), child, nn.Identity().eval())
    return net.requires_grad_(False)


def _foldable(layer: nn.Module, norm: nn.Module) -> bool:
    kind = _BEFORE.get(type(norm))
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in (layer, norm))
    return (
        kind is not None
        and isinstance(layer, kind)
        and not norm.training
        and norm.running_mean is not None
        and not hooked
        and not hasattr(layer, "parametrizations")
        # After a linear layer on tokens, batch norm may normalise over tokens instead of features.
        and (not isinstance(layer, nn.Linear) or layer.out_features == norm.num_features)
    )


class _Tracer(fx.Tracer):
    """Traces down to layers without children, also those of torch and of third-party libraries."""

    def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
        return not any(True for _ in m.children()) or super().is_leaf_module(m, qualified_name)


def _pairs(net: nn.Module, prefix: str) -> list[tuple[str, str]]:
    """Names of (layer, batch norm) pairs in which only the batch norm uses the layer's output."""
    try:
        graph = _Tracer().trace(net)
    # A forward pass on proxies may raise anything.
    except Exception:
        return [pair for name, child in net.named_children() for pair in _pairs(child, f"{prefix}{name}.")]
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    pairs = []
    for node in graph.nodes:
        if node.op != "call_module" or calls[str(node.target)] > 1:
            continue
        users: list[Any] = list(node.users)
        if len(users) == 1 and users[0].op == "call_module" and calls[str(users[0].target)] == 1:
            pairs.append((f"{prefix}{node.target}", f"{prefix}{users[0].target}"))
    return pairs
