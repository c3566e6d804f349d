"""All options of training in one record, for modes, curves, bridges and students."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import torch

from modebridge.errors import ModebridgeError
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.epochs import Epoch

MOST = 10**6
"""Upper limit for epochs and for every rate."""
SEEDS = 2**62
"""Upper limit for seeds. Torch's generators take 64 bits, and a run also uses seeds slightly above its own."""
CHOICES = {
    "nesterov": ("no", "standard", "authors"),
    "keep": ("best", "last"),
    "precision": ("auto", "fp32", "bf16"),
}
HOW = ("device", "compile", "checkpoints", "callbacks", "progress")
"""Fields that do not determine the numbers, up to rounding."""


@dataclass(frozen=True)
class TrainConfig:
    """SGD with warm-up and cosine decay, the paper's schedule for everything.

    Args:
        epochs: passes over the training data.
        lr: the peak learning rate.
        momentum: momentum of SGD.
        weight_decay: L2 penalty added to the gradient of every parameter, including norms and biases.
        nesterov: "no"; "standard" as in torch; "authors": along gradient + buffer, a slip in the authors' code that
            affects all of their Tiny ImageNet runs.
        warmup: epochs until the peak, at most a quarter of all epochs (see `factor`).
        average_from: the first epoch, counted from 1, whose weights join a running mean that is kept instead of the
            last weights (SWA); the learning rate is constant from there on. 0 turns it off.
        keep: "best" on validation, or the "last" epoch.
        seed: seed for what the objective (the r of a curve, mixup) and the networks (dropout, stochastic depth) draw.
        mixup: alpha of the per-sample mixup of bridges and students; 0 turns it off, None is the method's default.
        cutmix: alpha of CutMix, for images only; 0 turns it off, None is the method's default. With mixup as well, each
            batch gets one of the two; if only one of the two is set, the other is off.
        device: "cpu", "cuda", "cuda:1", or "auto": the network's device, else a GPU if there is one.
        precision: "fp32"; "bf16" for convolutions and products (weights, gradient sums and updates stay fp32); "auto"
            is bf16 on a GPU.
        compile: whether to compile the losses with torch.compile, which takes most of a minute once per architecture,
            and to replay steps as CUDA graphs; None compiles on a GPU.
        checkpoints: where to save progress and resume from.
        callbacks: called after every epoch.
        progress: show a progress bar; None shows it in terminals and notebooks unless there are callbacks.
    """

    epochs: int
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: Literal["no", "standard", "authors"] = "no"
    warmup: int = 5
    average_from: int = 0
    keep: Literal["best", "last"] = "last"
    seed: int = 0
    mixup: float | None = None
    cutmix: float | None = None
    device: torch.device | str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool | None = None
    checkpoints: Checkpoints | None = None
    callbacks: tuple[Callable[[Epoch], None], ...] = ()
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("epochs", 0),
            ("lr", 0.0),
            ("momentum", 0.0),
            ("weight_decay", 0.0),
            ("warmup", 1),
            ("average_from", 0),
        ):
            value = getattr(self, name)
            whole = isinstance(value, int) or name in ("lr", "momentum", "weight_decay")
            # The upper limit also excludes nan, inf, and integers too large for a float.
            if not (isinstance(value, int | float) and whole and least <= value <= MOST):
                raise ModebridgeError(
                    f"Expected {name} to be {'a number' if isinstance(least, float) else 'an integer'} of at least "
                    f"{least:g} and at most {MOST:,}, but got {str(value)[:50]}; change it."
                )
        if not (isinstance(self.seed, int) and abs(self.seed) <= SEEDS):
            raise ModebridgeError(
                f"Expected seed to be an integer up to {SEEDS:,}, but got {str(self.seed)[:50]}; change it."
            )
        if self.average_from > self.epochs:
            raise ModebridgeError(
                f"Expected average_from to be at most the {self.epochs} epochs, but got {self.average_from}; lower it."
            )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                *others, last = map(repr, choices)
                raise ModebridgeError(
                    f"Expected {name} to be {', '.join(others)} or {last}, but got '{getattr(self, name)}'; choose one."
                )
        for name in ("mixup", "cutmix"):
            alpha = getattr(self, name)
            if alpha is not None and not 0 <= alpha <= MOST:
                raise ModebridgeError(f"Expected {name} to be at least 0, but got {alpha}; 0 turns it off.")

    @property
    def key(self) -> str:
        """The fields that determine the numbers, as text for the keys of artefacts and checkpoints."""
        return " ".join(f"{each.name}={getattr(self, each.name)}" for each in fields(self) if each.name not in HOW)

    def mixing(self, mixup: float) -> tuple[float, float]:
        """The alphas of mixup and CutMix, where `mixup` is the default of the method."""
        if self.mixup is None and self.cutmix is None:
            return mixup, 0.0
        return self.mixup or 0.0, self.cutmix or 0.0

    def factor(self, epoch: int) -> float:
        """The fraction of the peak learning rate in an epoch, counted from 0.

        With e = epoch + 1, W = warmup and N = epochs: 0.01 + 0.99 (e - 1)/(W - 1) before epoch W, then half a cosine,
        0.5 (1 + cos(pi (e - W)/(N - W + 1))), which ends a little above zero.

        >>> [round(TrainConfig(epochs=200).factor(e), 4) for e in (0, 1, 2, 3, 4, 199)]
        [0.01, 0.2575, 0.505, 0.7525, 1.0, 0.0001]
        """
        if self.average_from:
            epoch = min(epoch, self.average_from - 1)
        # A short run needs decay more than warm-up.
        e, warmup = epoch + 1, min(self.warmup, max(1, self.epochs // 4))
        if e < warmup:
            return 0.01 + 0.99 * (e - 1) / (warmup - 1)
        return 0.5 * (1 + math.cos(math.pi * (e - warmup) / (self.epochs - warmup + 1)))


DEFAULT = TrainConfig(epochs=30, keep="last")
"""The default of every function that fits something."""
