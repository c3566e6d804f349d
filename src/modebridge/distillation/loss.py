"""The loss of a student."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from modebridge.bridges import kl_divergence
from modebridge.errors import ModebridgeError
from modebridge.nets import mean_probability
from modebridge.trees import wide

__all__ = ["PAPER_LOSS", "DistillationLoss"]


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
        return mean_probability(probabilities)

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
