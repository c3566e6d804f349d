"""Step 1: a mode, one trained point in parameter space, with its batch norm statistics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from modebridge import trees
from modebridge.batches import check_batch
from modebridge.errors import ModebridgeError
from modebridge.nets import check_given, check_ties, frozen_copy, run
from modebridge.nets.quirks import check_state, check_weights
from modebridge.types import Batches, Params


class Saved:
    """What `modebridge.load` can read again."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write a folder that `modebridge.load` reads; see `modebridge.files.save`."""
        from modebridge.files import save

        save(self, path)


@dataclass(frozen=True, eq=False)
class Mode(Saved):
    """One point in parameter space, with the running statistics that belong to it.

    Args:
        params: the trained parameters by name.
        buffers: the persistent buffers by name (batch norm statistics); may be empty.
        extra: state that is no tensor (`get_extra_state`) as JSON by name; the network and all its modes share it.

    >>> mode = Mode.from_module(nn.Linear(2, 3))
    >>> sorted(mode.params), mode.buffers
    (['bias', 'weight'], {})
    """

    params: Params
    buffers: Params
    extra: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_module(cls, net: nn.Module) -> Mode:
        """Copy the parameters and persistent buffers of a trained module."""
        return cls.from_state_dict(net, net.state_dict())

    @classmethod
    def from_state_dict(cls, net: nn.Module, state: Mapping[str, Any]) -> Mode:
        """Copy a mode from a state dict whose names and shapes must match `net`.

        Floats are converted to the network's dtype. Other dtypes are rejected where the network has floats.
        """
        check_state(state)
        net_params, net_buffers, aliases = tensors_of(net)
        if aliases:
            check_ties(state, aliases)
        skipped = {*aliases, *(extra := _extra_of(state))}
        saved = {name: tensor for name, tensor in state.items() if name not in skipped and isinstance(tensor, Tensor)}
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
        return cls(params, buffers, extra)

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
        return replace(self, params=trees.to(self.params, device), buffers=trees.to(self.buffers, device))

    def load(self, net: nn.Module) -> nn.Module:
        """A copy of `net`, in evaluation mode, with this mode's parameters and buffers."""
        self.check(net)
        filled = frozen_copy(net)
        # Not strict: a mode has only the first name of a tied tensor; `check` has verified all others.
        filled.load_state_dict(self.state, strict=False)
        return filled

    def check(self, net: nn.Module) -> None:
        """Raise an error if names, shapes or other state of this mode do not match the network."""
        params, buffers, _ = tensors_of(net)
        trees.check_same([{**params, **buffers}, self.state], f"{type(net).__name__} and the mode")
        for name, own in _extra_of(net.state_dict()).items():
            if self.extra.get(name, own) != own:
                raise ModebridgeError(
                    f"Expected '{name}' of a mode to be {own}, as in the network, but got {self.extra[name]}; only "
                    "tensors differ between modes: keep such a value in a buffer, or set it in the network."
                )


def is_extra(name: str) -> bool:
    """Whether a name of a state dict is that of what `get_extra_state` returned."""
    return name.rpartition(".")[2] == "_extra_state"


def _extra_of(state: Mapping[str, Any]) -> dict[str, str]:
    try:
        return {name: json.dumps(value, sort_keys=True) for name, value in state.items() if is_extra(name)}
    except (TypeError, ValueError) as error:
        raise ModebridgeError(
            f"Expected the extra state of a network to be plain data, but got '{error}'; return numbers, texts, lists "
            "and dicts from get_extra_state, and keep tensors in buffers."
        ) from error


def _like(expected: Tensor, saved: Tensor) -> Tensor:
    return torch.empty_like(expected, device=saved.device, requires_grad=False).copy_(saved.detach())


def tensors_of(net: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """Parameters, persistent buffers, and the first name of every further name of a tied tensor, kept once."""
    params, own_buffers = dict(net.named_parameters()), dict(net.named_buffers())
    first = {tensor: name for name, tensor in (*params.items(), *own_buffers.items())}
    for tensor, name in first.items():
        if is_lazy(tensor):
            raise ModebridgeError(
                f"Expected the weights of {type(net).__name__} to be initialized, but '{name}' has no shape yet; "
                "run the network once on a batch of images first."
            )
    every = (*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False))
    aliases = {name: first[tensor] for name, tensor in every if name != first[tensor]}
    state = net.state_dict()
    buffers = {name: tensor for name, tensor in own_buffers.items() if name in state}
    return {**params}, buffers, aliases


Trained: TypeAlias = Mode | nn.Module | Mapping[str, Any] | str | PathLike[str]
"""What holds the weights of one network: a mode, a trained module, a state dict, or the path of a checkpoint."""


