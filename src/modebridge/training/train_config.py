"""How long and how fast to train: one record for modes, curves and bridges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from modebridge.errors import ModebridgeError

__all__ = ["DEFAULT", "TrainConfig", "TriangleConfig"]

MOST = 10**6
"""Upper limit for epochs and for every rate."""
SEEDS = 2**62
"""Upper limit for seeds. Torch's generators take 64 bits, and a run also uses seeds slightly above its own."""


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
        if self.nesterov not in ("no", "standard", "authors"):
            raise ModebridgeError(
                f"Expected nesterov to be 'no', 'standard' or 'authors', but got '{self.nesterov}'; choose one."
            )
        if self.keep not in ("best", "last"):
            raise ModebridgeError(f"Expected keep to be 'best' or 'last', but got '{self.keep}'; choose one.")

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


@dataclass(frozen=True)
class TriangleConfig(TrainConfig):
    """One cycle of fast geometric ensembling: the learning rate rises linearly to its peak and falls again.

    Args:
        lowest: the fraction of the peak at the end of the cycle, where a network is taken.
    """

    lowest: float = 0.01

    def factor(self, epoch: int) -> float:
        """The fraction of the peak learning rate in an epoch, counted from 0.

        With s = (epoch + 1) / epochs: lowest + (1 - lowest) 2 s up to s = 1/2, then the same way back.

        >>> [round(TriangleConfig(epochs=4).factor(e), 3) for e in range(4)]
        [0.505, 1.0, 0.505, 0.01]
        """
        s = (epoch + 1) / self.epochs
        return self.lowest + (1 - self.lowest) * (1 - abs(2 * s - 1))
