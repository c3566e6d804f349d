"""The Kullback-Leibler losses of bridges and students."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.trees import wide

__all__ = ["PAPER_LOSS", "DistillationLoss", "bridge_loss", "kl_divergence"]


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


def bridge_loss(target: Tensor, logits: Tensor) -> Tensor:
    r"""The loss of a bridge on a batch, exactly as in the paper's algorithms 1 and 2.

    .. math:: \ell = \frac{1}{|B|} \sum_{x \in B} D_\mathrm{KL}\big(v_{1,2}(r) \,\|\, \tilde v_{1,2}(r)\big)

    with the network on the curve :math:`v_{1,2}(r) = f_{\theta_{1,2}(r)}(\tilde x)` and the bridge
    :math:`\tilde v_{1,2}(r) = h_{1,2}(z_1)` (type I) or :math:`H_{1,2}(z_1, z_2)` (type II), all on one mixed image
    :math:`\tilde x` (`mixing.mix`) and its features z.

    Args:
        target: probabilities v (B, K) of the network on the curve; (B, h, K) for h heads, whose losses are summed.
        logits: logits of the bridge, of the same shape; half precision is converted to float32.

    >>> bridge_loss(torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2))
    tensor(0.)
    """
    return kl_divergence(target, wide(logits)).mean(dim=0).sum()


@dataclass(frozen=True)
class DistillationLoss:
    r"""The loss of a student on (possibly mixed) images x, with labels y mixed alike.

    .. math:: \ell = s\, T^2\, D_\mathrm{KL}\big(\bar p_T(x) \,\|\, q_T(x)\big) + h\, D_\mathrm{KL}(y \,\|\, q_1(x)),
        \qquad \bar p_T = \frac{1}{M} \sum_m p_{m,T}

    where :math:`p_{m,T}` is teacher m's softmax at temperature T and :math:`q_T` the student's. The paper's mean of the
    divergences to each teacher has the same gradient: it differs by the teachers' disagreement, which does not depend
    on the student. The last term is the cross entropy, minus the entropy of mixed labels.

    Args:
        temperature: temperature T.
        soft: weight s of the teachers.
        hard: weight h of the labels.
    """

    temperature: float = 1.0
    soft: float = 1.0
    hard: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature <= 1000:
            raise ModebridgeError(
                f"Expected the temperature of distillation to be above 0 and at most 1,000, but got "
                f"{self.temperature}; 1 leaves probabilities unchanged."
            )
        if not (0 <= self.soft <= 1e6 and 0 <= self.hard <= 1e6 and self.soft + self.hard > 0):
            raise ModebridgeError(
                f"Expected the weights of teachers and labels to be at least 0 and not both 0, but got soft="
                f"{self.soft} and hard={self.hard}; change one."
            )

    def target(self, probabilities: Tensor) -> Tensor:
        """The mean (B, K) of teachers' probabilities (M, B, K), each at the loss's temperature."""
        if self.temperature != 1:
            probabilities = (probabilities.log() / self.temperature).softmax(dim=-1)
        return probabilities.mean(dim=0)

    def __call__(self, target: Tensor | None, labels: Tensor | None, logits: Tensor) -> Tensor:
        """The mean loss over a batch.

        Args:
            target: probabilities (B, K) from `target`; None without teachers.
            labels: label probabilities (B, K); None if labels are not used.
            logits: logits (B, K) of the student.

        >>> import torch
        >>> DistillationLoss()(torch.tensor([[0.5, 0.5]]), None, torch.zeros(1, 2))
        tensor(0.)
        """
        logits = wide(logits)
        loss = logits.new_zeros(())
        if target is not None and self.soft:
            soft = kl_divergence(target, logits / self.temperature).mean()
            loss = loss + self.soft * self.temperature**2 * soft
        if labels is not None:
            # Without teachers the labels get full weight.
            weight = 1.0 if target is None and self.soft else self.hard
            loss = loss + weight * kl_divergence(labels, logits).mean()
        return loss


PAPER_LOSS = DistillationLoss(temperature=4.0, soft=1.8, hard=0.1)
"""The authors' loss: 0.1 CE + 2 * 0.9 T^2 KL with T = 4, without mixup; the factor 2 is in their code."""
