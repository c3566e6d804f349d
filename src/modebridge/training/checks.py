"""Checks around training: what can be known in advance fails in advance, and weights that ran away are said."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from modebridge import seeds, trees
from modebridge.batches import (
    Mapped,
    check_batch,
    check_labels,
    first_batch,
    flatten,
    map_inputs,
    shapes_of,
    take_rows,
)
from modebridge.ensembles import Ensemble, fit_temperature, scale
from modebridge.ensembles.temperature import FLOOR
from modebridge.errors import ModebridgeError, advice_for, first_line, plural
from modebridge.files.adapters import has_adapter
from modebridge.matching import are_tokens, image_size, suits_cutmix
from modebridge.modes import Mode
from modebridge.nets import frozen_copy, logits_of, run
from modebridge.nets.flops import invoke
from modebridge.nets.quirks import FAILED, on_copy
from modebridge.training.config import Engine, TrainConfig
from modebridge.training.loop import Task, train
from modebridge.types import Batch, Batches, Inputs, Objective, States

ONE_VALUE = "more than 1 value per channel"
"""Torch's message when batch norm would learn from a single value."""
TOKEN_CUTMIX = 1.0
"""The alpha of CutMix for tokens, which mixup cannot mix."""
BEHIND = 0.9
"""A network with a lower share of the first one's NLL should be the first."""
GROWN = 1000.0
"""Growth of the weights' norm that no successful training reaches."""


def check_config(config: object) -> None:
    if torch.is_inference_mode_enabled():
        raise ModebridgeError("Expected to train outside of torch.inference_mode, but it is on; leave it first.")
    if not isinstance(config, TrainConfig):
        raise ModebridgeError(
            f"Expected config to be a TrainConfig, but got {type(config).__name__}; pass TrainConfig(epochs=30, ...)."
        )


def run_training(
    objectives: Sequence[Objective[Any]],
    data: Sequence[Checked],
    seeds: Sequence[int],
    title: str,
    net: nn.Module,
    mode: Mode,
    valid: Batches | None,
    config: TrainConfig,
    engine: Engine,
) -> list[States]:
    """The loop, one task for each objective, and a warning if it diverged; `net` and `mode` check validation data."""
    if valid is not None:
        images, labels = first_batch(valid, "valid")
        valid = engine.feed(check_batches(valid, "valid", outputs_of(net, mode, images, "valid"), labels))
    config = config.resolved(net)
    triples = zip(objectives, data, seeds, strict=True)
    tasks = [Task(objective, batches, valid, seed) for objective, batches, seed in triples]
    trained = train(tasks, config, engine=engine, title=title)
    for task, states in zip(tasks, trained, strict=True):
        for member, start in task.objective.start().items():
            # Training can diverge and stay finite; a loss that does not raises an error in the loop.
            old, new = float(trees.norm(start.params)), float(trees.norm(states[member].params))
            if new > GROWN * old > 0:
                rate = "" if config.lr is None else f" (lr={config.lr:g})"
                warnings.warn(
                    f"The norm of the weights of '{member}' grew {new / old:.3g} times, from {old:.3g} to {new:.3g}: "
                    f"training diverged; lower the learning rate{rate}.",
                    stacklevel=3,
                )
                return trained  # one warning is enough: all members have the same settings
    return trained


def warn_if_worse(
    base: Ensemble, new: Ensemble, valid: Batches, config: TrainConfig, what: str, hint: str, *others: Ensemble
) -> None:
    """Warn if what was trained, or what it started from, is worse on held-out data than what was there before."""
    engine, levels = Engine.of(config, base), []
    for ensemble in (base, new, *others):
        try:
            table, labels = ensemble.to(engine.device).averaged(engine.feed(valid))
        except ModebridgeError as error:  # its first batch was right: what was trained is worth more than a check
            warnings.warn(f"{what}, the NLL on valid is not known: {error}", stacklevel=3)
            return
        with warnings.catch_warnings(action="ignore"):
            tempered = scale(table, fit_temperature(table, labels))
        levels.append(float(torch.nn.functional.nll_loss((tempered + FLOOR).log(), labels.to(table.device))))
    if levels[1] > levels[0]:
        warnings.warn(
            f"{what}, the NLL on valid is {levels[1]:.4f}, and {levels[0]:.4f} with the first network alone; train "
            f"longer, change the learning rate, or {hint}.",
            stacklevel=3,
        )
    if (best := min(levels[2:], default=math.inf)) < BEHIND * levels[0]:
        warnings.warn(
            f"Network {levels.index(best, 2)} of {len(levels) - 1} alone has a lower NLL on valid, {best:.4f}, than "
            f"the first one, {levels[0]:.4f}; pass the best one first.",
            stacklevel=3,
        )


