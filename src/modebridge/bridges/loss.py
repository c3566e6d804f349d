"""The loss of a bridge, and mixup."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from modebridge.trees import wide

__all__ = ["bridge_loss", "kl_divergence", "mix"]


def bridge_loss(target: Tensor, logits: Tensor) -> Tensor:
    r"""The loss of a bridge on a batch, exactly as in the paper's algorithms 1 and 2.

    .. math:: \ell = \frac{1}{|B|} \sum_{x \in B} D_\mathrm{KL}\big(v_{1,2}(r) \,\|\, \tilde v_{1,2}(r)\big)

    with the network on the curve :math:`v_{1,2}(r) = f_{\theta_{1,2}(r)}(\tilde x)` and the bridge
    :math:`\tilde v_{1,2}(r) = h_{1,2}(z_1)` (type I) or :math:`H_{1,2}(z_1, z_2)` (type II), all on one mixed image
    :math:`\tilde x` (`mix`) and its features z.

    Args:
        target: probabilities v (B, K) of the network on the curve; (B, h, K) for h heads, whose losses are summed.
        logits: logits of the bridge, of the same shape; half precision is converted to float32.

    >>> bridge_loss(torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2))
    tensor(0.)
    """
    return kl_divergence(target, wide(logits)).mean(dim=0).sum()


def kl_divergence(target: Tensor, logits: Tensor) -> Tensor:
    r"""KL(target || softmax(logits)) of each row, in nats; zeros in the target contribute nothing.

    .. math:: D_\mathrm{KL}(t \| p) = \sum_k t_k (\log t_k - \log p_k), \qquad p = \operatorname{softmax}(\text{logits})

    Args:
        target: probabilities (B, K).
        logits: logits (B, K); log probabilities are logits too.

    >>> kl_divergence(torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2))
    tensor([0.])
    """
    negative_entropy: Tensor = torch.special.xlogy(target, target)
    return (negative_entropy - target * F.log_softmax(logits, dim=-1)).sum(dim=-1)


def mix(values: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    """Mixup: share * values + (1 - share) * values[partner], with one share per sample, or per pixel for CutMix.

    Values beyond the number of shares are used as partners only (see `MatchingObjective.part`).
    """
    shares = share.view(*share.shape, *[1] * (values.dim() - share.dim()))
    return shares * values[: len(share)] + (1 - shares) * values[partner]
