"""Taps: named submodules of a network whose outputs are read during its forward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from modebridge.errors import ModebridgeError, near
from modebridge.guards.outputs import feature_of
from modebridge.guards.without_side_effects import tracing, version

__all__ = ["Taps", "check_tap", "tap_names", "without_taps"]


class Taps:
    """Reads the features at some taps of a network with hooks that are registered once, on the network itself.

    Features are stored per thread, so several threads may run one network at the same time. Passes outside `read` are
    not affected. A copy of the network together with its `Taps` (deepcopy, pickle) works in the same way.

    Args:
        net: any module that maps images to logits.
        taps: names of submodules as in `net.named_modules()`; the feature is the submodule's output.
    """

    def __init__(self, net: nn.Module, taps: Sequence[str]) -> None:
        self._names = list(dict.fromkeys(taps))
        self._by_thread = _ByThread()
        places = [(check_tap(net, tap), tap) for tap in self._names]  # check all before registering any hook
        for module, tap in places:
            module.register_forward_hook(_Reader(self._by_thread, tap))

    def read(self, forward: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The logits of a forward pass, and the features by tap.

        Args:
            forward: runs the network once, on the calling thread.
        """
        outer = self._by_thread.readings
        readings: dict[str, tuple[Tensor, int]] = {}
        self._by_thread.readings = readings
        try:
            logits = forward()
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
        return logits, {tap: readings[tap][0] for tap in self._names}


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


def without_taps(net: nn.Module) -> nn.Module:
    """Remove the hooks of all `Taps` from a network, usually a copy that will be changed or exported."""
    for module in net.modules():
        for key in [key for key, hook in module._forward_hooks.items() if isinstance(hook, _Reader)]:
            del module._forward_hooks[key]
    return net


def tap_names(net: nn.Module) -> list[str]:
    """All names that can be used as taps."""
    return [name for name, _ in net.named_modules() if name]


def check_tap(net: nn.Module, tap: str) -> nn.Module:
    """The submodule at a tap; an unknown name raises an error that suggests similar ones."""
    modules: Mapping[str, nn.Module] = dict(net.named_modules())
    if not tap or tap not in modules:
        raise ModebridgeError(
            f"Expected tap to be a submodule of {type(net).__name__}, but got '{tap}'; {near(tap, tap_names(net))}"
        )
    return modules[tap]
