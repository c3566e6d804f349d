"""Run a module with other parameters, and read feature maps in the forward pass (taps)."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from modebridge.errors import ModebridgeError
from modebridge.guards.narrow_convolutions import soundly
from modebridge.guards.untouched import tracing, untouched
from modebridge.nets.taps import Taps, without_taps
from modebridge.types import Inputs, Params

__all__ = [
    "Tapped",
    "call",
    "logits_of",
    "run",
    "skeleton",
]

_LOCKS: MutableMapping[nn.Module, AbstractContextManager[Any]] = WeakKeyDictionary()
"""One lock per module, held while it runs with other parameters."""


def skeleton(net: nn.Module, *, training: bool = False) -> nn.Module:
    """A copy of `net` to run with other parameters; the caller's module is never changed.

    Its own parameters are placeholders and need no gradient. Hooks of taps are not copied.
    """
    # A module has about ten containers for hooks, nearly all empty, and deepcopy spends most of its time on them.
    empty = {
        id(value): type(value)()
        for module in net.modules()
        for value in vars(module).values()
        if type(value) in (OrderedDict, dict, set) and not value
    }
    bare = without_taps(copy.deepcopy(net, empty)).train(training)
    for parameter in bare.parameters():
        parameter.requires_grad_(False)
    return bare


def call(net: nn.Module, inputs: Inputs) -> Tensor:
    """The logits of `net` with its own parameters; several inputs are passed by name, and none is changed."""
    return logits_of(untouched(net, lambda safe: net(safe) if isinstance(safe, Tensor) else net(**safe), inputs))


def run(net: nn.Module, params: Params, buffers: Params, *inputs: Inputs) -> Tensor:
    """The logits of `net` with the given parameters and buffers.

    In training mode batch norm updates the running statistics in `buffers` in place. The inputs are not changed.

    Args:
        net: the architecture.
        params: parameters by name.
        buffers: buffers by name.
        inputs: tensors in order, or one dict of tensors by argument name.
    """

    def at(*safe: Inputs) -> object:
        plain = [tensors for tensors in safe if isinstance(tensors, Tensor)]
        dicts = [tensors for tensors in safe if not isinstance(tensors, Tensor)]
        by_name = {name: tensor for tensors in dicts for name, tensor in tensors.items()}
        return _at(net, {**params, **buffers}, tuple(plain), by_name)

    return logits_of(untouched(net, at, *inputs), training=net.training)


def logits_of(output: object, *, training: bool = False) -> Tensor:
    """The logits from a network's output: a tensor, or an object or dict that holds `logits`.

    Hugging Face models return objects. In training mode, torchvision's Inception returns one too, and other networks
    a tuple: the logits, then those of auxiliary heads, which are ignored.

    Args:
        output: the network's output.
        training: whether the network is in training mode; tuples are accepted only then.

    >>> logits_of({"logits": torch.ones(1, 2), "hidden_states": None})
    tensor([[1., 1.]])
    """
    logits = output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif not isinstance(output, Tensor):
        logits = getattr(output, "logits", None)
        if logits is None and training and isinstance(output, tuple | list) and output:
            logits = output[0]
    if not isinstance(logits, Tensor):
        raise ModebridgeError(
            f"Expected the network's output to be a tensor or to hold one as 'logits', but got "
            f"{type(output).__name__}; wrap the network in a module that returns its logits."
        )
    return logits


class Tapped(nn.Module):
    """A network that returns its logits and the features at fixed taps, with any weights; it can be compiled.

    Several threads may run it: concurrently with its own weights, one after another with other weights.

    Args:
        net: any module that maps images to logits; it is copied and runs in evaluation mode.
        taps: names of submodules as in `net.named_modules()`; the feature is the submodule's output.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> logits, features = Tapped(net, ["1"])(torch.rand(5, 3))
    >>> logits.shape, features["1"].shape
    (torch.Size([5, 2]), torch.Size([5, 4]))
    """

    def __init__(self, net: nn.Module, taps: Sequence[str]) -> None:
        super().__init__()
        self.net = skeleton(net)
        self._taps = Taps(self.net, taps)

    def forward(self, images: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (B, K) and the features by tap."""
        return self._taps.read(lambda: call(self.net, images))

    def run(self, state: Params, images: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits and features with a state from `state_of`."""
        outputs: tuple[Tensor, dict[str, Tensor]] = _at(self, state, (images,))
        return outputs

    def state_of(self, state: Params) -> dict[str, Tensor]:
        """Rename the parameters and buffers of the network as `run` expects them."""
        placeholders = self.net.state_dict()
        # In the memory format of the placeholders: the compiler specialises on the memory format.
        return {f"net.{name}": torch.empty_like(placeholders[name]).copy_(tensor) for name, tensor in state.items()}


def _at(net: nn.Module, state: Params, inputs: tuple[Any, ...], by_name: Mapping[str, Any] | None = None) -> Any:
    """The output of a module with other parameters and buffers, which torch swaps into the module during the call."""
    with _one_at_a_time(net), soundly(net, state):
        return functional_call(net, (dict(state),), inputs, dict(by_name or {}), strict=False)


def _one_at_a_time(net: nn.Module) -> AbstractContextManager[Any]:
    """Locks a module whose parameters are swapped during a pass against other threads."""
    # A compiled function needs no lock: its parameters are arguments.
    return nullcontext() if tracing() else _LOCKS.setdefault(net, threading.RLock())
