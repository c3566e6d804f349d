"""Function matching: mixed images (mixup, and CutMix by Yun et al., 2019), KL losses on them, and their objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.batches import flatten, map_inputs, shapes_of
from modebridge.ensembles import Bases, labeled
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import frozen_copy, same_architecture
from modebridge.trees import wide
from modebridge.types import IGNORED, Batches, Draw, Inputs, Objective, Program, State, States


def kl_divergence(target: Tensor, logits: Tensor) -> Tensor:
    r"""KL(target || softmax(logits)) of each row, in nats; zeros in the target contribute nothing.

    .. math:: D_\mathrm{KL}(t \| p) = \sum_k t_k (\log t_k - \log p_k), \qquad p = \operatorname{softmax}(\text{logits})

    Log probabilities are logits too.

    >>> kl_divergence(torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2))
    tensor([0.])
    """
    cross = torch.where(target > 0, target * F.log_softmax(logits, dim=-1), 0.0)  # masked classes: 0 times -inf
    return (torch.xlogy(target, target) - cross).sum(dim=-1)


def bridge_loss(target: Tensor, logits: Tensor, heads: int = 1) -> Tensor:
    r"""The loss of a bridge on a batch, exactly as in the paper's algorithms 1 and 2.

    .. math:: \ell = \frac{1}{|B|} \sum_{x \in B} D_\mathrm{KL}\big(v_{1,2}(r) \,\|\, \tilde v_{1,2}(r)\big)

    with the network on the curve :math:`v_{1,2}(r) = f_{\theta_{1,2}(r)}(\tilde x)` and the bridge
    :math:`\tilde v_{1,2}(r) = h_{1,2}(z_1)` (type I) or :math:`H_{1,2}(z_1, z_2)` (type II), all on one mixed image
    :math:`\tilde x` (`mix`) and its features z. With h heads, both are (B, h, *P, K), and the losses are summed; over
    places, if there are any, they are averaged, for labels over the labeled ones.

    >>> bridge_loss(torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2))
    tensor(0.)
    """
    losses, places = kl_divergence(target, wide(logits)).mean(dim=0), min(heads - 1, 1)
    if losses.dim() > places:
        mass = target.sum(dim=-1).mean(dim=0)
        losses = losses.flatten(places).mean(dim=-1) / labeled(mass.flatten(places))
    return losses.sum()


@dataclass(frozen=True)
class DistillationLoss:
    r"""The loss of a student on (possibly mixed) images x, with labels y mixed alike.

    .. math:: \ell = s\, T^2\, D_\mathrm{KL}\big(\bar p_T(x) \,\|\, q_T(x)\big) + h\, D_\mathrm{KL}(y \,\|\, q_1(x)),
        \qquad \bar p_T = \frac{1}{M} \sum_m p_{m,T}

    where :math:`p_{m,T}` is teacher m's softmax at temperature T and :math:`q_T` the student's. The paper's mean of the
    divergences to each teacher has the same gradient: it differs by the teachers' disagreement, which does not depend
    on the student. The last term is the cross entropy, minus the entropy of mixed labels.
    """

    temperature: float = 1.0  # T
    soft: float = 1.0  # weight s of the teachers
    hard: float = 0.0  # weight h of the labels

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
        """The mean loss over a batch, of targets from `target` and label probabilities (B, K), each None if not used.

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
            loss = loss + weight * kl_divergence(labels, logits).mean() / labeled(labels.sum(dim=-1).flatten())
        return loss


PAPER_LOSS = DistillationLoss(temperature=4.0, soft=1.8, hard=0.1)
"""The authors' loss: 0.1 CE + 2 * 0.9 T^2 KL with T = 4, without mixup; the factor 2 is in their code."""


T = TypeVar("T")
SMALLEST = 5
"""Images with a shorter side are not cut by default; it is also how inputs with channels last are told from images."""


