"""Batch norm's running statistics, estimated again at given parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from modebridge.batches import check_batch
from modebridge.errors import ModebridgeError
from modebridge.nets import run, skeleton
from modebridge.types import Batches, Params

__all__ = ["has_statistics", "refresh_statistics"]


def has_statistics(net: nn.Module) -> bool:
    """Whether the network holds running statistics, which are valid at one point of parameter space only.

    Batch norm does, and instance norm that tracks them; a frozen batch norm's are constants.
    """
    return any(isinstance(m, _NormBase) and m.track_running_stats for m in net.modules())


@torch.no_grad()
def refresh_statistics(net: nn.Module, params: Params, buffers: Params, batches: Batches) -> dict[str, Tensor]:
    """The buffers of `net` at `params`, with running statistics averaged over all of `batches`.

    Every image counts the same: batch k of size n_k enters with momentum n_k / (n_1 + ... + n_k), so a smaller last
    batch does not weigh more than it should.

    Args:
        net: the network; it is not changed.
        params: where on the curve the statistics are wanted.
        buffers: the other buffers to start from (of either end).
        batches: the training images; labels are not used.
    """
    fresh = {name: tensor.detach().clone() for name, tensor in buffers.items()}
    copy = skeleton(net)
    norms = {name: m for name, m in copy.named_modules() if isinstance(m, _NormBase) and m.track_running_stats}
    if not norms:
        return fresh
    # Only batch norm goes to training mode: dropout and its kin stay as they are in use.
    for name, module in norms.items():
        module.train()
        fresh[f"{name}.running_mean"].zero_()
        fresh[f"{name}.running_var"].fill_(1.0)
    seen = 0
    for item in batches:
        images, labels = check_batch(item, "train")
        seen += len(labels)
        for module in norms.values():
            module.momentum = len(labels) / seen
        run(copy, params, fresh, images)
    if seen == 0:
        raise ModebridgeError(
            "Expected batches to re-estimate batch norm's statistics, but got none; give the training data."
        )
    return fresh
