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

from modebridge.guards.narrow_convolutions import correct_conv_gradients
from modebridge.guards.outputs import logits_of
from modebridge.guards.without_side_effects import tracing, without_side_effects
from modebridge.nets.taps import Taps, without_taps
from modebridge.types import Inputs, Params

__all__ = ["Tapped", "call", "frozen_copy", "run"]

_LOCKS: MutableMapping[nn.Module, AbstractContextManager[Any]] = WeakKeyDictionary()
"""One lock per module, held while it runs with other parameters."""


def frozen_copy(net: nn.Module, *, training: bool = False) -> nn.Module:
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
    return logits_of(
        without_side_effects(net, lambda safe: net(safe) if isinstance(safe, Tensor) else net(**safe), inputs)
    )


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

    return logits_of(without_side_effects(net, at, *inputs), training=net.training)


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
        self.net = frozen_copy(net)
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
    # Other threads wait, except in a compiled function: its parameters are arguments.
    lock = nullcontext() if tracing() else _LOCKS.setdefault(net, threading.RLock())
    with lock, correct_conv_gradients(net, state):
        return functional_call(net, (dict(state),), inputs, dict(by_name or {}), strict=False)
