"""The paper's four data sets with its settings, and short versions of two of them for one large GPU."""

from __future__ import annotations

from dataclasses import replace

from modebridge.nets import Norm
from modebridge.recipes.config import DataConfig, Recipe
from modebridge.training import TrainConfig

__all__ = ["cifar10", "cifar10_short", "cifar100", "in1k", "tin200", "tin200_short"]

BEST = TrainConfig(epochs=200, keep="best")


def cifar10(norm: Norm = "frn") -> Recipe:
    """ResNet-32x2: 8 modes, the curves of the paper's tables, bridges of both types and sizes, 200 epochs each."""
    train = replace(BEST, weight_decay=1e-3)
    return Recipe(
        name="cifar10" if norm == "frn" else "cifar10-bn",
        about=f"the paper's CIFAR-10: ResNet-32x2 with {norm.upper()}, 8 modes, 200 epochs each",
        data=DataConfig(name="cifar10", batch_size=128, pad=4, flip=True),
        net="cifar10",
        norm=norm,
        modes=8,
        mode=train,
        curve=train,
        bridge=BEST,
        pairs="paper",
        sizes=("small", "medium"),
        pin_start="random",
    )


def cifar100(norm: Norm = "frn") -> Recipe:
    """ResNet-32x4, otherwise like CIFAR-10 with half the weight decay."""
    base, train = cifar10(norm), replace(BEST, weight_decay=5e-4)
    return replace(
        base,
        name=base.name.replace("cifar10", "cifar100"),
        about=f"the paper's CIFAR-100: ResNet-32x4 with {norm.upper()}, 8 modes, 200 epochs each",
        data=replace(base.data, name="cifar100"),
        net="cifar100",
        mode=train,
        curve=train,
    )


def tin200(norm: Norm = "frn") -> Recipe:
    """Tiny ImageNet, ResNet-34; Nesterov as in the authors' code, which affects all of their runs on this set."""
    base, train = cifar10(norm), replace(BEST, weight_decay=5e-4, nesterov="authors")
    return replace(
        base,
        name=base.name.replace("cifar10", "tin200"),
        about=f"the paper's Tiny ImageNet: ResNet-34 with {norm.upper()}, 8 modes, 200 epochs each",
        data=DataConfig(name="tin200", batch_size=128, bridge_batch_size=256, pad=4, flip=True),
        net="tin200",
        mode=train,
        curve=train,
        bridge=TrainConfig(epochs=100, keep="best", nesterov="authors"),
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
        mode=TrainConfig(epochs=100, weight_decay=1e-4, keep="best"),
        curve=TrainConfig(epochs=100, weight_decay=1e-5, keep="best"),
        bridge=TrainConfig(epochs=100, keep="best"),
        mixup=0.0,
        align="activations",
        together=1,
    )


def cifar10_short(norm: Norm = "frn") -> Recipe:
    """Three modes, all their curves and bridges: 14 minutes on one H200, a third of it compiling."""
    base, train = cifar10(norm), TrainConfig(epochs=45, weight_decay=1e-3)
    return replace(
        base,
        name="cifar10-short" if norm == "frn" else "cifar10-short-bn",
        about=f"CIFAR-10 in a hurry: ResNet-32x2 with {norm.upper()}, 3 modes, a quarter of an hour on one H200",
        modes=3,
        mode=train,
        curve=replace(train, epochs=90),
        bridge=TrainConfig(epochs=40),
        pairs="all",
        pin_start="midpoint",
    )


def tin200_short(norm: Norm = "frn") -> Recipe:
    """Three modes, all their curves and bridges on Tiny ImageNet."""
    base, train = tin200(norm), TrainConfig(epochs=6, weight_decay=5e-4, nesterov="standard")
    return replace(
        base,
        name="tin200-short" if norm == "frn" else "tin200-short-bn",
        about=f"Tiny ImageNet in a hurry: ResNet-34 with {norm.upper()}, 3 modes, 6 epochs each, curves 8",
        modes=3,
        mode=train,
        curve=replace(train, epochs=8),
        bridge=TrainConfig(epochs=4, nesterov="standard"),
        pairs="all",
        pin_start="midpoint",
    )
