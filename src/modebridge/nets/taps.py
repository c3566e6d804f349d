"""Taps: named places in a network whose outputs are read during its forward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from modebridge.errors import ModebridgeError, near
from modebridge.guards.untouched import tracing, version

__all__ = ["Taps", "check_tap", "feature_of", "tap_names", "without_taps"]


class Taps:
    """Reads the features at some taps of a network by hooks that are set once, on the network itself.

    What a pass reads is kept by thread, so several threads may run one network at the same time; a pass that nobody
    reads is left alone. A copy of the network together with its `Taps` (deepcopy, pickle) reads as they did.

    Args:
        net: any module that maps images to logits.
        taps: names of submodules as in `net.named_modules()`; the feature is what the submodule returns.
    """

    def __init__(self, net: nn.Module, taps: Sequence[str]) -> None:
        self._names = list(dict.fromkeys(taps))
        self._by_thread = _ByThread()
        places = [(check_tap(net, tap), tap) for tap in self._names]  # all of them, before any hook is set
        for module, tap in places:
            module.register_forward_hook(_Reader(self._by_thread, tap))

    def read(self, forward: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The logits of a forward pass, and the feature of each tap by its name.

        Args:
            forward: runs the network once, on the thread that called.
        """
        before = self._by_thread.readings
        readings: dict[str, _Reading] = {}
        self._by_thread.readings = readings
        try:
            logits = forward()
        finally:
            self._by_thread.readings = before
        for tap in self._names:
            if tap not in readings:
                raise ModebridgeError(
                    f"Expected tap '{tap}' to run in the forward pass, but it was never called; "
                    "choose a submodule on the way from the images to the logits."
                )
        return logits, {tap: readings[tap].feature(tap) for tap in self._names}


class _Reading:
    """What a tap gave in one forward pass, and whether a later layer changed it in place."""

    def __init__(self, output: object, tap: str) -> None:
        feature = feature_of(output, tap)
        # Where nobody can look afterwards it is a copy, which a compiler leaves out if nobody writes.
        self._feature = feature.clone() if tracing() else feature
        self._version = 0 if tracing() else version(feature)

    def feature(self, tap: str) -> Tensor:
        """The feature after the whole pass; refuses one that is no longer what the tap gave."""
        if not tracing() and version(self._feature) != self._version:
            raise ModebridgeError(
                f"Expected the output of tap '{tap}' to stay as it was, but a later layer changed it in place; "
                "tap that layer instead."
            )
        return self._feature


class _ByThread(threading.local):
    """What the pass of each thread has read; None where nobody reads. A copy starts with nothing."""

    def __init__(self) -> None:  # in every thread that comes; dynamo wants it to be an attribute of the instance
        self.readings: dict[str, _Reading] | None = None

    def __reduce__(self) -> tuple[type[_ByThread], tuple[()]]:
        return _ByThread, ()


class _Reader:
    """The hook of one tap; a class and no closure, so that a copied network gets a hook of its own."""

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
                "tap a submodule that is used in one place only."
            )
        readings[self._tap] = _Reading(output, self._tap)


def without_taps(net: nn.Module) -> nn.Module:
    """The network with the hooks of all `Taps` taken off: a copy that nobody reads, to be changed or exported."""
    for module in net.modules():
        for key in [key for key, hook in module._forward_hooks.items() if isinstance(hook, _Reader)]:
            del module._forward_hooks[key]
    return net


def feature_of(output: object, tap: str) -> Tensor:
    """The feature in what a tapped submodule returned: a tensor, or the first one of a tuple, list or dict."""
    feature = output
    if isinstance(output, Mapping):
        feature = next(iter(output.values()), None)
    elif isinstance(output, tuple | list):
        feature = output[0] if output else None
    if not isinstance(feature, Tensor):
        raise ModebridgeError(
            f"Expected the output of tap '{tap}' to be a tensor or to begin with one, but got "
            f"{type(output).__name__}; tap a submodule that returns a tensor."
        )
    return feature


def tap_names(net: nn.Module) -> list[str]:
    """Every name that can be given as a tap."""
    return [name for name, _ in net.named_modules() if name]


def check_tap(net: nn.Module, tap: str) -> nn.Module:
    """The submodule at a tap, or an error that lists the near names."""
    modules: Mapping[str, nn.Module] = dict(net.named_modules())
    if not tap or tap not in modules:
        raise ModebridgeError(
            f"Expected tap to be a submodule of {type(net).__name__}, but got '{tap}'; {near(tap, tap_names(net))}"
        )
    return modules[tap]
