"""Run a module at parameters that are not its own, and read feature maps on the way (taps)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from modebridge.errors import ModebridgeError, near
from modebridge.types import Params

__all__ = ["Tapped", "check_tap", "run", "run_with_taps", "skeleton", "tap_names"]


def skeleton(net: nn.Module, *, training: bool = False) -> nn.Module:
    """A copy of `net` to run with other people's parameters; the caller's module is never touched.

    Its own parameters ask for no gradient: they are placeholders.
    """
    bare = copy.deepcopy(net).train(training)
    for parameter in bare.parameters():
        parameter.requires_grad_(False)
    return bare


def run(net: nn.Module, params: Params, buffers: Params, *inputs: Tensor) -> Tensor:
    """The logits of `net` at these parameters and buffers, by name.

    In training mode batch norm updates the running statistics in `buffers` in place.
    """
    logits = functional_call(net, ({**params, **buffers},), inputs, strict=False)
    return _tensor(logits, "the network's output")


def run_with_taps(
    net: nn.Module, images: Tensor, taps: Sequence[str], state: Params | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """One forward pass that gives both the logits and the feature maps at the taps.

    Args:
        net: any module that maps images to logits.
        images: (B, ...).
        taps: names of submodules as in `net.named_modules()`; the feature is what the submodule returns.
        state: parameters and buffers by name to run at; None takes the module's own.

    Returns:
        Logits (B, K), and the feature of each tap by its name.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> logits, features = run_with_taps(net, torch.rand(5, 3), ["1"])
    >>> logits.shape, features["1"].shape
    (torch.Size([5, 2]), torch.Size([5, 4]))
    """
    with _reading(net, taps) as (features, versions):
        logits = _tensor(net(images), "the network's output") if state is None else run(net, state, {}, images)
    missed = [tap for tap in dict.fromkeys(taps) if tap not in features]
    if missed:
        raise ModebridgeError(
            f"Expected tap '{missed[0]}' to run in the forward pass, but it was never called; "
            "choose a submodule on the way from the images to the logits."
        )
    for tap, version in versions.items():
        if features[tap]._version != version:
            raise ModebridgeError(
                f"Expected the output of tap '{tap}' to stay as it was, but a later layer changed it in place; "
                "tap that layer instead."
            )
    return logits, features


class Tapped(nn.Module):
    """A network that gives its logits and the features at fixed taps, at any weights; it can be compiled.

    Args:
        net: any module that maps images to logits; it is copied.
        taps: the names of the submodules to read.
    """

    def __init__(self, net: nn.Module, taps: Sequence[str]) -> None:
        super().__init__()
        self.net = skeleton(net)
        self._features: dict[str, Tensor] = {}
        for tap in taps:
            check_tap(self.net, tap).register_forward_hook(self._reader(tap))
        self._taps = list(taps)

    def forward(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (B, K) and the features by tap."""
        logits = _tensor(self.net(images), "the network's output")
        # Taken out, so that every pass begins with nothing: a compiler would take a full dict for another program.
        return logits, {tap: self._features.pop(tap) for tap in self._taps}

    def run(self, state: Params, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The same at a state from `state_of`."""
        answer: tuple[Tensor, dict[str, Tensor]] = functional_call(self, (dict(state),), (images,), strict=False)
        return answer

    def state_of(self, state: Params) -> dict[str, Tensor]:
        """The parameters and buffers of the network under the names that `run` takes."""
        own = self.net.state_dict()
        # In the memory order of our own: another order would be another program to a compiler.
        return {f"net.{name}": torch.empty_like(own[name]).copy_(tensor) for name, tensor in state.items()}

    def _reader(self, tap: str) -> Callable[[nn.Module, tuple[Any, ...], object], None]:
        def read(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
            self._features[tap] = _tensor(
                output, f"the output of tap '{tap}'", "tap a submodule that returns one tensor"
            )

        return read


@contextmanager
def _reading(net: nn.Module, taps: Sequence[str]) -> Iterator[tuple[dict[str, Tensor], dict[str, int]]]:
    features: dict[str, Tensor] = {}
    versions: dict[str, int] = {}
    handles: list[RemovableHandle] = []

    def reader(tap: str) -> Any:
        def read(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
            if tap in features:
                raise ModebridgeError(
                    f"Expected tap '{tap}' to run once in a forward pass, but it ran again; "
                    "tap a submodule that is used in one place only."
                )
            features[tap] = _tensor(output, f"the output of tap '{tap}'", "tap a submodule that returns one tensor")
            if not features[tap].is_inference():
                versions[tap] = features[tap]._version

        return read

    try:
        # extend keeps what was registered before a bad tap raised, so that `finally` can undo it.
        handles.extend(check_tap(net, tap).register_forward_hook(reader(tap)) for tap in dict.fromkeys(taps))
        yield features, versions
    finally:
        for handle in handles:
            handle.remove()


def tap_names(net: nn.Module) -> list[str]:
    """Every name that can be given as a tap."""
    return [name for name, _ in net.named_modules() if name]


def check_tap(net: nn.Module, tap: str) -> nn.Module:
    """The submodule at a tap, or an error that lists the near names."""
    modules: Mapping[str, nn.Module] = dict(net.named_modules())
    if not tap or tap not in modules:
        raise ModebridgeError(
            f"Expected tap to be a submodule of {type(net).__name__}, but got '{tap}'; {near(tap, tap_names(net))}."
        )
    return modules[tap]


def _tensor(value: object, what: str, way_out: str = "wrap it in a module that returns its logits") -> Tensor:
    if not isinstance(value, torch.Tensor):
        raise ModebridgeError(f"Expected {what} to be a tensor, but got {type(value).__name__}; {way_out}.")
    return value