class Checked(Mapped):
    """Batches that are checked as they are drawn: inputs must be finite, labels must be classes.

    Tensors on a GPU are checked for type and shape only, because reading their values would synchronize it. Batches
    smaller than `least` are skipped, with one warning: batch norm cannot learn from a single value.
    """

    def __init__(self, batches: Batches, what: str, outputs: Sequence[int], least: int = 1) -> None:
        super().__init__(batches, self._check)
        self._what, self.outputs, self.least = what, outputs, least
        self._warned = False

    def _check(self, item: object) -> Batch | None:
        inputs, labels = check_batch(item, self._what)
        if labels.device.type == "cpu":
            check_labels(labels, self.outputs, self._what, sizes=False)
        if len(labels) >= self.least:
            return inputs, labels
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"A batch of {plural(len(labels), 'image')} in {self._what} is skipped: batch norm needs at least "
                f"{self.least} images per batch. Change the batch size or set drop_last=True to avoid this.",
                stacklevel=2,
            )
        return None


def check_batches(batches: Batches, what: str, outputs: Sequence[int], labels: Tensor, least: int = 1) -> Checked:
    """Check the data before training, every batch of a list and the first of a loader, whose labels are `labels`.

    `outputs` is the shape (*P, K) of the logits of one image. Returns the same batches; those not checked yet are
    checked as they are drawn, see `Checked`.
    """
    check_labels(labels, outputs, what)
    if isinstance(batches, Sequence):
        for _ in Checked(batches, what, outputs):
            pass
    if len(labels) < least and all(len(check_batch(item, what)[1]) < least for item in batches):
        raise ModebridgeError(
            f"Expected {what} to have batches of at least {least} images for batch norm to learn from, but got "
            f"{len(labels)}; increase the batch size."
        )
    return Checked(batches, what, outputs, least)


def check_train(
    net: nn.Module, mode: Mode, data: Batches, engine: Engine, batch: Batch | None = None, *, norms_only: bool = False
) -> Checked:
    """Check data that a network learns from, or (`norms_only`) estimates statistics on; `batch` is the first."""
    images, labels = batch or first_batch(data, "train")
    outputs = outputs_of(net, mode, images, "train")
    least = least_images(net, images, engine=engine, norms_only=norms_only, axes=1 + len(outputs))
    return check_batches(data, "train", outputs, labels, least)


def least_images(module: nn.Module, *inputs: Inputs, engine: Engine, norms_only: bool = False, axes: int = 2) -> int:
    """The minimum number of images per training batch; raises an error if the network cannot run in training mode.

    One is enough, unless batch norm would see a single value per channel: then two for every process. `inputs` are one
    batch for each input of a network or of a bridge's body, of which only the first image is used; `axes` is the number
    of axes of the logits. With `norms_only` only batch norm goes to training mode.
    """
    single = [take_rows(batch, slice(0, 1)) for batch in inputs]
    run_once = partial(_in_training, norms_only=norms_only)
    output = on_copy(module, single, run_once, weightless=False)
    least = 1
    if isinstance(output, ValueError) and ONE_VALUE in str(output):
        least = 2 * engine.processes.size
        double = [map_inputs(lambda tensor: torch.cat([tensor] * 2), batch) for batch in single]
        output = on_copy(module, double, run_once, weightless=False)
    if isinstance(output, Exception):
        raise ModebridgeError(
            f"Expected {type(module).__name__} to run in training mode on images as in train, {shapes_of(single[0])}, "
            f"but got '{first_line(output)}'; use images that all its heads accept, or build it without auxiliary "
            "heads (aux_logits=False)."
        )
    logits = logits_of(output, training=True)
    if logits.dim() != axes:
        raise ModebridgeError(
            f"Expected {type(module).__name__} to return logits of (batch, classes) first in training mode too, but "
            f"got {tuple(logits.shape)}; wrap it in a module that does."
        )
    return least