def draw_mixing(size: int, mixup: float, cutmix: float, generator: torch.Generator, half: bool = False) -> Draw:
    """Draw how a batch is mixed; with both mixup and CutMix, each is used with probability 1/2.

    The alphas are those of the Beta distributions of an image's share, not folded to >= 0.5, and of the box's share of
    the area before clipping; 0 turns either off. The result holds "partner" (B,), the image to mix with; "share" (B,),
    the share of an image outside its box; and with CutMix also "box" (B, 3): its side, and its center from the top and
    from the left, relative to the image's sides. Mixup has boxes of size 0 and CutMix has shares of 1, so one program
    serves both. With `half`, CutMix leaves half of its batches as they are.
    """
    if not (mixup or cutmix):
        return {}
    # numpy's Beta takes a generator; torch's public one only uses the global generator.
    random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    draw = {}
    if not cutmix:
        share = random.beta(mixup, mixup, size)
    else:
        if mixup and random.random() < 0.5:
            share, side = random.beta(mixup, mixup, size), np.zeros(size)
        else:
            share, side = np.ones(size), np.sqrt(random.beta(cutmix, cutmix, size))
        side *= not half or random.random() < 0.5
        draw["box"] = torch.from_numpy(np.column_stack([side, random.random((size, 2), dtype=np.float32)])).float()
    return {"share": torch.from_numpy(share).float(), **draw, "partner": torch.randperm(size, generator=generator)}


def mixed(inputs: Inputs, draw: Draw) -> Inputs:
    """The images, mixed according to a draw."""
    return map_inputs(partial(_mixed, draw, pixel_shares(draw, inputs)), inputs) if "share" in draw else inputs


def mixed_labels(labels: Tensor, classes: int, dtype: torch.dtype, draw: Draw, images: Inputs) -> Tensor:
    """The labels as probabilities (B, K), or (B, *P, K), mixed like the images; 0 for places without a label."""
    target = F.one_hot(labels.clamp_min(0), classes).to(dtype)
    if labels.dim() > 1:
        target = target * (labels != IGNORED)[..., None]
    if "share" not in draw:
        return target
    if labels.dim() > 1 and "box" in draw:
        return _mixed(draw, pixel_shares(draw, images).squeeze(1), target)
    return _mixed(draw, label_shares(draw, images, dtype), target)


def _mixed(draw: Draw, share: Tensor, tensor: Tensor) -> Tensor:
    return mix(tensor, share.to(tensor), draw["partner"].to(tensor.device))


