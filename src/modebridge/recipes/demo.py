"""The demo: hand-written digits with fixed pixel noise, a minute or two on two cores."""

from __future__ import annotations

from modebridge.recipes.config import DataConfig, Recipe
from modebridge.training import TrainConfig

__all__ = ["digits"]


def digits() -> Recipe:
    """Four small networks, the curves from the first to the others, and their bridges."""
    return Recipe(
        name="digits",
        about="UCI hand-written digits with pixel noise, carried in the package; a minute or two on two cores",
        data=DataConfig(name="digits", train=500, valid=397, noise=0.7, batch_size=50),
        net="digits",
        norm="bn",
        modes=4,
        mode=TrainConfig(epochs=20, weight_decay=1e-3, warmup=3),
        curve=TrainConfig(epochs=40, weight_decay=1e-3, warmup=3),
        bridge=TrainConfig(epochs=35, warmup=3),
        type2="first",
        small=4,
        medium=2,
        methods=("heads",),
        student_epochs=60,
        device="cpu",
    )
