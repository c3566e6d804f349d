"""The forward pass of everything that has bridges: each base runs once, bridges read its features, cascades stop early.

Ensembles, the logits of a run, exported files and the training of bridges all use these functions:

    outputs = bases(inputs)                                  # {key: (logits, features by tap)}, each base once
    logits = member_logits(outputs, [(bridge, keys), ...])   # the bases', then those of the heads of every bridge
    probabilities = average(probabilities_of(torch.stack(logits)))
    probabilities, deferred = cascaded(first, probabilities, threshold)

Keys are whatever names the bases: their numbers in an ensemble, ids of modes in training, names of members in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Generic, Literal, Self, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor, nn

from modebridge.bridges.bridge import Bridge
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import Tapped, classes_last, tracing
from modebridge.trees import wide
from modebridge.types import Inputs

K = TypeVar("K")

Output: TypeAlias = tuple[Tensor, Mapping[str, Tensor]]
"""What a base returns: its logits (B, *P, K), and its features by tap."""

Mean: TypeAlias = Literal["probability", "logarithmic"]
"""How members are averaged: the mean of their probabilities, as in the paper, or of their log probabilities."""

ALL = 2.0
"""A threshold above any confidence: every image uses all members."""


class Bases(Generic[K]):
    """One network with the weights of several modes; each runs once per batch.

    Only the weights are kept per mode: the network exists once, on the device of `net`, and a compiled forward pass
    serves all of them. Features are read at the taps.
    """

    def __init__(self, net: nn.Module, modes: Mapping[K, Mode], taps: Iterable[str] = ()) -> None:
        tapped = Tapped(net, sorted(set(taps)))
        self.device = next((tensor.device for tensor in net.state_dict().values()), torch.device("cpu"))
        self._states = {key: tapped.state_of(mode.to(self.device).state) for key, mode in modes.items()}
        self.run: Callable[..., Output] = tapped.run
        """Runs the network with given weights; training may replace it by a compiled version."""
        self.fan_out: Callable[[Sequence[Callable[[], Output]]], list[Output]] = lambda passes: [
            one() for one in passes
        ]
        """Runs several passes; training may replace it to run them in parallel."""

    def __call__(self, inputs: Inputs) -> dict[K, Output]:
        """Logits and features of every base, by key."""
        passes = [partial(self.run, state, inputs) for state in self._states.values()]
        return dict(zip(self._states, self.fan_out(passes), strict=True))


def features_of(bridge: Bridge, reads: Sequence[K], outputs: Mapping[K, Output]) -> list[Tensor]:
    """The features that a bridge reads, in its order; `reads` are the keys of the one or two bases it reads."""
    return [outputs[reads[k]][1][tap] for k, tap in bridge.places]


def member_logits(outputs: Mapping[K, Output], bridges: Iterable[tuple[Bridge, Sequence[K]]]) -> list[Tensor]:
    """The logits (B, *P, K) of all members: the bases in the order of `outputs`, then every head of every bridge.

    Each bridge comes with the keys of the bases it reads. If it predicts fewer places, its logits are enlarged.
    """
    logits = [base for base, _ in outputs.values()]
    places = logits[0].shape[1:-1]
    for bridge, reads in bridges:
        heads = bridge.head_logits(*features_of(bridge, reads, outputs))
        logits += [classes_last(head, places=places) for head in heads]
    return logits


def probabilities_of(logits: Tensor) -> Tensor:
    """The softmax of logits over classes; half precision is computed in float32, as bfloat16 rows do not sum to 1.

    >>> probabilities_of(torch.zeros(1, 3, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return wide(logits).softmax(dim=-1)


def check_logits(logits: Tensor, net: nn.Module) -> None:
    """Raise an error for what is most probably the output of a softmax, (B, *P, K): its softmax is far too flat."""
    sums = logits.sum(dim=-1)
    if sums.numel() and logits.shape[-1] > 1 and bool((logits >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()):
        raise ModebridgeError(
            f"Expected {type(net).__name__} to return logits, but its outputs are probabilities; leave out the "
            "softmax, or return their logarithm."
        )


def check_mean(mean: Mean) -> Mean:
    """Return `mean` if it is a known name; raise an error otherwise."""
    if mean not in get_args(Mean):
        raise ModebridgeError(f"Expected the mean to be probability or logarithmic, but got {mean!r}; choose one.")
    return mean


def average(tables: Tensor | Sequence[Tensor], mean: Mean = "probability") -> Tensor:
    r"""The probability (B, *P, K) of an ensemble from its members' (M, B, *P, K), before any temperature.

    .. math:: p = \frac{1}{M} \sum_{m=1}^{M} p_m

    "logarithmic" is the normalized geometric mean instead, the softmax of the mean of the members' logits.

    >>> average([torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])])
    tensor([[0.7000, 0.3000]])
    >>> average([torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])], "logarithmic")
    tensor([[0.7500, 0.2500]])
    """
    stacked = tables if isinstance(tables, Tensor) else torch.stack(list(tables))
    if check_mean(mean) == "probability":
        return stacked.mean(dim=0)
    return stacked.clamp_min(torch.finfo(stacked.dtype).tiny).log().mean(dim=0).softmax(dim=-1)


def cascaded(first: Tensor, full: Tensor, threshold: Tensor | float) -> tuple[Tensor, Tensor]:
    """The probabilities (B, *P, K) of a cascade, and which images (B,) used all members.

    `first` and `full` are calibrated probabilities (B, *P, K) of the first member alone and of all members. Images
    whose top probability in `first`, on average over places, is at least the threshold use the first member alone.

    >>> cascaded(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([[0.8, 0.2], [0.3, 0.7]]), 0.7)
    (tensor([[0.9000, 0.1000],
            [0.3000, 0.7000]]), tensor([False,  True]))
    """
    deferred = confidence_of(first) < threshold
    return torch.where(deferred.view(-1, *[1] * (first.dim() - 1)), full, first), deferred


def confidence_of(probabilities: Tensor) -> Tensor:
    """The top probability of each image (B,), the mean over its places if it has several."""
    top = probabilities.amax(dim=-1)
    return top if top.dim() == 1 else top.flatten(1).mean(dim=-1)


def deferring(confidence: Tensor, share: float) -> float:
    """The highest threshold that at most a share of these confidences (N,) are below; images of equal ones are alike.

    >>> deferring(torch.tensor([0.9, 0.5, 0.7, 0.8]), 0.6)
    0.800000011920929
    """
    most = int(share * len(confidence) + 1e-9)
    return float(confidence.sort().values[most]) if most < len(confidence) else ALL


def labeled(mass: Tensor) -> Tensor:
    """The share of labeled places, from the sums over classes of their label probabilities (..., places).

    A mean over all places, divided by it, is one over the labeled ones. It is rounded: sums of probabilities are nearly
    1, where losses must keep their bits.

    >>> labeled(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 1.0, 1.0]]))
    tensor([0.2500, 0.7500])
    """
    return (4096 * mass.mean(dim=-1)).round().clamp_min(1) / 4096


class EvaluationOnly(nn.Module):
    """A module whose submodules stay in evaluation mode, like a frozen backbone.

    `train()` sets only its own flag, so it can be part of a larger module that is trained: batch norm inside keeps its
    running statistics, and dropout stays off. Gradients pass through as usual.

    >>> part = EvaluationOnly()
    >>> part.inner = nn.BatchNorm1d(2)
    >>> whole = nn.Sequential(part, nn.Linear(2, 3)).train()
    >>> part.training, part.inner.training, whole[1].training
    (True, False, True)
    """

    def train(self, mode: bool = True) -> Self:
        """Set the flag `training`; the submodules always go to evaluation mode."""
        super().train(False)
        self.training = mode
        return self

    def check_evaluating(self) -> None:
        """Raise an error if a submodule was put in training mode separately and would change its buffers.

        Layers without buffers may be in training mode: active dropout is a way to sample from a network.
        """
        if tracing():  # the statistics are constants of the graph, or the tracer raises its own error
            return
        for layer in self._with_buffers:
            if layer.training:
                name = next((name for name, module in self.named_modules() if module is layer), type(layer).__name__)
                raise ModebridgeError(
                    f"Expected the networks of {type(self).__name__} to be in evaluation mode, but '{name}' was put in "
                    "training mode and would change its running statistics; call eval() on the whole module."
                )

    @cached_property
    def _with_buffers(self) -> list[nn.Module]:
        """The layers with buffers; found once, since big networks have hundreds of others."""
        return [module for module in self.modules() if module is not self and module._buffers]
