"""Several members in one network: the base of BatchEnsemble, MIMO, packed ensembles and Monte-Carlo dropout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.batches import unflatten
from modebridge.ensembles import Mean, average, probabilities_of
from modebridge.errors import ModebridgeError
from modebridge.nets import frozen_copy, logits_of, run
from modebridge.objectives import ModeObjective
from modebridge.trees import wide
from modebridge.types import Batches, Prepared, State, States

__all__ = ["MeanOfMembers", "Rival", "RivalObjective", "mean_logits"]

MOST = 64
"""Maximum number of members of one network."""


class RivalObjective(ModeObjective):
    """Train all members of one network on labels with the mean cross entropy over members and images."""

    def _loss(self, state: State, prepared: Prepared) -> Tensor:
        logits = run(self._train, state.all_params, state.buffers, unflatten(prepared))
        labels = prepared["labels"]
        return F.cross_entropy(logits, labels.repeat(len(logits) // len(labels)))

    @torch.no_grad()
    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """The error rate of the members' mean probability."""
        ((member, state),) = states.items()
        wrong, seen = 0, 0
        for images, labels in batches:
            logits = run(self._eval, state.all_params, state.buffers, images)
            table = average(torch.unflatten(probabilities_of(logits), 0, (-1, len(labels))))
            wrong += int((table.argmax(-1) != labels).sum())
            seen += len(labels)
        return {member: wrong / seen if seen else math.nan}


class Rival(nn.Module):
    """A network whose M members share weights or layers; it returns logits (M * B, K), ordered by member.

    This is torch-uncertainty's convention, as in `Ensemble.stacked`. `fit_mode` trains one with its
    `objective`.

    Args:
        net: maps the inputs from `arranged` to logits (M * B, K).
        members: number of members M.
    """

    objective: ClassVar[type[RivalObjective]] = RivalObjective

    def __init__(self, net: nn.Module, members: int) -> None:
        super().__init__()
        self.net = net
        self.members = members

    def arranged(self, inputs: Tensor) -> Tensor:
        """Convert an input (B, ...) for the network: by default one copy per member, (M * B, ...)."""
        return inputs.repeat(self.members, *[1] * (inputs.dim() - 1))

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The logits (M * B, K)."""
        arranged = [self.arranged(tensor) for tensor in inputs]
        by_name = {name: self.arranged(tensor) for name, tensor in named.items()}
        return logits_of(self.net(*arranged, **by_name), training=self.training)


class MeanOfMembers(nn.Module):
    r"""A rival as an ordinary classifier: logits (B, K) whose softmax is the members' mean probability.

    .. math:: z = \log \frac{1}{M} \sum_{m=1}^{M} \operatorname{softmax}(z_m)

    Args:
        rival: the rival; it is copied.
        mean: how the members are averaged, see `mean_logits`.

    >>> from modebridge.baselines import BatchEnsemble
    >>> rival = BatchEnsemble(nn.Linear(3, 2), 4, example=torch.rand(1, 3))
    >>> MeanOfMembers(rival)(torch.rand(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, rival: Rival, mean: Mean = "probability") -> None:
        super().__init__()
        self.rival = frozen_copy(rival)
        self.members = rival.members
        self.mean = mean

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The log of the mean probability (B, K)."""
        logits = torch.unflatten(wide(self.rival(*inputs, **named)), 0, (self.members, -1))
        return mean_logits(logits, self.mean)


def mean_logits(logits: Tensor, mean: Mean = "probability") -> Tensor:
    """Logits (B, K) whose softmax is the mean of the members' probabilities, or their logarithmic mean.

    Args:
        logits: logits (M, B, K).
        mean: "probability" or "logarithmic".

    >>> mean_logits(torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()).exp()
    tensor([[0.7000, 0.3000]])
    """
    tables = logits.log_softmax(dim=-1)
    return tables.mean(dim=0) if mean == "logarithmic" else tables.logsumexp(dim=0) - math.log(len(tables))


def check_members(members: int, what: str) -> None:
    """Raise an error unless the number of members is valid."""
    if not (isinstance(members, int) and 2 <= members <= MOST):
        raise ModebridgeError(
            f"Expected {what} to have 2 to {MOST} members, but got {members}; one member is the network itself."
        )