def to_mode(net: nn.Module, given: Trained) -> Mode:
    """A mode from whatever holds one."""
    if isinstance(given, Mode):
        return given
    if isinstance(given, nn.Module):
        check_given(net, given)
        return Mode.from_module(given)
    if isinstance(given, Mapping):
        return Mode.from_state_dict(net, given)
    if isinstance(given, str | PathLike):
        from modebridge.files import load_checkpoint

        return load_checkpoint(net, given)
    raise ModebridgeError(
        f"Expected a mode, a module, a state dict or the path of a checkpoint, but got {type(given).__name__}; load it "
        "with load_checkpoint, or create one with Mode.from_module(net) or curve.at(r)."
    )


def check_net(net: object, name: str = "net") -> None:
    if not isinstance(net, nn.Module):
        hint = f"build it, as in {net.__name__}(...)" if isinstance(net, type) else "pass the network first, then modes"
        raise ModebridgeError(f"Expected {name} to be a torch.nn.Module, but got {type(net).__name__}; {hint}.")


def to_modes(net: nn.Module, given: object) -> Any:
    """Each of a list as a mode; one mode, or a curve, as it is."""
    check_net(net)
    if isinstance(given, nn.Module | Mapping | str | PathLike):
        raise ModebridgeError(f"Expected a list of modes, but got one {type(given).__name__}; put it in a list.")
    return [to_mode(net, one) for one in given] if isinstance(given, list | tuple) else given


def check_modes(net: nn.Module, modes: Sequence[Mode], at_least: int, what: str) -> None:
    """Raise an error if there are too few modes, or if one does not fit the network."""
    if not isinstance(modes, Sequence):
        raise ModebridgeError(
            f"Expected {what} to get a list of modes, but got one {type(modes).__name__}; put modes in a list."
        )
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


def has_statistics(net: nn.Module) -> bool:
    """Whether the network has running statistics, which are valid only at one point of parameter space.

    Batch norm has them, and instance norm that tracks them. Those of a frozen batch norm are constants.
    """
    return any(isinstance(m, _NormBase) and m.track_running_stats for m in net.modules())


def check_statistics(net: nn.Module, start: Params, end: Params) -> None:
    """Raise an error that names the layer if a network has buffers whose values between two modes are unknown.

    Batch norm's statistics are re-estimated, and buffers that both ends share are constants. What remains are buffers
    of layers with their own rules (spectral norm's vectors, other running statistics), and batch norm without any.
    """
    modules = dict(net.named_modules())
    for name, module in modules.items():
        if isinstance(module, _BatchNorm) and not module.track_running_stats:
            raise ModebridgeError(
                f"Expected batch norm to keep running statistics, but '{name}' has track_running_stats=False: its "
                "output for an image depends on the others in the batch, and so would a bridge's target; turn it on."
            )
    for name, tensor in start.items():
        path, _, buffer = name.rpartition(".")
        owner = modules.get(path, net)
        known = isinstance(owner, _NormBase) and buffer in ("running_mean", "running_var", "num_batches_tracked")
        if not known and not torch.equal(tensor, end[name]):
            raise ModebridgeError(
                f"Expected buffers to be batch norm's or equal at both ends, but '{name}' of "
                f"{type(owner).__name__} differs, and how it depends on the parameters is unknown; "
                "fold that layer into the weights, or use one without such a buffer."
            )


@torch.no_grad()
def refresh_statistics(net: nn.Module, params: Params, buffers: Params, batches: Batches) -> dict[str, Tensor]:
    """The buffers of `net` at `params`, with running statistics averaged over all `batches`.

    Every image has the same weight: batch k of size n_k has momentum n_k / (n_1 + ... + n_k), so a smaller last batch
    is not weighted too much. Each layer counts separately, whatever its own momentum: a layer that runs twice per pass,
    or not in every pass, gets the average over its inputs. The network is not changed.
    """
    fresh = {name: tensor.detach().clone() for name, tensor in buffers.items()}
    copy = frozen_copy(net)
    norms = {name: m for name, m in copy.named_modules() if isinstance(m, _NormBase) and m.track_running_stats}
    if not norms:
        return fresh
    # Only batch norm is in training mode: dropout and similar layers stay in evaluation mode.
    for name, module in norms.items():
        module.train()
        module.register_forward_pre_hook(_averaging(), with_kwargs=True)
        fresh[f"{name}.running_mean"].zero_()
        fresh[f"{name}.running_var"].fill_(1.0)
    seen = 0
    for item in batches:
        images, labels = check_batch(item, "train")
        seen += len(labels)
        try:
            run(copy, params, fresh, images)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ModebridgeError(
                f"Expected batches to hold more than one value per channel for batch norm, but got {len(labels)} "
                "image; drop the last batch (drop_last=True) or change the batch size."
            ) from error
    if seen == 0:
        raise ModebridgeError(
            "Expected batches to re-estimate batch norm's statistics, but got none; pass the training data."
        )
    return fresh


def _averaging() -> Callable[..., None]:
    """A hook that sets a layer's momentum before each pass so that all images so far have the same weight."""
    seen = 0

    def hook(norm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal seen
        count = len(args[0] if args else kwargs["input"])
        seen += count
        norm.momentum = count / seen

    return hook
