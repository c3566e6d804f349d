"""Run a module at parameters that are not its own, and read feature maps on the way (taps)."""

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

_TURNS: MutableMapping[nn.Module, AbstractContextManager[Any]] = WeakKeyDictionary()
"""Whose turn it is to run a module at parameters that are not its own."""


def skeleton(net: nn.Module, *, training: bool = False) -> nn.Module:
    """A copy of `net` to run with other people's parameters; the caller's module is never touched.

    Its own parameters ask for no gradient: they are placeholders. Hooks of taps stay behind.
    """
    # A module has some ten containers for hooks, nearly all empty, and deepcopy takes most of its time for them.
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
    """The logits of `net` at its own parameters; several inputs are passed by their names, and none is changed."""
    return logits_of(untouched(net, lambda safe: net(safe) if isinstance(safe, Tensor) else net(**safe), inputs))


def run(net: nn.Module, params: Params, buffers: Params, *inputs: Inputs) -> Tensor:
    """The logits of `net` at these parameters and buffers, by name.

    In training mode batch norm updates the running statistics in `buffers` in place; the inputs are not changed.

    Args:
        net: the architecture.
        params: by name.
        buffers: by name.
        inputs: tensors in order, or one dict of them by the names of the arguments.
    """

    def at(*safe: Inputs) -> object:
        plain = [tensors for tensors in safe if isinstance(tensors, Tensor)]
        dicts = [tensors for tensors in safe if not isinstance(tensors, Tensor)]
        by_name = {name: tensor for tensors in dicts for name, tensor in tensors.items()}
        return _at(net, {**params, **buffers}, tuple(plain), by_name)

    return logits_of(untouched(net, at, *inputs), training=net.training)


def logits_of(output: object, *, training: bool = False) -> Tensor:
    """The logits in what a network returned: a tensor, or an object or dict that holds `logits`.

    Hugging Face's models return objects; torchvision's Inception returns one in training mode only, and others a tuple
    then: the logits, and behind them those of auxiliary heads, which are left out.

    Args:
        output: what it returned.
        training: whether it is in training mode; only there a tuple is understood.

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
            f"{type(output).__name__}; wrap it in a module that returns its logits."
        )
    return logits


class Tapped(nn.Module):
    """A network that gives its logits and the features at fixed taps, at any weights; it can be compiled.

    Several threads may run it: at its own weights side by side, at others one after another.

    Args:
        net: any module that maps images to logits; it is copied, and runs in evaluation mode.
        taps: names of submodules as in `net.named_modules()`; the feature is what the submodule returns.

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
        """The same at a state from `state_of`."""
        answer: tuple[Tensor, dict[str, Tensor]] = _at(self, state, (images,))
        return answer

    def state_of(self, state: Params) -> dict[str, Tensor]:
        """The parameters and buffers of the network under the names that `run` takes."""
        placeholders = self.net.state_dict()
        # In the memory order of our own: another order would be another program to a compiler.
        return {f"net.{name}": torch.empty_like(placeholders[name]).copy_(tensor) for name, tensor in state.items()}


def _at(net: nn.Module, state: Params, inputs: tuple[Any, ...], by_name: Mapping[str, Any] | None = None) -> Any:
    """What a module says at other parameters and buffers; torch puts them into the module itself for that time."""
    with _one_at_a_time(net), soundly(net, state):
        return functional_call(net, (dict(state),), inputs, dict(by_name or {}), strict=False)


def _one_at_a_time(net: nn.Module) -> AbstractContextManager[Any]:
    """Keeps other threads from changing a module that this one has changed for the length of a pass."""
    # A compiled function has no such time: its parameters are arguments.
    return nullcontext() if tracing() else _TURNS.setdefault(net, threading.RLock())