def mix(values: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    """Share * values + (1 - share) * values[partner], with one share per sample, or per pixel or token for CutMix."""
    shares = share.view(*share.shape, *[1] * (values.dim() - share.dim()))
    if not values.is_floating_point():
        return torch.where(shares.bool(), values, values[partner])
    return shares * values + (1 - shares) * values[partner]


def pixel_shares(draw: Draw, inputs: Inputs) -> Tensor:
    """The share of an image in each place of its mixture: (B, 1, H, W), (B, T) of tokens, or (B,) for mixup alone."""
    if "box" not in draw:
        return draw["share"]
    outside = _outside(draw["box"], inputs)
    if outside.dim() == 2:
        return draw["share"][:, None] * outside
    return (draw["share"][:, None, None] * outside)[:, None]


def label_shares(draw: Draw, inputs: Inputs, dtype: torch.dtype) -> Tensor:
    r"""The share (B,) of an image's own label in its mixture: the mean of `pixel_shares`.

    .. math:: \lambda = s \, (1 - \text{clipped area} / (H W))
    """
    share = draw["share"].to(dtype)
    if "box" not in draw:
        return share
    outside = _outside(draw["box"], inputs).flatten(1)
    return share * outside.sum(dim=1) / outside.shape[1]


def image_size(inputs: Inputs) -> tuple[int, int]:
    """Height and width of images, 0 and the length of token sequences; an error for inputs that cannot share a box."""
    tensors = flatten(inputs).values()
    sizes = {tuple(tensor.shape[1:] if tensor.dim() == 2 else tensor.shape[2:]) for tensor in tensors}
    size = sizes.pop() if len(sizes) == 1 else ()
    if len(size) == 1 and are_tokens(inputs):
        return 0, size[0]
    if len(size) != 2:
        raise ModebridgeError(
            f"Expected the inputs of CutMix to be images (batch, channels, height, width) of one size, or tokens "
            f"(batch, length), but got {shapes_of(inputs)}; set cutmix=0."
        )
    return size


def are_tokens(inputs: Inputs) -> bool:
    """Whether all inputs are sequences (batch, length) of integers, such as tokens and their masks."""
    return all(tensor.dim() == 2 and not tensor.is_floating_point() for tensor in flatten(inputs).values())


def suits_cutmix(inputs: Inputs) -> bool:
    """Whether all inputs are images (batch, channels, height, width) of one size, or tokens, and not tiny.

    >>> [suits_cutmix(torch.zeros(1, *shape)) for shape in ((3, 8, 8), (8, 8, 3), (8,))]
    [True, False, False]
    >>> suits_cutmix(torch.zeros(1, 8, dtype=torch.long))
    True
    """
    try:
        return min(side for side in image_size(inputs) if side) >= SMALLEST
    except ModebridgeError:
        return False


def _outside(box: Tensor, inputs: Inputs) -> Tensor:
    """Which pixels (B, H, W), or tokens (B, T), are outside of each box."""
    side, down, across = box.unbind(dim=1)
    height, width = image_size(inputs)
    if not height:  # the length of a sequence's box is the share of the area that a box of an image has
        return ~_within(side.square(), across, width)
    return ~(_within(side, down, height)[:, :, None] & _within(side, across, width)[:, None, :])


def _within(side: Tensor, center: Tensor, length: int) -> Tensor:
    """Which pixels along an axis are in each box: (B, length); half a side rounds down, as in theirs."""
    half, middle = (side * length).long() // 2, (center * length).long()
    pixels = torch.arange(length, device=side.device)
    return (pixels >= (middle - half)[:, None]) & (pixels < (middle + half)[:, None])


class MatchingObjective(Objective[T]):
    """Train networks to match frozen ones on mixed images (`draw_mixing`); each frozen one runs once per batch."""

    def __init__(self, bases: Bases[str], mixup: float, cutmix: float = 0.0) -> None:
        self.bases = bases
        self._mixup, self._cutmix = mixup, cutmix
        # By member: the loss in training, the loss of the same network in evaluation mode, its start, and the network.
        self._programs: dict[str, Program] = {}
        self._measures: dict[str, Program] = {}
        self._starts: dict[str, State] = {}
        self._kinds: dict[str, tuple[nn.Module, object]] = {}

    def _add(self, name: str, net: nn.Module, mode: Mode, kind: object, loss: Callable[[nn.Module], Program]) -> None:
        """Add a member that starts at a mode; parameters with `requires_grad=False` are frozen.

        Networks of one architecture, with losses of one kind, share a program, compiled once.
        """
        twins = (key for key, (other, known) in self._kinds.items() if known == kind and same_architecture(other, net))
        twin = next(twins, None)
        for programs, training in ((self._programs, True), (self._measures, False)):
            programs[name] = loss(frozen_copy(net, training=training)) if twin is None else programs[twin]
        learned = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
        self._starts[name] = State.split(mode.params, mode.buffers, learned)
        self._kinds[name] = net, kind

    def start(self) -> States:
        return self._starts

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        return draw_mixing(size, self._mixup, self._cutmix, generator)

    def program(self, member: str) -> Program:
        return self._programs[member]

    @torch.no_grad()
    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        totals, seen = dict.fromkeys(self._measures, 0.0), 0
        for batch in batches:
            prepared = self.prepare(batch, {})
            for name, measure in self._measures.items():
                totals[name] += float(measure(states[name], prepared[name])) * len(batch[1])
            seen += len(batch[1])
        return {name: total / seen if seen else math.nan for name, total in totals.items()}
