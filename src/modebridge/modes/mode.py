"""A mode: the parameters and buffers of one trained network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.nets import frozen_copy
from modebridge.nets.quirks import check_weights
from modebridge.types import Params

__all__ = ["Mode", "check_modes", "tensors_of"]


@dataclass(frozen=True, eq=False)
class Mode:
    """One point in parameter space, with the running statistics that belong to it.

    Args:
        params: the trained parameters by name.
        buffers: the persistent buffers by name (batch norm statistics); may be empty.

    >>> mode = Mode.from_module(nn.Linear(2, 3))
    >>> sorted(mode.params), mode.buffers
    (['bias', 'weight'], {})
    """

    params: Params
    buffers: Params

    @classmethod
    def from_module(cls, net: nn.Module) -> Mode:
        """Copy the parameters and persistent buffers of a trained module."""
        return cls.from_state_dict(net, net.state_dict())

    @classmethod
    def from_state_dict(cls, net: nn.Module, state: Mapping[str, Tensor]) -> Mode:
        """Copy a mode from a state dict whose names and shapes must match `net`.

        Floats are converted to the network's dtype. Other dtypes are rejected where the network has floats.
        """
        net_params, net_buffers, aliases = tensors_of(net)
        saved = {name: tensor for name, tensor in state.items() if name not in aliases and isinstance(tensor, Tensor)}
        for name, tensor in saved.items():
            check_weights(name, tensor, net_params.get(name, net_buffers.get(name)))
        trees.check_same(
            [{**net_params, **net_buffers}, saved], f"the checkpoint and {type(net).__name__}", types=False
        )
        # In the network's dtypes and memory formats, as load_state_dict would load it.
        params = {name: _like(tensor, saved[name]) for name, tensor in net_params.items()}
        buffers = {name: _like(tensor, saved[name]) for name, tensor in net_buffers.items()}
        for name, tensor in {**params, **buffers}.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ModebridgeError(
                    f"Expected a mode to be finite, but got NaN or Inf in '{name}'; "
                    "use a checkpoint saved before training diverged."
                )
        return cls(params, buffers)

    def __repr__(self) -> str:
        types = ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in self.params.values()}))
        counts = f"{trees.size(self.params):,} parameters in {len(self.params)} tensors"
        return f"Mode({counts}{f' of {types}' if types else ''}, {len(self.buffers)} buffers)"

    @cached_property
    def id(self) -> str:
        """A hash of the content: modes with equal values have the same id."""
        return trees.fingerprint(self.params, self.buffers)

    @property
    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers together, as `load_state_dict` takes them."""
        return {**self.params, **self.buffers}

    def to(self, device: torch.device | str) -> Mode:
        """The same mode on another device."""
        return Mode(trees.to(self.params, device), trees.to(self.buffers, device))

    def load(self, net: nn.Module) -> nn.Module:
        """A copy of `net`, in evaluation mode, with this mode's parameters and buffers."""
        self.check(net)
        filled = frozen_copy(net)
        # Not strict: a mode has only the first name of a tied tensor; `check` has verified all others.
        filled.load_state_dict(self.state, strict=False)
        return filled

    def save(self, path: str | PathLike[str]) -> None:
        """Write the mode as a folder that `modebridge.load` reads; see `modebridge.files.save`."""
        from modebridge.files import save

        save(self, path)

    def check(self, net: nn.Module) -> None:
        """Raise an error if names or shapes of this mode do not match the network."""
        params, buffers, _ = tensors_of(net)
        trees.check_same([{**params, **buffers}, self.state], f"the mode and {type(net).__name__}")


def _like(expected: Tensor, saved: Tensor) -> Tensor:
    return torch.empty_like(expected, device=saved.device, requires_grad=False).copy_(saved.detach())


def tensors_of(net: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """The tensors of a mode of `net`: parameters and persistent buffers, with tied tensors only once.

    Returns:
        Parameters by name, buffers by name, and for every further name of a tied tensor its first name.
    """
    params: dict[str, Tensor] = dict(net.named_parameters())
    for name, tensor in (*params.items(), *net.named_buffers()):
        if is_lazy(tensor):
            raise ModebridgeError(
                f"Expected the weights of {type(net).__name__} to be initialized, but '{name}' has no shape yet; "
                "run the network once on a batch of images first."
            )
    first = {tensor: name for name, tensor in (*params.items(), *net.named_buffers())}
    every = (*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False))
    aliases = {name: first[tensor] for name, tensor in every if name != first[tensor]}
    state = net.state_dict()
    buffers = {name: tensor for name, tensor in net.named_buffers() if name in state}
    return params, buffers, aliases


def check_modes(net: nn.Module, modes: Sequence[Mode], at_least: int, what: str) -> None:
    """Raise an error if there are too few modes, or if one does not fit the network."""
    if isinstance(modes, Mode):
        raise ModebridgeError(f"Expected {what} to get a list of modes, but got one Mode; put it in a list.")
    if len(modes) < at_least:
        raise ModebridgeError(
            f"Expected {what} to have at least {at_least} mode{'s' if at_least > 1 else ''}, "
            f"but got {len(modes)}; train or load more."
        )
    for mode in modes:
        if not isinstance(mode, Mode):
            raise ModebridgeError(
                f"Expected {what} to get modes, but got {type(mode).__name__}; "
                "create one with Mode.from_module(net) or curve.at(r)."
            )
        mode.check(net)
