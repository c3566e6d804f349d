"""Re-estimation of batch norm's running statistics for given parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from modebridge.batches import check_batch
from modebridge.errors import ModebridgeError
from modebridge.nets import frozen_copy, run
from modebridge.types import Batches, Params

__all__ = ["Refresh", "check_statistics", "has_statistics", "refresh_statistics"]

Refresh: TypeAlias = Callable[[nn.Module, Params, Params, Batches], dict[str, Tensor]]
"""`refresh_statistics`, or a version distributed over processes."""


def has_statistics(net: nn.Module) -> bool:
    """Whether the network has running statistics, which are valid only at one point of parameter space.

    Batch norm has them, and instance norm that tracks them. Those of a frozen batch norm are constants.
    """
    return any(isinstance(m, _NormBase) and m.track_running_stats for m in net.modules())


def check_statistics(net: nn.Module, start: Params, end: Params) -> None:
    """Raise an error that names the layer if a network has buffers whose values between two modes are unknown.

    Batch norm's statistics are re-estimated, and buffers that both ends share are constants. What remains are buffers
    of layers with their own rules (spectral norm's vectors, other running statistics), and batch norm without any.

    Args:
        net: the network.
        start: buffers of one end.
        end: buffers of the other end.
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
        if not known and tensor.is_floating_point() and not torch.equal(tensor, end[name]):
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
    or not in every pass, gets the average over its inputs.

    Args:
        net: the network; it is not changed.
        params: the parameters, usually a point on the curve.
        buffers: initial buffers, from either end.
        batches: the training images; labels are not used.
    """
    fresh = {name: tensor.detach().clone() for name, tensor in buffers.items()}
    copy = frozen_copy(net)
    norms = {name: m for name, m in copy.named_modules() if isinstance(m, _NormBase) and m.track_running_stats}
    if not norms:
        return fresh
    # Only batch norm is in training mode: dropout and similar layers stay in evaluation mode.
    for name, module in norms.items():
        module.train()
        module.register_forward_pre_hook(_Average(), with_kwargs=True)
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


class _Average:
    """Sets a layer's momentum before each pass so that all images so far have the same weight."""

    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, _NormBase)
        count = len(args[0] if args else kwargs["input"])
        self._seen += count
        module.momentum = count / self._seen
