"""The recipes by name: the demo, the paper's four data sets with its settings, and short versions of two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from modebridge.errors import ModebridgeError, near
from modebridge.nets import Norm
from modebridge.recipes.recipe import DataConfig, Recipe, StageConfig
from modebridge.recipes.text import from_file

__all__ = ["RECIPES", "digits", "find_recipe", "read_recipe"]


def digits() -> Recipe:
    """Four small networks, the curves from the first to the others, and their bridges."""
    return Recipe(
        name="digits",
        about="UCI hand-written digits with pixel noise, carried in the package; a minute or two on two cores",
        data=DataConfig(name="digits", train=500, valid=397, noise=0.7, batch_size=50),
        net="digits",
        norm="bn",
        modes=4,
        mode=StageConfig(20, 1e-3),
        curve=StageConfig(40, 1e-3),
        bridge=StageConfig(35),
        warmup=3,
        type2="first",
        width_divisor=4,
        methods=("heads",),
        student_epochs=60,
        device="cpu",
    )


def cifar10(norm: Norm = "frn") -> Recipe:
    """ResNet-32x2: 8 modes, the curves of the paper's tables, bridges of both types and sizes, 200 epochs each."""
    return Recipe(
        name="cifar10" if norm == "frn" else "cifar10-bn",
        about=f"the paper's CIFAR-10: ResNet-32x2 with {norm.upper()}, 8 modes, 200 epochs each",
        data=DataConfig(name="cifar10", batch_size=128, pad=4, flip=True),
        net="cifar10",
        norm=norm,
        modes=8,
        mode=StageConfig(200, 1e-3, "best"),
        curve=StageConfig(200, 1e-3, "best"),
        bridge=StageConfig(200, 0.0, "best"),
        pairs="paper",
        sizes=("small", "medium"),
        pin_start="random",
    )


def cifar100(norm: Norm = "frn") -> Recipe:
    """ResNet-32x4, otherwise like CIFAR-10 with half the weight decay."""
    base = cifar10(norm)
    return replace(
        base,
        name=base.name.replace("cifar10", "cifar100"),
        about=f"the paper's CIFAR-100: ResNet-32x4 with {norm.upper()}, 8 modes, 200 epochs each",
        data=replace(base.data, name="cifar100"),
        net="cifar100",
        mode=StageConfig(200, 5e-4, "best"),
        curve=StageConfig(200, 5e-4, "best"),
    )


def tin200(norm: Norm = "frn") -> Recipe:
    """Tiny ImageNet, ResNet-34; Nesterov as in the authors' code, which affects all of their runs on this set."""
    base = cifar100(norm)
    return replace(
        base,
        name=base.name.replace("cifar100", "tin200"),
        about=f"the paper's Tiny ImageNet: ResNet-34 with {norm.upper()}, 8 modes, 200 epochs each",
        data=DataConfig(name="tin200", batch_size=128, bridge_batch_size=256, pad=4, flip=True),
        net="tin200",
        bridge=StageConfig(100, 0.0, "best"),
        nesterov="authors",
        together=2,
    )


def in1k(norm: Norm = "frn") -> Recipe:
    """ImageNet, ResNet-50: 100 epochs as in the authors' code (the paper states 200), no mixup."""
    base = cifar10(norm)
    return replace(
        base,
        name=base.name.replace("cifar10", "in1k"),
        about=f"the paper's ImageNet: ResNet-50 with {norm.upper()}, 8 modes, 100 epochs each, aligned, streamed",
        data=DataConfig(name="in1k", batch_size=256, bridge_batch_size=512),
        net="in1k",
        mode=StageConfig(100, 1e-4, "best"),
        curve=StageConfig(100, 1e-5, "best"),
        bridge=StageConfig(100, 0.0, "best"),
        mixup=0.0,
        align="activations",
        together=1,
    )


def cifar10_short(norm: Norm = "frn") -> Recipe:
    """Three modes, all their curves and bridges: 14 minutes on one H200, a third of it compiling."""
    return replace(
        cifar10(norm),
        name="cifar10-short" if norm == "frn" else "cifar10-short-bn",
        about=f"CIFAR-10 in a hurry: ResNet-32x2 with {norm.upper()}, 3 modes, a quarter of an hour on one H200",
        modes=3,
        mode=StageConfig(45, 1e-3),
        curve=StageConfig(90, 1e-3),
        bridge=StageConfig(40),
        pairs="all",
        pin_start="midpoint",
    )


def tin200_short(norm: Norm = "frn") -> Recipe:
    """Three modes, all their curves and bridges on Tiny ImageNet."""
    return replace(
        tin200(norm),
        name="tin200-short" if norm == "frn" else "tin200-short-bn",
        about=f"Tiny ImageNet in a hurry: ResNet-34 with {norm.upper()}, 3 modes, 6 epochs each, curves 8",
        modes=3,
        mode=StageConfig(6, 5e-4),
        curve=StageConfig(8, 5e-4),
        bridge=StageConfig(4),
        nesterov="standard",
        pairs="all",
        pin_start="midpoint",
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    **{
        name + ("" if norm == "frn" else "-bn"): partial(make, norm)
        for name, make in (
            ("cifar10-short", cifar10_short),
            ("tin200-short", tin200_short),
            ("cifar10", cifar10),
            ("cifar100", cifar100),
            ("tin200", tin200),
            ("in1k", in1k),
        )
        for norm in get_args(Norm)
    },
}
"""All recipes by name, each as a function that returns one."""


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`."""
    if name not in RECIPES:
        raise ModebridgeError(f"Expected a known recipe, but got '{name}'; {near(name, RECIPES)}")
    return RECIPES[name]()


def read_recipe(name: str) -> tuple[Recipe, int | None]:
    """A recipe by name or from a user's file (.toml or .py), and its seed if the file has one.

    A .py file is a program, and is executed.
    """
    return from_file(Path(name)) if name.endswith((".toml", ".py")) else (find_recipe(name), None)
