"""A recipe: every choice of a run in one frozen record."""

from __future__ import annotations

from dataclasses import dataclass

from modebridge.errors import ModebridgeError
from modebridge.nets import Norm
from modebridge.training import TrainConfig

__all__ = ["DataConfig", "Recipe"]


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are split.

    Args:
        name: "digits".
        train: how many images train.
        valid: how many after them choose and calibrate; the rest is the test split.
        noise: standard deviation of the fixed pixel noise, in units of the images' own.
        batch_size: of training.
    """

    name: str
    train: int
    valid: int
    noise: float
    batch_size: int


@dataclass(frozen=True)
class Recipe:
    """A run from data to results.

    Args:
        name: how the command line calls it.
        about: one line for people.
        data: images and splits.
        net: name of the base network.
        norm: its normalisation.
        modes: how many networks are trained; mode 0 gets a curve to each other one.
        mode: training of each mode.
        curve: training of each curve.
        bridge: training of all bridges together.
        mixup: alpha of the bridges' mixup.
        slim: divides the widths of the bridges.
    """

    name: str
    about: str
    data: DataConfig
    net: str
    norm: Norm
    modes: int
    mode: TrainConfig
    curve: TrainConfig
    bridge: TrainConfig
    mixup: float
    slim: float

    def __post_init__(self) -> None:
        if self.modes < 2:
            raise ModebridgeError(
                f"Expected a recipe to have at least 2 modes, but got {self.modes}; a curve needs two ends."
            )
