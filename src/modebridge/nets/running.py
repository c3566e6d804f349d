"""Run any network: with other parameters, with features read at taps, as a frozen copy."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from modebridge.batches import copied, flatten
from modebridge.errors import ModebridgeError, near
from modebridge.nets.quirks import correct_conv_gradients, tracing, version
from modebridge.types import Inputs, Params

T = TypeVar("T")


def logits_of(output: object, *, training: bool = False) -> Tensor:
    """The logits from a network's output: a tensor, or an object or dict that holds `logits`, or `out`.

    Hugging Face models return objects, torchvision's models for segmentation dicts. In training mode, torchvision's
    Inception returns an object too, and other networks a tuple: the logits, then those of auxiliary heads, which are
    ignored. So is all but the first of a list, which networks with deep supervision return.

    >>> logits_of({"logits": torch.ones(1, 2), "hidden_states": None})
    tensor([[1., 1.]])
    """
    logits = output
    if isinstance(output, Mapping):
        logits = output.get("logits", output.get("out"))
    elif not isinstance(output, Tensor):
        logits = getattr(output, "logits", None)
        if logits is None and isinstance(output, list if not training else tuple | list) and output:
            logits = output[0]
    if not isinstance(logits, Tensor):
        raise ModebridgeError(
            f"Expected the network's output to be a tensor or to hold one as 'logits', but got "
            f"{type(output).__name__}; wrap the network in a module that returns its logits."
        )
    if logits.dim() > 1 and logits.shape[1] == 1:
        raise ModebridgeError(
            "Expected the network to return a logit for each of at least two classes, but got 1, whose softmax is "
            "always 1; for a sigmoid's logit z return two, torch.cat([torch.zeros_like(z), z], dim=1)."
        )
    return logits


def classes_last(logits: Tensor, axis: int = 1, places: Sequence[int] | None = None) -> Tensor:
    """Logits (B, K, *P) with their classes, at `axis`, as the last axis; resized to `places` if those are given.

    >>> classes_last(torch.zeros(2, 5, 3, 4)).shape, classes_last(torch.zeros(2, 5, 3, 4), places=(6, 8)).shape
    (torch.Size([2, 3, 4, 5]), torch.Size([2, 6, 8, 5]))
    """
    if logits.dim() <= axis + 1:
        return logits
    if places is not None and tuple(logits.shape[axis + 1 :]) != tuple(places):
        mode = ("linear", "bilinear", "trilinear")[len(places) - 1]
        sized = F.interpolate(logits.flatten(1, axis), size=tuple(places), mode=mode, align_corners=False)
        logits = sized.view(*logits.shape[: axis + 1], *places)
    return logits.movedim(axis, -1)


def second(table: Tensor, axis: int = 1) -> Tensor:
    """The classes, which are the last axis, as the axis that they have outside of the library."""
    return table if table.dim() <= axis + 1 else table.movedim(-1, axis)


def _network_logits(output: object, inputs: Sequence[Inputs], training: bool) -> Tensor:
    """The logits (B, *P, K) of a network; those of Hugging Face models are enlarged to the size of their images."""
    logits, places = logits_of(output, training=training), None
    if logits.dim() > 2 and ("logits" in output if isinstance(output, Mapping) else hasattr(output, "logits")):
        sizes = [tensor.shape[2:] for given in inputs for tensor in flatten(given).values()]
        places = next((size for size in sizes if len(size) == logits.dim() - 2), None)
    return classes_last(logits, places=places)


def feature_of(output: object, tap: str) -> Tensor:
    """The feature in a tapped submodule's output: a tensor, or the first one of a tuple, list or dict."""
    feature = output
    if isinstance(output, Mapping):
        feature = next(iter(output.values()), None)
    elif isinstance(output, tuple | list):
        feature = output[0] if output else None
    if not isinstance(feature, Tensor):
        raise ModebridgeError(
            f"Expected the output of tap '{tap}' to be a tensor or to start with one, but got "
            f"{type(output).__name__}; tap a submodule that returns a tensor."
        )
    return feature


