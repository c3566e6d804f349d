"""Run a module at parameters that are not its own, and read feature maps on the way (taps)."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from modebridge.errors import ModebridgeError, near
from modebridge.nets.untouched import tracing, untouched, version
from modebridge.types import Inputs, Params

__all__ = [
    "Reading",
    "Tapped",
    "call",
    "check_tap",
    "feature_of",
    "logits_of",
    "run",
    "run_with_taps",
    "skeleton",
    "tap_names",
]


def skeleton(net: nn.Module, *, training: bool = False) -> nn.Module:
    """A copy of `net` to run with other people's parameters; the caller's module is never touched.

    Its own parameters ask for no gradient: they are placeholders.
    """
    # A module has some ten containers for hooks, nearly all empty, and deepcopy takes most of its time for them.
    empty = {
        id(value): type(value)()
        for module in net.modules()
        for value in vars(module).values()
        if type(value) in (OrderedDict, dict, set) and not value
    }
    bare = copy.deepcopy(net, empty).train(training)
    for parameter in bare.parameters():
        parameter.requires_grad_(False)
    return bare


def call(net: nn.Module, inputs: Inputs) -> Tensor:
    """The logits of `net` at its own parameters; several inputs are passed by their names, and none is changed."""
    return logits_of(untouched(net, lambda own: net(own) if isinstance(own, Tensor) else net(**own), inputs))


def run(net: nn.Module, params: Params, buffers: Params, *inputs: Inputs) -> Tensor:
    """The logits of `net` at these parameters and buffers, by name.

    In training mode batch norm updates the running statistics in `buffers` in place; the inputs are not changed.

    Args:
        net: the architecture.
        params: by name.
        buffers: by name.
        inputs: tensors in order, or one dict of them by the names of the arguments.
    """

    def at(*own: Inputs) -> object:
        plain = [given for given in own if isinstance(given, Tensor)]
        by_name = {name: tensor for given in own if not isinstance(given, Tensor) for name, tensor in given.items()}
        return functional_call(net, ({**params, **buffers},), tuple(plain), by_name, strict=False)

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
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif not isinstance(output, Tensor):
        found = getattr(output, "logits", None)
        if found is None and training and isinstance(output, tuple | list) and output:
            found = output[0]
    if not isinstance(found, Tensor):
        raise ModebridgeError(
            f"Expected the network's output to be a tensor or to hold one as 'logits', but got "
            f"{type(output).__name__}; wrap it in a module that returns its logits."
        )
    return found


def feature_of(output: object, tap: str) -> Tensor:
    """The feature in what a tapped submodule returned: a tensor, or the first one of a tuple, list or dict."""
    found = output
    if isinstance(output, Mapping):
        found = next(iter(output.values()), None)
    elif isinstance(output, tuple | list):
        found = output[0] if output else None
    if not isinstance(found, Tensor):
        raise ModebridgeError(
            f"Expected the output of tap '{tap}' to be a tensor or to begin with one, but got "
            f"{type(output).__name__}; tap a submodule that returns a tensor."
        )
    return found


class Reading:
    """What a tap gave in one forward pass, and whether a later layer changed it in place.

    Args:
        output: of the tapped submodule.
        tap: its name, for errors.
    """

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


def run_with_taps(
    net: nn.Module, images: Inputs, taps: Sequence[str], state: Params | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """One forward pass that gives both the logits and the feature maps at the taps.

    Args:
        net: any module that maps images to logits.
        images: (B, ...), or several inputs by name.
        taps: names of submodules as in `net.named_modules()`; the feature is what the submodule returns.
        state: parameters and buffers by name to run at; None takes the module's own.

    Returns:
        Logits (B, K), and the feature of each tap by its name.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> logits, features = run_with_taps(net, torch.rand(5, 3), ["1"])
    >>> logits.shape, features["1"].shape
    (torch.Size([5, 2]), torch.Size([5, 4]))
    """
    with _reading(net, taps) as found:
        logits = call(net, images) if state is None else run(net, state, {}, images)
    missed = [tap for tap in dict.fromkeys(taps) if tap not in found]
    if missed:
        raise ModebridgeError(
            f"Expected tap '{missed[0]}' to run in the forward pass, but it was never called; "
            "choose a submodule on the way from the images to the logits."
        )
    return logits, {tap: reading.feature(tap) for tap, reading in found.items()}


class Tapped(nn.Module):
    """A network that gives its logits and the features at fixed taps, at any weights; it can be compiled.

    Args:
        net: any module that maps images to logits; it is copied.
        taps: the names of the submodules to read.
    """

    def __init__(self, net: nn.Module, taps: Sequence[str]) -> None:
        super().__init__()
        self.net = skeleton(net)
        self._found: dict[str, Reading] = {}
        for tap in taps:
            check_tap(self.net, tap).register_forward_hook(self._reader(tap))
        self._taps = list(taps)

    def forward(self, images: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (B, K) and the features by tap."""
        logits = call(self.net, images)
        # Taken out, so that every pass begins with nothing: a compiler would take a full dict for another program.
        return logits, {tap: self._found.pop(tap).feature(tap) for tap in self._taps}

    def run(self, state: Params, images: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
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
            self._found[tap] = Reading(output, tap)

        return read


@contextmanager
def _reading(net: nn.Module, taps: Sequence[str]) -> Iterator[dict[str, Reading]]:
    found: dict[str, Reading] = {}
    handles: list[RemovableHandle] = []

    def reader(tap: str) -> Any:
        def read(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
            if tap in found:
                raise ModebridgeError(
                    f"Expected tap '{tap}' to run once in a forward pass, but it ran again; "
                    "tap a submodule that is used in one place only."
                )
            found[tap] = Reading(output, tap)

        return read

    try:
        # extend keeps what was registered before a bad tap raised, so that `finally` can undo it.
        handles.extend(check_tap(net, tap).register_forward_hook(reader(tap)) for tap in dict.fromkeys(taps))
        yield found
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
