"""A mode: the parameters and buffers of one trained network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.nets import skeleton
from modebridge.storage import Given, Parts, Storable, prefixed
from modebridge.types import Params

__all__ = ["Mode", "check_modes", "tensors_of", "unusual"]


@dataclass(frozen=True, eq=False)
class Mode(Storable):
    """One point in parameter space, with the running statistics that belong to it.

    Args:
        params: the trained parameters by name.
        buffers: the persistent buffers by name (batch norm's statistics); empty for networks without any.

    >>> mode = Mode.from_module(nn.Linear(2, 3))
    >>> sorted(mode.params), mode.buffers
    (['bias', 'weight'], {})
    """

    stored_as = "mode"
    params: Params
    buffers: Params

    def to_parts(self) -> Parts:
        """Parameters and buffers."""
        return Parts(self.stored_as, {}, {**prefixed("params", self.params), **prefixed("buffers", self.buffers)})

    @classmethod
    def from_parts(cls, parts: Parts, given: Given) -> Mode:
        """The mode again; a given network must fit it."""
        mode = cls(parts.below("params"), parts.below("buffers"))
        if given.net is not None:
            mode.check(given.net)
        return mode

    @classmethod
    def from_module(cls, net: nn.Module) -> Mode:
        """Copy the parameters and persistent buffers out of a trained module."""
        return cls.from_state_dict(net, net.state_dict())

    @classmethod
    def from_state_dict(cls, net: nn.Module, state: Mapping[str, Tensor]) -> Mode:
        """Copy a mode out of a state dict, which must fit `net` name by name and shape by shape.

        Floats are converted to the network's own type; other numbers are no weights, and refused where it has floats.
        """
        net_params, net_buffers, aliases = tensors_of(net)
        saved = {name: tensor for name, tensor in state.items() if name not in aliases and isinstance(tensor, Tensor)}
        for name, tensor in saved.items():
            _check_numbers(name, tensor, net_params.get(name, net_buffers.get(name)))
        trees.check_same(
            [{**net_params, **net_buffers}, saved], f"the checkpoint and {type(net).__name__}", types=False
        )
        # In the network's own types and memory orders, as load_state_dict would load it.
        params = {name: _like(tensor, saved[name]) for name, tensor in net_params.items()}
        buffers = {name: _like(tensor, saved[name]) for name, tensor in net_buffers.items()}
        for name, tensor in {**params, **buffers}.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ModebridgeError(
                    f"Expected a mode to be finite, but got NaN or Inf in '{name}'; "
                    "use a checkpoint from before the training diverged."
                )
        return cls(params, buffers)

    def __repr__(self) -> str:
        types = ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in self.params.values()}))
        counted = f"{trees.size(self.params):,} parameters in {len(self.params)} tensors"
        return f"Mode({counted}{f' of {types}' if types else ''}, {len(self.buffers)} buffers)"

    @cached_property
    def id(self) -> str:
        """A hash of the content: two modes with the same numbers are the same mode."""
        return trees.fingerprint(self.params, self.buffers)

    @property
    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers together, as `load_state_dict` takes them."""
        return {**self.params, **self.buffers}

    def to(self, device: torch.device | str) -> Mode:
        """The same mode on another device."""
        return Mode(trees.to(self.params, device), trees.to(self.buffers, device))

    def load(self, net: nn.Module) -> nn.Module:
        """A copy of `net`, in evaluation mode, that holds this mode's numbers."""
        self.check(net)
        filled = skeleton(net)
        # Not strict: the second name of a tied tensor is not ours to carry; `check` has seen all the others.
        filled.load_state_dict(self.state, strict=False)
        return filled

    def check(self, net: nn.Module) -> None:
        """Refuse a network that this mode does not fit, by name and shape."""
        params, buffers, _ = tensors_of(net)
        trees.check_same([{**params, **buffers}, self.state], f"the mode and {type(net).__name__}")


def unusual(tensor: Tensor) -> str | None:
    """What a tensor is that is not simply a table of numbers; None for a plain one.

    >>> unusual(torch.eye(2).to_sparse()), unusual(torch.eye(2))
    ('a sparse tensor', None)
    """
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_quantized:
        return "a quantised tensor"
    if tensor.layout != torch.strided:
        return "a sparse tensor" if "sparse" in str(tensor.layout) else f"a tensor of layout {tensor.layout}"
    if tensor.device.type == "meta":
        return "a tensor without numbers (on the meta device)"
    return None


def _check_numbers(name: str, saved: Tensor, expected: Tensor | None) -> None:
    """Refuse what `copy_` would turn into weights that nobody trained, or could not read at all."""
    got, way_out = unusual(saved), "save plain dense tensors, tensor.to_dense() or tensor.dequantize()"
    if got is None and expected is not None and expected.shape == saved.shape:
        if expected.is_floating_point() and not saved.is_floating_point():
            got, way_out = f"{saved.dtype}", f"use the weights as they were trained, such as {expected.dtype}"
        elif saved.is_complex() and not expected.is_complex():
            got, way_out = f"{saved.dtype}", f"save it as {expected.dtype}"
        elif _claims_more(saved) and not _claims_more(expected):
            got = f"{tuple(saved.shape)} made of {saved.untyped_storage().nbytes()} bytes"
            way_out = "save a tensor that holds all its numbers, tensor.contiguous()"
    if got is not None:
        raise ModebridgeError(f"Expected '{name}' to be a tensor of a network's numbers, but got {got}; {way_out}.")


def _claims_more(tensor: Tensor) -> bool:
    """Whether a tensor shows some of its numbers again and again, as `expand` makes it."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def _like(expected: Tensor, saved: Tensor) -> Tensor:
    return torch.empty_like(expected, device=saved.device, requires_grad=False).copy_(saved.detach())


def tensors_of(net: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """What a mode of `net` carries: its parameters, its persistent buffers, and its tied tensors once.

    Returns:
        Parameters and buffers by name, and the first name of each tensor by its further names.
    """
    params: dict[str, Tensor] = dict(net.named_parameters())
    for name, tensor in (*params.items(), *net.named_buffers()):
        if is_lazy(tensor):
            raise ModebridgeError(
                f"Expected the weights of {type(net).__name__} to be initialised, but '{name}' has no shape yet; "
                "run the network once on a batch of images first."
            )
    first = {tensor: name for name, tensor in (*params.items(), *net.named_buffers())}
    every = (*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False))
    aliases = {name: first[tensor] for name, tensor in every if name != first[tensor]}
    state = net.state_dict()
    buffers = {name: tensor for name, tensor in net.named_buffers() if name in state}
    return params, buffers, aliases


def check_modes(net: nn.Module, modes: Sequence[Mode], at_least: int, what: str) -> None:
    """Refuse too few modes, or modes that do not fit the network, before any work starts."""
    if isinstance(modes, Mode):
        raise ModebridgeError(f"Expected {what} to be given a list of modes, but got one Mode; put it in a list.")
    if len(modes) < at_least:
        raise ModebridgeError(
            f"Expected {what} to have at least {at_least} mode{'s' if at_least > 1 else ''}, "
            f"but got {len(modes)}; train or load more."
        )
    for mode in modes:
        if not isinstance(mode, Mode):
            raise ModebridgeError(
                f"Expected {what} to be given modes, but got {type(mode).__name__}; "
                "make one with Mode.from_module(net) or curve.at(r)."
            )
        mode.check(net)