class Taps:
    """Reads the features at some taps of a network with hooks that are registered once, on the network itself.

    Features are stored per thread, so several threads may run one network at the same time. Passes outside `read` are
    not affected. A copy of the network together with its `Taps` (deepcopy, pickle) works in the same way.
    """

    def __init__(self, net: nn.Module, taps: Sequence[str]) -> None:
        self._names = list(dict.fromkeys(taps))
        self._by_thread = _ByThread()
        places = [(check_tap(net, tap), tap) for tap in self._names]  # check all before registering any hook
        for module, tap in places:
            module.register_forward_hook(_Reader(self._by_thread, tap))

    def read(self, net: nn.Module, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The logits of a network, run once on the calling thread, and the features by tap.

        Features of tokens that `attention_mask` leaves out are zeros: what is read there depends on how long the other
        sequences of the batch are.
        """
        outer = self._by_thread.readings
        readings: dict[str, tuple[Tensor, int]] = {}
        self._by_thread.readings = readings
        try:
            logits = call(net, inputs)
        finally:
            self._by_thread.readings = outer
        for tap in self._names:
            if tap not in readings:
                raise ModebridgeError(
                    f"Expected tap '{tap}' to run in the forward pass, but it was never called; "
                    "choose a submodule between the images and the logits."
                )
            feature, before = readings[tap]
            if not tracing() and version(feature) != before:
                raise ModebridgeError(
                    f"Expected the output of tap '{tap}' to stay unchanged, but a later layer changed it in place; "
                    "tap that layer instead."
                )
        return logits, {tap: _without_padding(readings[tap][0], inputs) for tap in self._names}


def _without_padding(feature: Tensor, inputs: Inputs) -> Tensor:
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    if mask is None or feature.dim() != 3 or mask.shape != feature.shape[:2]:
        return feature
    return feature.masked_fill((mask == 0)[..., None], 0.0)


class _ByThread(threading.local):
    """The features of each thread's pass with their versions; None outside `Taps.read`. A copy starts empty."""

    def __init__(self) -> None:  # runs in every new thread; dynamo needs an instance attribute
        self.readings: dict[str, tuple[Tensor, int]] | None = None

    def __reduce__(self) -> tuple[type[_ByThread], tuple[()]]:
        return _ByThread, ()


class _Reader:
    """The hook of one tap; a class rather than a closure, so that a copied network gets its own hook."""

    def __init__(self, by_thread: _ByThread, tap: str) -> None:
        self._by_thread = by_thread
        self._tap = tap

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        readings = self._by_thread.readings
        if readings is None:
            return
        if self._tap in readings:
            raise ModebridgeError(
                f"Expected tap '{self._tap}' to run once in a forward pass, but it ran again; "
                "tap a submodule that is used only once."
            )
        feature = feature_of(output, self._tap)
        # Tracing cannot check versions afterwards, so it copies; a compiler removes the copy if nothing writes.
        readings[self._tap] = (feature.clone(), 0) if tracing() else (feature, version(feature))


def check_tap(net: nn.Module, tap: str) -> nn.Module:
    """The submodule at a tap; an unknown name raises an error that suggests similar ones."""
    modules: Mapping[str, nn.Module] = dict(net.named_modules())
    if not tap or tap not in modules:
        close = near(tap, [name for name in modules if name])
        raise ModebridgeError(f"Expected tap to be a submodule of {type(net).__name__}, but got '{tap}'; {close}")
    return modules[tap]


_LOCKS: MutableMapping[nn.Module, AbstractContextManager[Any]] = WeakKeyDictionary()
"""One lock per module, held while it runs with other parameters."""


def frozen_copy(net: nn.Module, *, training: bool = False) -> nn.Module:
    """A copy of `net` to run with other parameters; the caller's module is never changed.

    Its own parameters are placeholders and need no gradient. Hooks of taps are not copied.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in net.modules()):
        raise ModebridgeError(
            f"Expected a network that Python runs, but got {type(net).__name__} of torch.jit, which takes no other "
            "weights; pass the module that it was made from."
        )
    # A module has about ten containers for hooks, nearly all empty, and deepcopy spends most of its time on them.
    empty = {
        id(value): type(value)()
        for module in net.modules()
        for value in vars(module).values()
        if type(value) in (OrderedDict, dict, set) and not value
    }
    bare = copy.deepcopy(net, empty).train(training)
    for module in bare.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # features of its layers would be nested tensors, which have no shape
        for key in [key for key, hook in module._forward_hooks.items() if isinstance(hook, _Reader)]:
            del module._forward_hooks[key]
    if training:
        correct_conv_gradients(bare)
    return bare.requires_grad_(False)


def call(net: nn.Module, inputs: Inputs) -> Tensor:
    """The logits of `net` with its own parameters; several inputs are passed by name, and none is changed."""
    plain, by_name = arguments([inputs])
    return _network_logits(net(*plain, **by_name), [inputs], training=False)


def run(net: nn.Module, params: Params, buffers: Params, *inputs: Inputs) -> Tensor:
    """The logits (B, *P, K) of `net` with the given parameters and buffers, on tensors or one dict of tensors by name.

    In training mode batch norm updates the running statistics in `buffers` in place. The inputs are not changed.
    """
    return _network_logits(run_at(net, params, buffers, *inputs), inputs, training=net.training)


def run_at(net: nn.Module, params: Params, buffers: Params, *inputs: Inputs) -> Any:
    """The output of any module with the given parameters and buffers, as `run`."""
    plain, by_name = arguments(inputs)
    return _at(net, {**params, **buffers}, plain, by_name)


def arguments(inputs: Sequence[Inputs]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Copies of the inputs, as a module is called with them: tensors in order, and those of dicts by name."""
    plain: list[Tensor] = []
    by_name: dict[str, Tensor] = {}
    for given in map(copied, inputs):
        if isinstance(given, Tensor):
            plain.append(given)
        else:
            by_name.update(given)
    return plain, by_name


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
        return self._taps.read(self.net, images)

    def run(self, state: Params, images: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits and features with a state from `state_of`."""
        outputs: tuple[Tensor, dict[str, Tensor]] = _at(self, state, (images,), {})
        return outputs

    def state_of(self, state: Params) -> dict[str, Tensor]:
        """Rename the parameters and buffers of the network as `run` expects them."""
        placeholders = self.net.state_dict()
        # In the memory format of the placeholders: the compiler specializes on the memory format.
        return {f"net.{name}": torch.empty_like(placeholders[name]).copy_(tensor) for name, tensor in state.items()}


def _at(net: nn.Module, state: Params, inputs: Sequence[Any], by_name: Mapping[str, Any]) -> Any:
    """The output of a module with other parameters and buffers, which torch swaps into the module during the call."""
    # Other threads wait, except in a compiled function: its parameters are arguments.
    lock = nullcontext() if tracing() else _LOCKS.setdefault(net, threading.RLock())
    with lock:
        return functional_call(net, (dict(state),), tuple(inputs), dict(by_name), strict=False)