def _in_training(bare: nn.Module, inputs: Sequence[Inputs], *, norms_only: bool) -> object:
    """What a copy returns in training mode, or the error it raises."""
    for part in bare.modules():
        part.training = not norms_only or isinstance(part, _NormBase)
    device = next((parameter.device for parameter in bare.parameters()), None)
    with seeds.borrowed(0, device):  # dropout must not advance the global generator
        try:
            return invoke(bare, inputs)
        except FAILED as error:
            return error


def mixing_of(config: TrainConfig, mixup: float, inputs: Inputs) -> tuple[float, float]:
    """The alphas of mixup and CutMix for such inputs; the method's default is `mixup`, and CutMix for tokens."""
    cutmix = config.cutmix or 0.0
    if config.mixup is not None or config.cutmix is not None:
        mixup = config.mixup or 0.0
    elif are_tokens(inputs):
        return 0.0, TOKEN_CUTMIX if suits_cutmix(inputs) else 0.0
    named = {name.removeprefix("images/"): tensor for name, tensor in flatten(inputs).items()}
    integers = [name for name, tensor in named.items() if not tensor.is_floating_point()]
    if integers and config.mixup is config.cutmix is None:
        name, odd = next((name, tensor) for name, tensor in named.items() if not are_tokens(tensor))
        raise ModebridgeError(
            f"Expected all inputs beside '{integers[0]}' to be integers (batch, length), as tokens and masks are, but "
            f"got '{name}' of {tuple(odd.shape)} and {odd.dtype}; pass masks as integers, leave out what the network "
            "does not need, or set mixup=0."
        )
    if mixup and integers:
        raise ModebridgeError(
            f"Expected mixup to be 0 for integers such as tokens and masks, but got {mixup:g} and '{integers[0]}'; set "
            "mixup=0."
        )
    if cutmix:
        image_size(inputs)
    return mixup, cutmix


def trainable(net: nn.Module) -> set[str]:
    """The names of the parameters with `requires_grad`; raises an error if there are none or if any is complex."""
    names = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    if not names:
        whole = "call requires_grad_(True) on it, or on the layers to train"
        raise ModebridgeError(
            f"Expected {type(net).__name__} to have trainable parameters, but got requires_grad=False for all; "
            f"{'load its adapter with is_trainable=True' if has_adapter(net) else whole}."
        )
    for name, parameter in net.named_parameters():
        if parameter.is_complex():
            raise ModebridgeError(
                f"Expected parameters to be real numbers, but '{name}' of {type(net).__name__} is {parameter.dtype}; "
                "keep real and imaginary parts in a real parameter (torch.view_as_complex in the forward pass)."
            )
    return names


@torch.no_grad()
def outputs_of(net: nn.Module, mode: Mode, images: Inputs, what: str) -> tuple[int, ...]:
    """The shape (*P, K) of the logits of one image; raises an error if the network cannot run on the images."""
    where = next(tensor.device for tensor in [*mode.params.values(), *flatten(images).values()])
    first = map_inputs(lambda tensor: tensor[:1].to(where), images)
    with runs_on(net, images, what, where):
        logits = run(frozen_copy(net).to(where), mode.params, mode.buffers, first)
    if logits.dim() < 2:
        raise ModebridgeError(
            f"Expected the network's logits to be (batch, classes), but got {tuple(logits.shape)}; pass a classifier."
        )
    return tuple(logits.shape[1:])


@contextmanager
def runs_on(net: nn.Module, images: Inputs, what: str, device: torch.device | None = None) -> Iterator[None]:
    """Raise an error about the images if a network cannot run on them."""
    try:
        # Networks that draw random numbers in evaluation mode must not disturb the caller's generator.
        with seeds.borrowed(0, device):
            yield
    except (RuntimeError, TypeError, IndexError) as error:
        raise ModebridgeError(
            f"Expected {type(net).__name__} to run on the images of {what}, but got {shapes_of(images)} and "
            f"'{first_line(error)}'; {advice_for(error, 'check their shape and type')}."
        ) from error
